"""The cost of a process: nanoseconds on CPU, entries into the kernel, memory.

The load generator's process reads these from outside: nothing extra runs in the measured process.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from pathlib import Path

# The mount point of tracefs since Linux 4.1, and its place in debugfs.
_TRACING = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "riscv64": 241}
# Numbers of linux/perf_event.h.
_PERF_TYPE_TRACEPOINT = 2
_PERF_FLAG_FD_CLOEXEC = 8
# Bit 1 of the flags of perf_event_attr: threads that are started later count as well.
_INHERIT = 2
# The first 64 bytes of perf_event_attr (PERF_ATTR_SIZE_VER0): type, size, config, sample_period,
# sample_type, read_format, flags, wake-ups and breakpoint.
_EVENT_ATTRIBUTES = struct.Struct("=IIQQQQQQQ")


def cpu_ns(pid: int) -> int:
    """Return the nanoseconds that all threads of *pid* have run, including ended threads.

    The kernel's clock of another process (clock_getcpuclockid(3)) also counts what a thread has
    run since its last switch; /proc/PID/schedstat lags by up to a scheduler tick.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


def _memory_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no {name}")


def peak_rss_bytes(pid: int) -> int:
    """Return the largest resident memory that *pid* has had."""
    return _memory_bytes(pid, "VmHWM")


def rss_bytes(pid: int) -> int:
    """Return the present resident memory of *pid*."""
    return _memory_bytes(pid, "VmRSS")


def _tracepoint_id() -> int:
    for root in _TRACING:
        path = root / "events/raw_syscalls/sys_enter/id"
        try:
            return int(path.read_text())
        except PermissionError:
            raise
        except OSError:
            continue
    raise OSError("tracefs is not mounted")


class KernelEntries:
    """Counts the system calls of all threads of a process; raises OSError if it cannot."""

    def __init__(self, pid: int) -> None:
        self._fds: dict[int, int] = {}
        attributes = _EVENT_ATTRIBUTES.pack(
            _PERF_TYPE_TRACEPOINT, _EVENT_ATTRIBUTES.size, _tracepoint_id(), 0, 0, 0, _INHERIT, 0, 0
        )
        try:
            # A thread may start while the others are being opened.
            while new := self._threads(pid) - self._fds.keys():
                for thread in new:
                    self._fds[thread] = self._open(attributes, thread)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _threads(pid: int) -> set[int]:
        return {int(name) for name in os.listdir(f"/proc/{pid}/task")}

    @staticmethod
    def _open(attributes: bytes, thread: int) -> int:
        number = _PERF_EVENT_OPEN.get(platform.machine())
        if number is None:
            raise OSError(f"perf_event_open is not known for {platform.machine()}")
        libc = ctypes.CDLL(None, use_errno=True)
        fd: int = libc.syscall(number, attributes, thread, -1, -1, _PERF_FLAG_FD_CLOEXEC)
        if fd < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"perf_event_open: {os.strerror(error)}")
        return fd

    def total(self) -> int:
        """Return how many system calls were entered since the counter was made."""
        return sum(struct.unpack("Q", os.read(fd, 8))[0] for fd in self._fds.values())

    def close(self) -> None:
        """Stop counting."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
