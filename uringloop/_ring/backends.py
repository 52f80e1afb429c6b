"""Choose the ring of a loop, and explain why a kernel refuses one: the cause and the remedy.

A process that gets the software ring without having requested it logs one warning. If logging is
not configured, Python writes the warning to stderr.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from typing import Final, Literal

from uringloop._cpython import stdlib
from uringloop._ring import features

# Environment variable: comma-separated names of features of the ring, and of parts of the standard
# library, to disable.
DISABLE_VARIABLE = "URINGLOOP_DISABLE"
AUTO: Final = "auto"
IO_URING: Final = "io_uring"
SOFT: Final = "soft"
# The backends that a caller can request, and those that a loop can run on.
Choice = Literal["auto", "io_uring", "soft"]
Backend = Literal["io_uring", "soft"]
BACKENDS: tuple[Choice, ...] = (AUTO, IO_URING, SOFT)

NOTHING: frozenset[str] = frozenset()

# Errors by which kernels, sandboxes and seccomp filters refuse a ring. EMFILE and ENFILE are not
# among them: the software ring needs descriptors, too.
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

# Errors by which a seccomp filter or another policy refuses a system call.
POLICIES = frozenset((errno.EACCES, errno.ENOSYS, errno.EPERM))

SYSCTL = "/proc/sys/kernel/io_uring_disabled"
GROUP_SYSCTL = "/proc/sys/kernel/io_uring_group"
STATUS = "/proc/self/status"
USERS = "/proc/self/uid_map"
RELEASE = "/proc/sys/kernel/osrelease"
# Capability numbers, from linux/capability.h.
CAP_IPC_LOCK = 14
CAP_SYS_ADMIN = 21
CAP_SYS_RESOURCE = 24

# The first kernel with DEFER_TASKRUN, whose rules this loop relies on.
KERNEL_MIN = (6, 1)

# The system call that makes a ring of the kernel.
SETUP = "io_uring_setup"
# The names of io_uring's operations and registrations begin with this; a filter for them, which
# exists from Linux 7.0 on, can refuse one.
OPERATION = "IORING_"
# The system calls that a container's seccomp profile must allow.
ALLOW = "allow io_uring_setup, io_uring_enter and io_uring_register there"

# Resources that a loop may run out of on either ring, with the remedy.
LACKS = {
    errno.EAGAIN: "this user can start no more threads; `ulimit -u` gives more",
    errno.ENOMEM: "not enough memory; a larger limit gives more (the cgroup's, `ulimit -v`, "
    "`ulimit -d`, or, for io_uring without CAP_IPC_LOCK, `ulimit -l`)",
    errno.EMFILE: "this process has no descriptors left; `ulimit -n` gives more",
    errno.ENFILE: "this machine can open no more files; sysctl fs.file-max gives more",
}
OTHERWISE = "io_uring cannot be used here; `python -m uringloop.doctor` has details"

logger = logging.getLogger("uringloop")

# The recorded reason of a lasting refusal, and whether the warning has been logged. The kernel is
# asked once and the warning logged once in a process. Forked children inherit both: the workers of
# a server that has logged the warning do not repeat it.
_refusal: str | None = None
_warned = False
_lock = threading.Lock()


def disable_features() -> None:
    """Disable the features that URINGLOOP_DISABLE names. Raises ValueError for an unknown name."""
    value = stdlib.variable(DISABLE_VARIABLE)
    if not value:
        features.disable(NOTHING)
        stdlib.disable(NOTHING)
        return
    names = frozenset(name.strip() for name in value.split(",") if name.strip())
    known_names = (*features.FEATURES, *stdlib.SWITCHES)
    unknown = names.difference(known_names)
    if unknown:
        known = ", ".join(known_names)
        raise ValueError(f"{DISABLE_VARIABLE}: {', '.join(sorted(unknown))} is none of {known}")
    features.disable(names & features.FEATURES.keys())
    stdlib.disable(names & stdlib.SWITCHES.keys())


def known_refusal() -> str | None:
    """Return the recorded reason of a lasting refusal in this process, or None."""
    return _refusal


def is_refusal(exc: OSError) -> bool:
    """Return whether the kernel refuses rings with *exc*; the software ring may then still work."""
    return exc.errno in REFUSALS


def record_refusal(exc: OSError) -> str:
    """Return why the kernel refused a ring, and record the reason if the refusal is lasting.

    ENOMEM is not lasting once a ring has worked in this process: the limit of locked memory, which
    rings count towards, is shared by all processes of the user.
    """
    global _refusal
    reason = reason_of(exc)
    if exc.errno != errno.ENOMEM or not features.kernel_ring_has_worked():
        _refusal = reason
    return reason


def warn_fallback_at_start(reason: str) -> None:
    """Log a warning that a new loop runs on the software ring."""
    warn(f"event loops run on uringloop's software ring (epoll), not on io_uring: {reason}")


def warn_fallback_while_running(error: int, call: str) -> None:
    """Log a warning that a running loop has switched to the software ring."""
    warn(f"an event loop continues on uringloop's software ring (epoll): {fall(error, call)}")


def ignore_fallback(error: int, call: str) -> None:
    """Do nothing: the warning is disabled (`warn_fallback=False`)."""


def fall(error: int, call: str) -> str:
    """Return why a running loop lost the kernel's ring: *call* failed with *error*."""
    return f"{call} was refused while the loop ran: {os.strerror(error)}: {cause(error, call)}"


def warn(message: str) -> None:
    """Log *message* once in a process, with a hint how to learn more and how to silence it."""
    global _warned
    with _lock:
        first, _warned = not _warned, True
    if first:
        logger.warning(
            "%s (`python -m uringloop.doctor` has details; "
            "URINGLOOP_WARN_FALLBACK=0 silences this warning)",
            message,
        )


def with_cause(exc: OSError) -> OSError:
    """Return *exc* with the cause in its message, of the same class and errno."""
    return type(exc)(exc.errno, reason_of(exc))


def reason_of(exc: OSError) -> str:
    # `os_error` in _kernel/errors.pxd puts the name of the call behind the reason.
    named = re.search(r"\((\w+)\)$", exc.strerror or "")
    return f"{exc.strerror}: {cause(exc.errno or 0, named[1] if named else SETUP)}"


def startup_line(backend: Backend, reason: str) -> str:
    """Return the line that a worker logs about its loop at start-up."""
    return f"Event loop: uringloop on {backend} ({reason})"


def remedy_in(reason: str) -> str | None:
    """Return the remedy in a *reason* that `reason_of` returned, or None."""
    return reason.partition("; ")[2] or None


def cause(error: int, call: str = SETUP) -> str:
    """Return why *call*, which a ring needs, has failed, in one sentence with the remedy."""
    if call.startswith(OPERATION):
        return f"a filter that this process has inherited refuses {call}; allow {call} there"
    if not call.startswith("io_uring"):
        return cause_beside_io_uring(error, call)
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
            f"kernel {kernel()} is too old; "
            f"a kernel from {'.'.join(map(str, KERNEL_MIN))} on supports what the loop needs"
        )
    if error in (errno.EINVAL, errno.EOPNOTSUPP):
        return (
            f"a sandbox has no io_uring, or not all of it (seccomp mode {seccomp_mode()}); {ALLOW}"
        )
    return LACKS.get(error, OTHERWISE)


def cause_beside_io_uring(error: int, call: str) -> str:
    """Return why *call*, none of io_uring's, has failed: no policy for io_uring is the cause."""
    if error in POLICIES:
        return (
            f"a seccomp profile or another sandbox refuses the system call {call} "
            f"(seccomp mode {seccomp_mode()}); allow {call} there"
        )
    return LACKS.get(error, f"{call} fails here; `python -m uringloop.doctor` has details")


def switched_off() -> str | None:
    """Return the cause if it is kernel.io_uring_disabled, which at 1 exempts privileged users."""
    value = read(SYSCTL)
    if value in (None, "0") or (value == "1" and is_spared()):
        return None
    remedy = "sysctl kernel.io_uring_disabled=0 allows it"
    if value == "1":
        remedy += ", and kernel.io_uring_group allows it to a group"
    if seccomp_mode() == "2":
        remedy += "; if it is still refused then, a seccomp profile forbids it: " + ALLOW
    return f"io_uring is switched off (kernel.io_uring_disabled = {value}); {remedy}"


def is_spared() -> bool:
    """Return whether io_uring_disabled = 1 exempts this process (Linux: `io_uring_allowed`)."""
    group = read(GROUP_SYSCTL)
    if group is not None and int(group) in {os.getegid(), *os.getgroups()}:
        return True
    return is_capable(CAP_SYS_ADMIN)


def is_capable(capability: int) -> bool:
    """Return whether this process has a *capability* in the initial user namespace."""
    # In a container with a user namespace of its own, root has its capabilities only there.
    if (read(USERS) or "").split() != ["0", "0", str(2**32 - 1)]:
        return False
    return int(status_of("CapEff") or "0", 16) >> capability & 1 == 1


def kernel() -> str:
    """Return the name of the kernel's release, as `uname -r` does."""
    try:
        return os.uname().release
    except OSError:
        # A sandbox refuses uname(2).
        return read(RELEASE) or "unknown"


def release() -> tuple[int, ...]:
    """Return the kernel's version: (6, 12) of 6.12.107+deb13-cloud-amd64."""
    numbers = re.match(r"(\d+)\.(\d+)", kernel())
    return tuple(map(int, numbers.groups())) if numbers else (0, 0)


def seccomp_mode() -> str:
    return status_of("Seccomp") or "unknown"


def status_of(name: str) -> str | None:
    """Return a field of /proc/self/status, by its name in proc(5), or None."""
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
