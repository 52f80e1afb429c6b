"""The log of a process whose loops do not get io_uring: one warning.

A seccomp filter refuses io_uring to a child process.
"""

from __future__ import annotations

import contextlib

import pytest
from support import seccomp
from support.loops import each_ring, on_io_uring

import uringloop
from uringloop._ring.backends import Backend

# Several loops, one after the other and at the same time.
LOOPS = """
import asyncio, threading
import uringloop

def use(**options):
    loop = uringloop.Loop(**options)
    loop.run_until_complete(asyncio.sleep(0.001))
    loop.close()

for options in ({}, {"backend": "auto"}, {"busy_poll_us": 1}, {"sqpoll": 1}):
    use(**options)
threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def warnings_of(script: str, under: str | None, **variables: str) -> list[str]:
    """Run *script*, which must succeed, with warnings enabled; return its lines on stderr."""
    ended = seccomp.run("-c", script, under=under, **{"URINGLOOP_WARN_FALLBACK": "", **variables})
    assert ended.returncode == 0, ended.stderr
    return ended.stderr.splitlines()


@pytest.mark.parametrize("refusal", ["EPERM", "ENOSYS", "enter-EPERM", "register-EACCES"])
def test_refusal_logs_one_warning_without_logging_configured(refusal: str) -> None:
    (line,) = warnings_of(LOOPS, refusal)
    # The event, the cause and the remedy.
    assert line.startswith(
        "event loops run on uringloop's software ring (epoll), not on io_uring: "
    )
    assert "seccomp" in line or "sysctl" in line
    assert "allow io_uring_setup" in line or "sysctl" in line
    assert "python -m uringloop.doctor" in line
    assert "URINGLOOP_WARN_FALLBACK=0" in line


def test_warning_uses_the_package_logger() -> None:
    configured = f"""
import logging, sys
logging.basicConfig(format="%(name)s %(levelname)s", stream=sys.stderr)
{LOOPS}"""
    assert warnings_of(configured, "EPERM") == ["uringloop WARNING"]
    quiet = f"""
import logging
logging.getLogger("uringloop").setLevel(logging.ERROR)
{LOOPS}"""
    assert warnings_of(quiet, "EPERM") == []


def test_loops_of_many_threads_warn_once() -> None:
    # A slow handler, so that the threads overlap.
    script = """
        import logging, threading, time, uringloop

        class Slow(logging.Handler):
            def emit(self, record):
                time.sleep(0.02)
                print(record.levelname)

        logging.getLogger("uringloop").addHandler(Slow())
        together = threading.Barrier(8)

        def use():
            together.wait()
            uringloop.Loop().close()

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    """
    lines = seccomp.lines_of(script, under="EPERM", URINGLOOP_WARN_FALLBACK="1")
    assert lines == ["WARNING"]


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ("", {"URINGLOOP_WARN_FALLBACK": "0"}),
        ("warn_fallback=False", {}),
        ("backend='soft'", {}),
        ("", {"URINGLOOP_BACKEND": "soft"}),
    ],
)
def test_warning_can_be_silenced(options: str, variables: dict[str, str]) -> None:
    script = f"import uringloop; uringloop.Loop({options}).close()"
    assert warnings_of(script, "EPERM", **variables) == []


def test_silenced_loop_leaves_the_warning_to_the_next_loop() -> None:
    script = "from uringloop import Loop; Loop(warn_fallback=False).close(); Loop().close()"
    assert len(warnings_of(script, "EPERM")) == 1


@on_io_uring
def test_io_uring_logs_no_warning() -> None:
    assert warnings_of(LOOPS, None) == []


FORKS = """
import os, sys
import uringloop
from uringloop import policy

{before}
for _ in range(3):
    child = os.fork()
    if not child:
        uringloop.Loop().close()
        uringloop.Loop().close()
        sys.stderr.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize(
    ("before", "lines"),
    [("uringloop.Loop().close()", 1), ("policy.ask_kernel()", 1), ("", 3)],
)
def test_forked_children_do_not_repeat_the_warning(before: str, lines: int) -> None:
    assert len(warnings_of(FORKS.format(before=before), "EPERM")) == lines


def test_ask_kernel_does_not_warn_when_the_ring_was_chosen() -> None:
    script = "from uringloop import policy; policy.ask_kernel()"
    assert warnings_of(script, "EPERM", URINGLOOP_BACKEND="soft") == []
    caught = f"try: {script}\nexcept PermissionError: pass"
    assert warnings_of(caught, "EPERM", URINGLOOP_BACKEND="io_uring") == []


@each_ring
def test_repr_names_the_ring(backend: Backend) -> None:
    with contextlib.closing(uringloop.Loop(backend=backend)) as loop:
        assert repr(loop) == (
            f"<Loop running=False closed=False debug={loop.get_debug()} backend={backend}>"
        )
