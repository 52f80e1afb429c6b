"""The sysctl kernel.io_uring_disabled: a few tests change it for a moment, all others rely on it.

Each test holds a shared lock on its file; a test that changes it holds the lock alone. So tests may
run in several processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from uringloop._ring import backends

SYSCTL = Path(backends.SYSCTL)

# The file whose lock the running test holds; empty where the kernel has no such file (before 6.6).
_held: list[io.TextIOWrapper] = []


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Keep tests of other processes from changing the sysctl during the block."""
    if not SYSCTL.exists():
        yield
        return
    with SYSCTL.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        _held.append(file)
        try:
            yield
        finally:
            _held.remove(file)


def may_switch() -> bool:
    """Return whether this process may change the sysctl, by writing its present value."""
    try:
        SYSCTL.write_text(SYSCTL.read_text())
    except OSError:
        return False
    return os.geteuid() == 0


@contextlib.contextmanager
def switched(value: str) -> Iterator[None]:
    """Set the sysctl for the block, which must be short; signals that end a run are blocked."""
    (file,) = _held
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        before = SYSCTL.read_text()
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
            SYSCTL.write_text(value)
            yield
        finally:
            SYSCTL.write_text(before)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        fcntl.flock(file, fcntl.LOCK_SH)
