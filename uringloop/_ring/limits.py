"""The resource limits that a program on the loop may run into, and how to raise them.

This module reads limits and changes none. Its figures are those of `docs/about/memory.md`.
"""

from __future__ import annotations

import os
import resource

from uringloop._ring import backends

# With this limit or less, a server with some hundred connections may run out of descriptors.
DESCRIPTORS_LOW = 1024
# Locked memory that Linux 6.18 charges for the ring of a loop, and the number of loops below which
# the limit counts as low: all processes of the user share it, even if this one has few loops.
RING_BYTES = 48 * 1024
LOOPS_LOW = 16
# Threads that a loop may start: the kernel's workers for files, and those of asyncio's executor.
THREADS_LOW = 64
# What a loop with busy connections and datagram endpoints needs, with the Python program around it.
MEMORY_LOW = 64 * 2**20

CGROUP = "/proc/self/cgroup"
CGROUPS = "/sys/fs/cgroup"


def limit_text(kind: int) -> str:
    """Return a limit as the doctor shows it: "SOFT of HARD"."""
    try:
        both = resource.getrlimit(kind)
    except OSError:
        return "unknown: prlimit64 is refused"
    return " of ".join("unlimited" if n == resource.RLIM_INFINITY else str(n) for n in both)


def soft(kind: int) -> int | None:
    """Return the soft limit, or None if there is none or a sandbox hides it."""
    try:
        value = resource.getrlimit(kind)[0]
    except OSError:
        return None
    return None if value == resource.RLIM_INFINITY else value


def cgroup(controller: str, *names: str) -> int | None:
    """Return the first number in the files *names* of this process's cgroup, or None.

    Reads cgroups of version 2, or those of *controller* of version 1. In a container the path of
    the cgroup may be the host's, which the container does not see; the container's own cgroup is
    then at the root.
    """
    for line in (backends.read(CGROUP) or "").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or controller in controllers.split(","):
            root = CGROUPS if number == "0" else os.path.join(CGROUPS, controller)
            for folder in (f"{root}{path.rstrip('/')}", root):
                for name in names:
                    value = backends.read(f"{folder}/{name}")
                    if value is not None and value.isdecimal():
                        return int(value)
    return None


def memory() -> int | None:
    """Return the memory limit of this process's cgroup in bytes, or None for no limit."""
    most = cgroup("memory", "memory.max", "memory.limit_in_bytes")
    # Version 1 shows a number near the maximum where no limit is set.
    return most if most is not None and most < 1 << 60 else None


def loops_of_locked_memory() -> int | None:
    """Return for how many loops the limit of locked memory suffices, or None for no limit."""
    most = soft(resource.RLIMIT_MEMLOCK)
    if most is None or backends.is_capable(backends.CAP_IPC_LOCK):
        return None
    return most // RING_BYTES


def threads_left() -> tuple[int, str] | None:
    """Return how many threads may still be started, and what raises that; None for no limit.

    The threads of the user's other processes, which `ulimit -u` counts too, are not known.
    """
    bounds = []
    most = soft(resource.RLIMIT_NPROC)
    if most is not None and not backends.is_capable(backends.CAP_SYS_RESOURCE):
        bounds.append((most, "`ulimit -u` or the service's LimitNPROC="))
    most = cgroup("pids", "pids.max")
    if most is not None:
        left = most - (cgroup("pids", "pids.current") or 0)
        bounds.append((left, "`--pids-limit`, the service's TasksMax= or the cgroup's pids.max"))
    return min(bounds, default=None)


def advice(backend: str) -> list[str]:
    """Return one line for each limit that is low for loops on *backend*, with what raises it."""
    on_io_uring = backend == backends.IO_URING
    lines = []
    loops = loops_of_locked_memory()
    if on_io_uring and loops is not None and loops < LOOPS_LOW:
        lines.append(
            f"little locked memory: enough for {loops} loop{'s' * (loops != 1)} on io_uring, of "
            "all processes of this user together, and the next one gets the software ring: "
            "`ulimit -l`, the service's LimitMEMLOCK= or CAP_IPC_LOCK gives more"
        )
    if on_io_uring and backends.read(backends.SYSCTL) == "1":
        lines.append(
            "kernel.io_uring_disabled = 1: a process that gives up its privileges gets the "
            "software ring for its next loop, unless it is in the group kernel.io_uring_group"
        )
    descriptors = soft(resource.RLIMIT_NOFILE)
    if descriptors is not None and descriptors <= DESCRIPTORS_LOW:
        lines.append("few descriptors: `ulimit -n 65536` or the service's LimitNOFILE= gives more")
    threads = threads_left()
    if threads is not None and threads[0] < THREADS_LOW:
        lines.append(
            f"few threads: {threads[0]} more, and files and executors may want {THREADS_LOW}; "
            f"{threads[1]} gives more"
        )
    most = memory()
    if most is not None and most < MEMORY_LOW:
        lines.append(
            f"little memory: {most >> 20} MiB, of which the receive buffers of a busy loop may "
            "take 33; `--memory`, the service's MemoryMax= or the cgroup's memory.max gives more"
        )
    return lines
