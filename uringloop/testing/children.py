"""The child processes of this process."""

from __future__ import annotations

import contextlib
import sys

from uringloop.testing import proc

# Where multiprocessing keeps the identifiers of its own processes, once it has started them.
HELPERS = (
    ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
    ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
)


def is_zombie(pid: int) -> bool:
    """Return whether a child has ended, and waits to be reaped."""
    try:
        # The name, in parentheses, may contain anything.
        return proc.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def helpers() -> set[int | None]:
    """Return the processes that multiprocessing keeps: they do nothing of their own accord."""
    found = set()
    for module, keeper, pid in HELPERS:
        found.add(getattr(getattr(sys.modules.get(module), keeper, None), pid, None))
    return found


def files(pid: int) -> set[str]:
    """Return the kernel's names of the files that a child has open; none if they are hidden."""
    found = set()
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for fd in proc.names(folder):
            # It may have been closed meanwhile.
            with contextlib.suppress(OSError):
                found.add(proc.target(f"{folder}/{fd}"))
    return found


def running() -> set[int]:
    """Return the process identifiers of the children that run; none if the kernel has no list."""
    found: set[int] = set()
    for thread in proc.names("/proc/self/task"):
        try:
            found.update(map(int, proc.read(f"/proc/self/task/{thread}/children").split()))
        except OSError:
            # The thread has ended, or the kernel was built without this file.
            continue
    return {pid for pid in found if not is_zombie(pid)}
