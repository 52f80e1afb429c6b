"""Checks for file descriptors and threads that a test leaves behind."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator

from support.loops import LoopFactory, drain_executor

# How long a thread without work may take to exit on a busy machine.
THREADS_END_S = 10.0


def open_fds() -> set[int]:
    """Return the numbers of the open file descriptors of this process."""
    with os.scandir("/proc/self/fd") as entries:
        numbers = [int(entry.name) for entry in entries]
    return {fd for fd in numbers if _is_open(fd)}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def threads_left(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return the threads that are not in *before* and do not exit within THREADS_END_S each."""
    started = [thread for thread in threading.enumerate() if thread not in before]
    for thread in started:
        thread.join(THREADS_END_S)
    return [thread for thread in started if thread.is_alive()]


def is_running(thread: str) -> bool:
    """Return whether a thread of this process, by its native number, runs and does not wait."""
    try:
        with open(f"/proc/self/task/{thread}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "R"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_threads_wait() -> None:
    """Return when no other thread runs.

    pytest starts a watchdog for each test (faulthandler_timeout). Until it first waits, the clock
    of a loop for tests goes on in real time.
    """
    own = str(threading.get_native_id())
    deadline = time.monotonic() + 1
    while any(is_running(thread) for thread in os.listdir("/proc/self/task") if thread != own):
        if time.monotonic() > deadline:
            return
        time.sleep(0.0005)


def leak_checked(factory: LoopFactory) -> Iterator[asyncio.AbstractEventLoop]:
    """Yield a new loop, then close it and fail if a file descriptor or a thread is left."""
    gc.collect()
    fds = open_fds()
    threads = set(threading.enumerate())
    wait_until_threads_wait()
    loop = factory()
    if sys.flags.dev_mode:
        # `python -X dev` turns the loop's debug mode on, which only its own tests are about.
        loop.set_debug(False)
    yield loop
    # A loop that an exception has left running would fail every test that follows, too.
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    if not loop.is_closed():
        drain_executor(loop)
        loop.close()
    gc.collect()
    left_threads = threads_left(threads)
    assert not left_threads, f"threads left running: {left_threads}"
    left = open_fds() - fds
    assert not left, f"file descriptors left open: {sorted(left)}"
    assert running is None, f"a loop is left running: {running}"
