"""Why a kernel refuses a ring: an error that names the cause, and what to do about it."""

from __future__ import annotations

import errno
import os

SYSCTL = "/proc/sys/kernel/io_uring_disabled"
STATUS = "/proc/self/status"

# The first kernel with DEFER_TASKRUN, and with it the rules this loop is built on.
KERNEL_MIN = "6.1"


def explained(exc: OSError) -> OSError:
    """Return *exc* with the cause in its message, the same class and errno."""
    return type(exc)(exc.errno, f"{exc.strerror}: {_cause(exc.errno or 0)}")


def _cause(error: int) -> str:
    if error == errno.ENOSYS:
        return (
            "this kernel has no io_uring, or a seccomp profile or sandbox hides it "
            f"(seccomp mode {_seccomp_mode()})"
        )
    if error in (errno.EPERM, errno.EACCES):
        disabled = _read(SYSCTL)
        if disabled not in (None, "0"):
            return (
                f"io_uring is switched off (kernel.io_uring_disabled = {disabled}); "
                "sysctl kernel.io_uring_disabled=0 allows it"
            )
        return (
            "a security policy forbids io_uring, in containers most often the seccomp profile "
            f"(seccomp mode {_seccomp_mode()}); allow io_uring_setup, io_uring_enter and "
            "io_uring_register there"
        )
    if error == errno.EINVAL:
        return f"kernel {os.uname().release} is too old, {KERNEL_MIN} is the oldest that serves"
    if error == errno.ENOMEM:
        return "not enough memory, or RLIMIT_MEMLOCK or the memory cgroup is exhausted"
    if error in (errno.EMFILE, errno.ENFILE):
        return "too many open files (RLIMIT_NOFILE)"
    return "io_uring can not be used here"


def _seccomp_mode() -> str:
    for line in (_read(STATUS) or "").splitlines():
        if line.startswith("Seccomp:"):
            return line.split()[1]
    return "unknown"


def _read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None
