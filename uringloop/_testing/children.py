"""The child processes of this process."""

from __future__ import annotations

import os


def is_zombie(pid: int) -> bool:
    """Return whether a child has ended, and waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name, in parentheses, may contain anything.
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def running() -> set[int]:
    """Return the process identifiers of the children that run; none where the kernel is silent."""
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children") as file:
                found.update(map(int, file.read().split()))
        except OSError:
            # The thread has ended, or the kernel was built without this file.
            continue
    return {pid for pid in found if not is_zombie(pid)}
