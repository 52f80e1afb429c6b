"""What the other threads of this process do: whether they may do something by themselves.

A thread that waits for another thread, without a time limit, does nothing by itself. The kernel
tells: /proc/self/task/N/syscall has the number and the arguments of the call that a thread is in,
and "running" if it is in none. A thread that waits for another one with a long time limit is
a watchdog, such as faulthandler's: it counts as blocked.
"""

from __future__ import annotations

import enum
import math
import os
import platform
import struct
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from uringloop.testing import other_loops, peers, proc

if TYPE_CHECKING:
    from uringloop.testing.core import TestingCore


class ThreadState(enum.IntEnum):
    """What threads do; the higher values outweigh the lower."""

    BLOCKED = 0  # they wait for other threads of this process
    SERVES = 1  # one waits, without a time limit, for whoever may come
    WORKS = 2  # one runs, sleeps, waits with a time limit, or for what it has asked for


# The numbers of system calls in which a thread does nothing by itself, unless they have a time
# limit, by machine: futex, poll, ppoll, select, pselect6, epoll_wait, epoll_pwait, epoll_pwait2,
# accept, accept4, io_uring_enter, rt_sigtimedwait.
CALLS = {
    "x86_64": (202, 7, 271, 23, 270, 232, 281, 441, 43, 288, 426, 128),
    "aarch64": (98, None, 73, None, 72, None, 22, 441, 202, 242, 426, 137),
    "riscv64": (98, None, 73, None, 72, None, 22, 441, 202, 242, 426, 137),
}
# The numbers of system calls that read from a descriptor: read, readv, recvfrom, recvmsg.
READING = {"x86_64": (0, 19, 45, 47), "aarch64": (63, 65, 207, 212), "riscv64": (63, 65, 207, 212)}
READS = frozenset(map(str, READING.get(platform.machine(), ())))
# How many arguments every call here has at least.
ARGUMENTS = 3
# For each of CALLS, which argument is the time limit, counted from 1; for io_uring_enter, which one
# has the flags; 0 for a call without a time limit.
LIMITS = (4, 3, 3, 5, 5, 4, 4, 4, 0, 0, 4, 3)
# Arguments that set no limit: a null pointer, or -1 as an int.
NO_LIMIT = ("0x0", "0xffffffff", "0xffffffffffffffff")

_numbers = CALLS.get(platform.machine())
LIMIT_OF = {
    str(number): limit for number, limit in zip(_numbers or (), LIMITS, strict=False) if number
}
FUTEX = str(_numbers[0]) if _numbers else ""
IO_URING_ENTER = "426"
# With this flag of io_uring_enter(2) a structure has the time limit.
IORING_ENTER_EXT_ARG = 8

# Of futex(2): the argument that is the operation, and its values in linux/futex.h. The limit of
# FUTEX_WAIT_BITSET is a time of a clock, that of FUTEX_WAIT a duration.
OPERATION = 2
FUTEX_WAIT_BITSET = 9
FUTEX_COMMANDS = 0x7F
FUTEX_CLOCK_REALTIME = 256
TIMESPEC = struct.Struct("qq")

# A thread that waits for no longer than this may wait for the GIL, and counts as running: CPython
# waits for 5 ms, and then asks for the GIL.
GIL_S = 0.01

# A wait that may last longer than so many seconds is a watchdog's.
WATCHDOG_S = 5.0

# The `syscall` of a thread that is in no system call.
RUNNING = "running\n"

# The threads of software rings for files: the ring itself knows whether they have work.
FILES = "uringloop-files\n"


def left_of(words: list[str]) -> float:
    """Return for how many seconds a thread that is in futex(2) waits at most; 0 if unknown."""
    operation = int(words[OPERATION], 16)
    memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(memory, TIMESPEC.size, int(words[LIMIT_OF[FUTEX]], 16))
    except OSError:
        return 0.0
    finally:
        os.close(memory)
    if len(data) < TIMESPEC.size:
        return 0.0
    seconds, nanoseconds = TIMESPEC.unpack(data)
    limit: float = seconds + nanoseconds * 1e-9
    if operation & FUTEX_COMMANDS != FUTEX_WAIT_BITSET:
        return limit
    clock = time.CLOCK_REALTIME if operation & FUTEX_CLOCK_REALTIME else time.CLOCK_MONOTONIC
    return limit - time.clock_gettime(clock)


def read(name: str, file: str) -> str:
    return proc.read(f"/proc/self/task/{name}/{file}")


def switches_of(name: str) -> str:
    """Return a text that differs after a thread has run; an empty one if it runs, or has ended.

    A thread that was woken, but has no processor yet, still shows the call in which it slept. Here
    it counts as running.
    """
    try:
        status = read(name, "status")
    except OSError:
        return ""
    if "\nState:\tR" in status:
        return ""
    return status.partition("\nvoluntary_ctxt_switches:")[2]


class Call(NamedTuple):
    """The system call that a thread was in when it was looked at."""

    line: str  # its `syscall`
    left_s: float = math.inf  # for how long it waits at most, in futex(2)


def look_at(name: str) -> Call:
    """Return the system call that a thread is in. Raises OSError."""
    line = read(name, "syscall")
    words = line.split()
    if words[0] not in LIMIT_OF and words[0] not in READS:
        return Call(line)
    # It sleeps only if it is asleep at the end, and has not run since the beginning. Only then is
    # the limit, which is on its stack, that of this call.
    switches = switches_of(name)
    before = read(name, "syscall")
    has_limit = words[0] == FUTEX and words[LIMIT_OF[FUTEX]] not in NO_LIMIT
    left_s = left_of(words) if has_limit else math.inf
    after = read(name, "syscall")
    sleeps = switches and switches == switches_of(name) and line == before == after
    return Call(line, left_s) if sleeps and left_s > GIL_S else Call(RUNNING)


def call_of(line: str) -> tuple[str, ...]:
    """Return what identifies the call that a thread is in: its number, arguments, stack and place.

    The registers of arguments that a call does not have keep what was in them.
    """
    words = line.split()
    return (*words[: 1 + ARGUMENTS], *words[-2:])


def state_of(call: Call) -> ThreadState:
    """Return the state of a thread that is in *call*."""
    words = call.line.split()
    limit = LIMIT_OF.get(words[0]) if len(words) > 1 else None
    if limit is None and words[0] in READS and peers.is_own(int(words[1], 16)):
        return ThreadState.BLOCKED
    if limit is None:
        # It runs, or its call ends by itself: a sleep, a read of what it has asked for.
        return ThreadState.WORKS
    if words[0] == IO_URING_ENTER:
        timed = int(words[limit], 16) & IORING_ENTER_EXT_ARG
        return ThreadState.WORKS if timed else ThreadState.SERVES
    if limit and words[limit] not in NO_LIMIT:
        is_watchdog = words[0] == FUTEX and call.left_s > WATCHDOG_S
        return ThreadState.BLOCKED if is_watchdog else ThreadState.WORKS
    return ThreadState.BLOCKED if words[0] == FUTEX else ThreadState.SERVES


class Lagging:
    """The threads that run, and have not had *enough_ns* of a processor since they were first seen.

    On a busy machine a thread may wait for a processor for longer than it works.
    """

    def __init__(self, enough_ns: int) -> None:
        self.enough_ns = enough_ns
        # What each thread had had of a processor when it was first seen to run, in ns.
        self.first: dict[str, int] = {}

    def look(self) -> bool:
        """Return whether there is such a thread."""
        own = str(threading.get_native_id())
        return any(self.lags(name) for name in proc.names("/proc/self/task") if name != own)

    def lags(self, name: str) -> bool:
        try:
            if look_at(name).line != RUNNING:
                return False
            had = int(read(name, "schedstat").split()[0])
        except OSError:
            # It has just ended, or the kernel keeps no such account.
            return False
        return had - self.first.setdefault(name, had) < self.enough_ns


# A thread that has just been started runs, whatever it does afterwards. So a new loop looks at the
# threads that were there before it, up to so many times and at such intervals, until none runs.
SETTLE_LOOKS = 100
SETTLE_S = 0.0005


def calls(left_out: dict[int, TestingCore]) -> dict[str, Call]:
    """Return the system call that each other thread is in, by the number of the thread.

    A thread whose loop for tests has nothing to do is added to *left_out* instead.
    """
    found: dict[str, Call] = {}
    own = threading.get_native_id()
    for name in proc.names("/proc/self/task"):
        thread = int(name)
        loop = other_loops.running.get(thread)
        if thread == own:
            continue
        if loop is not None and loop._is_idle():
            left_out[thread] = loop
            continue
        try:
            if read(name, "comm") != FILES:
                found[name] = look_at(name)
        except OSError:
            # It has just ended, after whatever it did; or this machine does not tell.
            found[name] = Call(RUNNING)
    return found


class Threads:
    """The threads of this process, except the calling one and those that have not moved since."""

    def __init__(self) -> None:
        self.older = calls({})
        for _ in range(SETTLE_LOOKS):
            if Call(RUNNING) not in self.older.values():
                break
            time.sleep(SETTLE_S)
            self.older = calls({})
        # The threads that serve, with their switches_of(), and when one was last seen to have run.
        self.serving: dict[str, str] = {}
        self.served_at = -math.inf
        # The loops for tests that had nothing to do, by their threads.
        self.left_out: dict[int, TestingCore] = {}

    def look(self, now: float) -> ThreadState:
        """Return what the threads do."""
        highest = ThreadState.BLOCKED
        serving = {}
        self.left_out = {}
        for name, call in calls(self.left_out).items():
            # A thread with a loop counts even if it was there before: this loop calls it.
            older = None if int(name) in other_loops.running else self.older.get(name)
            if older is None or call.line == RUNNING or call_of(older.line) != call_of(call.line):
                state = state_of(call)
                highest = max(highest, state)
                if state is ThreadState.SERVES:
                    serving[name] = switches_of(name)
                    if self.serving.get(name) != serving[name]:
                        self.served_at = now
        self.serving = serving
        return highest
