"""The system calls that a sandbox may refuse to a loop, and what takes their place.

The table has the calls that asyncio's loops or Python itself need not make, and those without which
there is no loop. A seccomp filter refuses a call with EPERM or ENOSYS; an old kernel lacks it.
`python -m uringloop.doctor` and `docs/reference/sandboxes.md` show the table, and the tests refuse
one row after the other.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from uringloop._ring import backends, features

# What `features.answer_to_call` returns for a call that kills the process.
KILLED = -1


@dataclass(frozen=True)
class SystemCall:
    """A row of the table."""

    name: str
    # What the loop does with the call.
    use: str
    # The calls any one of which takes its place; `without` describes other ways.
    instead: tuple[str, ...]
    # What happens where the call and those in its place are refused.
    without: str


SOFTWARE_RING = "the loop is on the software ring"

# In the order of the document.
TABLE = (
    SystemCall("io_uring_setup", "makes a ring of the kernel", (), SOFTWARE_RING),
    SystemCall("io_uring_enter", "submits operations and waits", (), SOFTWARE_RING),
    SystemCall(
        "io_uring_register",
        "restricts and enables a ring, registers rings of buffers",
        (),
        SOFTWARE_RING,
    ),
    SystemCall("madvise", "keeps rings out of forked children", (), SOFTWARE_RING),
    SystemCall(
        "socketpair",
        "tries quiet sends",
        (),
        "each send has a completion (`quiet_sends` is absent)",
    ),
    SystemCall("epoll_create1", "watches descriptors", (), "there is no loop"),
    SystemCall(
        "epoll_ctl",
        "watches descriptors",
        (),
        "there is no software ring; on io_uring `add_reader` fails",
    ),
    SystemCall(
        "epoll_wait",
        "the sleep of the software ring; events of `add_reader`",
        ("epoll_pwait", "epoll_pwait2"),
        "a run of the software ring ends with the error",
    ),
    SystemCall(
        "epoll_pwait2",
        "what `epoll_wait` does, with timeouts in nanoseconds",
        ("epoll_wait", "epoll_pwait"),
        "a run of the software ring ends with the error",
    ),
    SystemCall(
        "eventfd2", "lets other threads wake the loop", ("timerfd_create",), "there is no loop"
    ),
    SystemCall("accept4", "accepts connections", (), "servers report the refusal every second"),
    SystemCall(
        "recvmsg",
        "receives large messages, and datagrams on the software ring",
        (),
        "`recvfrom` takes its place",
    ),
    SystemCall(
        "sendmsg", "sends several buffers at once", (), "`sendto` takes its place, for one buffer"
    ),
    SystemCall(
        "pipe2",
        "tells the loop of signals; pipes of child processes",
        (),
        "`socketpair` takes its place for signals; pipes fail, as Python's do",
    ),
    SystemCall("pidfd_open", "notices the end of a child", (), "a thread waits for each child"),
    SystemCall(
        "waitid", "asks how a child has ended", ("wait4",), "the end of a child is not noticed"
    ),
    SystemCall("statx", "asks for facts about files", (), "`fstatat` takes its place"),
    SystemCall("openat2", "opens cached paths at once", (), "the ring opens them"),
    SystemCall("statmount", "finds out which files are local", (), "the ring opens them"),
    SystemCall("preadv2", "reads cached data at once", (), "the ring reads it"),
    SystemCall("pwritev2", "writes to the cache at once", (), "the ring writes it"),
    SystemCall("prlimit64", "lets the doctor show limits", (), "the doctor shows no limits"),
    SystemCall("uname", "lets messages name the kernel", (), "/proc takes its place"),
)

BY_NAME = {call.name: call for call in TABLE}


def is_refused(name: str) -> bool:
    """Return whether a sandbox refuses the system call *name* to this process, or kills it for it.

    A child process makes the call, with arguments that do nothing.
    """
    answer = features.answer_to_call(name)
    if answer == errno.ENOSYS:
        # If there is no filter, the kernel is too old for the call.
        return backends.seccomp_mode() != "0"
    return answer == KILLED or answer in backends.POLICIES


def advice() -> list[str]:
    """Return one line for each call that is refused here, without those of io_uring."""
    lines = []
    for call in TABLE:
        if call.name.startswith("io_uring") or not is_refused(call.name):
            continue
        instead = next((name for name in call.instead if not is_refused(name)), None)
        effect = call.without if instead is None else f"`{instead}` takes its place"
        lines.append(f"the system call {call.name} is refused here: {effect}")
    return lines
