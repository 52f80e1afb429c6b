"""Set-up of every process of the benchmark: limits, and an end when its parent ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal

# Descriptors that a process needs in addition to its connections: ring, listener, pipes, modules.
_SPARE_DESCRIPTORS = 64

# Enough for the most connections of a row; the limit that many containers have is lower.
_DESCRIPTORS = 1 << 16


def raise_descriptor_limit() -> int:
    """Raise the limit of open files to the hard limit, and a low hard limit as well; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Only privileged processes may raise the hard limit.
    with contextlib.suppress(ValueError):
        most = max(hard, _DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        return most
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connections_max() -> int:
    """Return how many connections the limit of open files leaves room for."""
    return raise_descriptor_limit() - _SPARE_DESCRIPTORS


def end_with_parent() -> None:
    """Let the kernel end this process when the other end of its standard input closes.

    The parent holds that end, and the kernel closes it however the parent dies. A thread that waits
    for EOF would do as well, but a second thread makes every descriptor look-up of the measured
    server slower. SIGIO costs nothing until it arrives, and its default action is to terminate.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    # The parent may have died before O_ASYNC was set.
    if select.select([0], [], [], 0)[0]:
        raise SystemExit(1)
