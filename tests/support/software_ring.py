"""Helpers of the tests of the software ring."""

from __future__ import annotations

import contextlib
import os
import resource
import textwrap
from collections.abc import Iterator

from support import seccomp


def output(script: str) -> str:
    """Run *script* in a child, which must exit with 0 and an empty stderr; return its output."""
    done = seccomp.run("-c", textwrap.dedent(script), URINGLOOP_BACKEND="soft")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@contextlib.contextmanager
def room_for(files: int) -> Iterator[None]:
    """Limit this process to *files* more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit bounds descriptor numbers, and the next file gets the lowest free one.
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
