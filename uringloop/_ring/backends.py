"""Which ring a loop gets, and why a kernel refuses one: the cause, and what to do about it.

A process that does not get io_uring, though it has not asked for the software ring, logs one
warning. Without any configuration of logging Python writes it to stderr.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from typing import Final, Literal

from uringloop._ring import features

# Chooses for all loops that are made without `backend=`.
VARIABLE = "URINGLOOP_BACKEND"
# Names of features, with commas between them, that are not to be used.
DISABLE_VARIABLE = "URINGLOOP_DISABLE"
# Set to 0, it keeps loops from warning that they are not on io_uring.
WARN_VARIABLE = "URINGLOOP_WARN_FALLBACK"
AUTO: Final = "auto"
IO_URING: Final = "io_uring"
SOFT: Final = "soft"
# What a loop may be asked to be on, and what it can be on.
Choice = Literal["auto", "io_uring", "soft"]
Backend = Literal["io_uring", "soft"]
BACKENDS: tuple[Choice, ...] = (AUTO, IO_URING, SOFT)

# What the kernels, sandboxes and filters that have no ring for us answer. A lack of descriptors is
# not among them: the software ring needs some too.
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
USERS = "/proc/self/uid_map"
# Numbers of capabilities, in linux/capability.h.
CAP_IPC_LOCK = 14
CAP_SYS_ADMIN = 21
CAP_SYS_RESOURCE = 24

# The first kernel with DEFER_TASKRUN, and with it the rules this loop is built on.
KERNEL_MIN = (6, 1)

# What a container's profile has to let through.
ALLOW = "allow io_uring_setup, io_uring_enter and io_uring_register there"

# What a loop may find no room for, on either ring.
LACKS = {
    errno.EAGAIN: "this user has all the threads it may have; `ulimit -u` gives more",
    errno.ENOMEM: "not enough memory; a larger limit gives more (the cgroup's, `ulimit -v`, or, "
    "for io_uring without CAP_IPC_LOCK, `ulimit -l`)",
    errno.EMFILE: "this process has all the descriptors it may have; `ulimit -n` gives more",
    errno.ENFILE: "this machine has all the files open it may have; sysctl fs.file-max gives more",
}
OTHERWISE = "io_uring can not be used here; `python -m uringloop.doctor` tells more"

logger = logging.getLogger("uringloop")

# Why the kernel has refused a ring to this process: it is asked only once, and warned of once. Both
# are inherited by a fork: the workers of a server that has warned say nothing.
_refusal: str | None = None
_warned = False
_lock = threading.Lock()


def wanted(backend: str | None) -> tuple[Choice, str]:
    """Return which of BACKENDS is wanted, and by what. Raises ValueError for any other."""
    name, source = "backend", "backend="
    if backend is None:
        name = source = VARIABLE
        backend = os.environ.get(VARIABLE) or AUTO
    for choice in BACKENDS:
        if backend == choice:
            return choice, f"asked for by {source}"
    raise ValueError(f"{name}={backend!r} is none of {', '.join(BACKENDS)}")


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


def is_refusal(exc: OSError) -> bool:
    """Whether the kernel has no ring for a loop that the software ring may well be there for."""
    return exc.errno in REFUSALS


def refuse(exc: OSError, lasting: bool) -> str:
    """Take note that the kernel has refused a ring, and return why.

    One that is not *lasting*, of a ring with options that others need not have, is for this loop.
    Nor is a lack of memory, once there was enough: what a user may lock, for rings too, is shared
    by all of the user's processes.
    """
    global _refusal
    if exc.errno == errno.ENOMEM and features.kernel_has_served():
        lasting = False
    reason = reason_of(exc)
    if lasting:
        _refusal = reason
    return reason


def ask() -> None:
    """Ask the kernel for a ring, before there is a loop.

    A server calls this before it forks its workers: they inherit the answer, so that the server
    logs one warning, and not each worker its own.
    """
    if wanted(None)[0] != AUTO or _refusal is not None:
        return
    try:
        features.report(kernel=True)
    except OSError as exc:
        if is_refusal(exc):
            fallen_back(refuse(exc, lasting=True))


def fallen_back(reason: str) -> None:
    """Log a warning that a loop begins on the software ring."""
    warn(f"event loops run on uringloop's software ring (epoll), not on io_uring: {reason}")


def fallen_over(error: int, call: str) -> None:
    """Log a warning that a running loop has changed to the software ring."""
    warn(f"an event loop continues on uringloop's software ring (epoll): {fall(error, call)}")


def fallen_over_quietly(error: int, call: str) -> None:
    """Do nothing: the program has asked for no warning."""


def fall(error: int, call: str) -> str:
    """Return why a running loop has lost the kernel's ring, when *call* ended with *error*."""
    return f"{call} was refused while the loop ran: {reason_of(OSError(error, os.strerror(error)))}"


def warn(message: str) -> None:
    """Log *message*, once in a process, and what to do with it."""
    global _warned
    if os.environ.get(WARN_VARIABLE) == "0":
        return
    with _lock:
        first, _warned = not _warned, True
    if first:
        logger.warning(
            "%s (`python -m uringloop.doctor` tells more; %s=0 silences this warning)",
            message,
            WARN_VARIABLE,
        )


def explained(exc: OSError) -> OSError:
    """Return *exc* with the cause in its message, the same class and errno."""
    return type(exc)(exc.errno, reason_of(exc))


def reason_of(exc: OSError) -> str:
    return f"{exc.strerror}: {cause(exc.errno or 0)}"


def described(backend: Backend, reason: str) -> str:
    """Return what a worker logs about its loop at its start."""
    return f"Event loop: uringloop on {backend} ({reason})"


def remedy_in(reason: str) -> str | None:
    """Return what somebody can do about a *reason* that `reason_of` has given."""
    return reason.partition("; ")[2] or None


def cause(error: int) -> str:
    """Return why the kernel refuses a ring, in one sentence whose end names the remedy."""
    if error == errno.ENOSYS:
        return (
            "this kernel has no io_uring, or a seccomp profile or sandbox hides it "
            f"(seccomp mode {seccomp_mode()}); {ALLOW}"
        )
    if error in (errno.EPERM, errno.EACCES):
        return switched_off() or (
            "a security policy forbids io_uring, in containers most often the seccomp profile "
            f"(seccomp mode {seccomp_mode()}); {ALLOW}"
        )
    if error == errno.EINVAL and release() < KERNEL_MIN:
        return (
            f"kernel {os.uname().release} is too old; "
            f"a kernel from {'.'.join(map(str, KERNEL_MIN))} on has what it takes"
        )
    if error in (errno.EINVAL, errno.EOPNOTSUPP):
        return (
            f"a sandbox has no io_uring, or not all of it (seccomp mode {seccomp_mode()}); {ALLOW}"
        )
    return LACKS.get(error, OTHERWISE)


def switched_off() -> str | None:
    """Return the cause if it is the kernel's switch, which spares who is privileged at 1."""
    value = read(SYSCTL)
    if value in (None, "0") or (value == "1" and is_spared()):
        return None
    remedy = "sysctl kernel.io_uring_disabled=0 allows it"
    if value == "1":
        remedy += ", and to a group kernel.io_uring_group"
    if seccomp_mode() == "2":
        remedy += "; if it is refused then, it is by a seccomp profile, and " + ALLOW
    return f"io_uring is switched off (kernel.io_uring_disabled = {value}); {remedy}"


def is_spared() -> bool:
    """Whether kernel.io_uring_disabled = 1 means others, as `io_uring_allowed` of Linux has it."""
    group = read(GROUP_SYSCTL)
    if group is not None and int(group) in {os.getegid(), *os.getgroups()}:
        return True
    return is_capable(CAP_SYS_ADMIN)


def is_capable(capability: int) -> bool:
    """Whether the kernel grants this process what takes a *capability* of the whole machine."""
    # Root of a container with users of its own is root there only.
    if (read(USERS) or "").split() != ["0", "0", str(2**32 - 1)]:
        return False
    return int(status_of("CapEff") or "0", 16) >> capability & 1 == 1


def release() -> tuple[int, ...]:
    """Return the kernel's version: (6, 12) of 6.12.107+deb13-cloud-amd64."""
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return tuple(map(int, numbers.groups())) if numbers else (0, 0)


def seccomp_mode() -> str:
    return status_of("Seccomp") or "unknown"


def status_of(name: str) -> str | None:
    """Return a value of this process's status, as proc(5) names it."""
    for line in (read(STATUS) or "").splitlines():
        if line.startswith(f"{name}:"):
            return line.split()[1]
    return None


def read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None
