"""The child processes of this process."""

from __future__ import annotations

from uringloop._testing import proc


def is_zombie(pid: int) -> bool:
    """Return whether a child has ended, and waits to be reaped."""
    try:
        # The name, in parentheses, may contain anything.
        return proc.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def running() -> set[int]:
    """Return the process identifiers of the children that run; none where the kernel is silent."""
    found: set[int] = set()
    for thread in proc.names("/proc/self/task"):
        try:
            found.update(map(int, proc.read(f"/proc/self/task/{thread}/children").split()))
        except OSError:
            # The thread has ended, or the kernel was built without this file.
            continue
    return {pid for pid in found if not is_zombie(pid)}
