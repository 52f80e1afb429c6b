"""The manual explains each feature of a ring, and each message in the log."""

from __future__ import annotations

import re

import pytest
from support.documents import plain
from support.sources import PACKAGE, ROOT

from uringloop._ring import features
from uringloop.doctor import SINCE

RINGS = ROOT / "docs" / "about" / "rings.md"
TROUBLESHOOTING = ROOT / "docs" / "how-to" / "troubleshoot.md"

# ── features ─────────────────────────────────────────────────────────────────────────────────


def test_the_table_of_features_has_each_with_its_first_kernel() -> None:
    _, _, rows = RINGS.read_text().partition("| Name | From | Effect | Without it |\n")
    assert rows
    found = re.findall(r"^\| `(\w+)` \| ([\d.]*) *\|", rows, re.MULTILINE)
    since = {name: "{}.{}".format(*kernel) for name, kernel in SINCE.items()}
    assert dict(found) == {name: since.get(name, "") for name in features.FEATURES}
    assert len(found) == len(features.FEATURES)


# ── messages ─────────────────────────────────────────────────────────────────────────────────

STRINGS = r'((?:f?"(?:[^"\\]|\\.)*"\s*)+)'
LOGGED = re.compile(rf"(?:logger\.(?!debug)\w+|warnings\.warn)\(\s*{STRINGS}")
VARYING = re.compile(r"\{[^}]*\}|%[-.\w]+|\\n")
# A heading has the first words of a message: what follows these marks may be missing.
MARKS = re.compile(rf"{VARYING.pattern}|[:;(]")

# Messages that asyncio's loops write as well, in these words.
ASYNCIOS = (
    "%r is serving",
    "%r was closed by peer",
    "Closing the loop",
    "Datagram endpoint local_addr=",
    "SSL connection is closed",
    "The executor did not finishing joining its threads",
    "The reuse_address parameter",
    "Unable to check or remove stale UNIX socket",
    "Unable to clean up listening UNIX socket",
    "asynchronous generator",
    "child process pid %d exit status already read",
    "create_server() failed to create socket.socket(%r, %r, %r)",
    "returning true from eof_received() has no effect",
    "Executing %s took",
    "set_wakeup_fd(%d) failed",
    "unclosed",
)


def messages() -> list[str]:
    """Return what is written to the log outside debug mode, except asyncio's messages."""
    found = []
    for path in sorted((*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyx"))):
        for match in LOGGED.finditer(path.read_text()):
            text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match[1])).replace("`", "")
            # Some begin with what another function says.
            said_here = re.search(r"\w", VARYING.sub("", text)) and not text.startswith("%s (")
            if said_here and not text.startswith(ASYNCIOS):
                found.append(text)
    assert len(found) > 10
    return found


@pytest.mark.parametrize("message", messages())
def test_each_message_in_the_log_is_explained(message: str) -> None:
    page = re.sub(r"\s+", " ", plain(TROUBLESHOOTING.read_text()))
    parts = [part.strip() for part in MARKS.split(message)]
    assert any(part in page for part in parts if len(part.split()) > 1), parts
