"""What every process of the benchmark does for itself: limits, and an end with its parent."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def end_with_parent() -> None:
    """Let the kernel end this process when the other end of its standard input closes.

    The parent holds that end, and its death closes it however it dies. A thread that waits for
    the end of the file would do as well, but a second thread makes every descriptor look-up of
    the measured server dearer; SIGIO costs nothing until it comes, and by default it kills.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    # The parent may have died before the kernel was asked to tell.
    if select.select([0], [], [], 0)[0]:
        raise SystemExit(1)
