"""Which ring a loop gets, and why a kernel refuses one: the cause, and what to do about it."""

from __future__ import annotations

import errno
import logging
import os

from uringloop._core import features

# Chooses for all loops that are made without `backend=`.
VARIABLE = "URINGLOOP_BACKEND"
# Names of features, with commas between them, that are not to be used.
DISABLE_VARIABLE = "URINGLOOP_DISABLE"
AUTO, IO_URING, SOFT = BACKENDS = ("auto", "io_uring", "soft")

# What the kernels, sandboxes and filters that have no ring for us answer. A lack of descriptors is
# not among them: the software ring needs some too, as it needs memory, and then says so itself.
REFUSALS = frozenset(
    (
        errno.EACCES,
        errno.EINVAL,
        errno.ENOMEM,
        errno.ENOSYS,
        errno.EOPNOTSUPP,
        errno.EPERM,
    )
)

SYSCTL = "/proc/sys/kernel/io_uring_disabled"
GROUP_SYSCTL = "/proc/sys/kernel/io_uring_group"
STATUS = "/proc/self/status"

# The first kernel with DEFER_TASKRUN, and with it the rules this loop is built on.
KERNEL_MIN = "6.1"

# What a container's profile has to let through.
ALLOW = "allow io_uring_setup, io_uring_enter and io_uring_register there"

logger = logging.getLogger("uringloop")

# Why the kernel has refused a ring to this process; it is asked only once.
_refusal: str | None = None


def wanted(backend: str | None) -> tuple[str, str]:
    """Return which of BACKENDS is wanted, and by what. Raises ValueError for any other."""
    name, source = "backend", "backend="
    if backend is None:
        name = source = VARIABLE
        backend = os.environ.get(VARIABLE) or AUTO
    if backend not in BACKENDS:
        raise ValueError(f"{name}={backend!r} is none of {', '.join(BACKENDS)}")
    return backend, f"asked for by {source}"


def disable_features() -> None:
    """Switch off what URINGLOOP_DISABLE names. Raises ValueError for an unknown name."""
    value = os.environ.get(DISABLE_VARIABLE, "")
    names = frozenset(name.strip() for name in value.split(",") if name.strip())
    unknown = names - features.FEATURES.keys()
    if unknown:
        known = ", ".join(features.FEATURES)
        raise ValueError(f"{DISABLE_VARIABLE}: {', '.join(sorted(unknown))} is none of {known}")
    features.disable(names)


def known_refusal() -> str | None:
    """Return why the kernel has refused a ring to a loop of this process, if it has."""
    return _refusal


def refuse(exc: OSError) -> str:
    """Take note that the kernel has refused a ring, and return why; the first is logged."""
    global _refusal
    reason = reason_of(exc)
    if _refusal is None:
        logger.info("using the software ring: %s", reason)
    _refusal = reason
    return reason


def explained(exc: OSError) -> OSError:
    """Return *exc* with the cause in its message, the same class and errno."""
    return type(exc)(exc.errno, reason_of(exc))


def reason_of(exc: OSError) -> str:
    return f"{exc.strerror}: {cause(exc.errno or 0)}"


def cause(error: int) -> str:
    """Return why the kernel refuses a ring, in one sentence that names the remedy."""
    if error == errno.ENOSYS:
        return (
            "this kernel has no io_uring, or a seccomp profile or sandbox hides it "
            f"(seccomp mode {seccomp_mode()}); {ALLOW}"
        )
    if error in (errno.EPERM, errno.EACCES):
        disabled = read(SYSCTL)
        if disabled not in (None, "0"):
            return (
                f"io_uring is switched off (kernel.io_uring_disabled = {disabled}); "
                "sysctl kernel.io_uring_disabled=0 allows it"
            )
        return (
            "a security policy forbids io_uring, in containers most often the seccomp profile "
            f"(seccomp mode {seccomp_mode()}); {ALLOW}"
        )
    if error == errno.EOPNOTSUPP:
        return f"a sandbox has no io_uring (seccomp mode {seccomp_mode()}); {ALLOW}"
    if error == errno.EINVAL:
        return f"kernel {os.uname().release} is too old, {KERNEL_MIN} is the oldest that serves"
    if error == errno.ENOMEM:
        return (
            "not enough memory, of the machine, of the cgroup or of what may be locked; "
            "`ulimit -l unlimited` or a larger group gives more"
        )
    if error in (errno.EMFILE, errno.ENFILE):
        return "too many open files (RLIMIT_NOFILE)"
    return "io_uring can not be used here"


def seccomp_mode() -> str:
    for line in (read(STATUS) or "").splitlines():
        if line.startswith("Seccomp:"):
            return line.split()[1]
    return "unknown"


def read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None
