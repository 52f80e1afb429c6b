"""What the tests of the software ring share."""

from __future__ import annotations

import contextlib
import os
import resource
import textwrap
from collections.abc import Iterator

from support import seccomp


def output(script: str) -> str:
    """Run *script* in a process of its own, which must end well, and return its output."""
    done = seccomp.run("-c", textwrap.dedent(script), URINGLOOP_BACKEND="soft")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@contextlib.contextmanager
def room_for(files: int) -> Iterator[None]:
    """Let this process open so many more descriptors, and none beyond."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The lowest free number, which the next one gets, bounds them.
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
