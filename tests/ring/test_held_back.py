"""A stale IORING_SQ_TASKRUN, which announces deferred completions, never keeps a loop awake.

The kernel sets the flag in the ring's shared memory after it has queued work. An enter on another
processor may run the work in between: then the flag stays set although no work is left. These tests
set the flag themselves.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.loops import backend

import uringloop

pytestmark = pytest.mark.skipif(
    backend() != "io_uring", reason="the software ring defers no completions"
)

IORING_SQ_TASKRUN = 1 << 2
# Offsets in the ring's shared memory: of the sizes of the queues, and of the flags.
SIZES = 24
FLAGS = 36
SLEEP_S = 0.2
# A loop that does not sleep has some 100,000 turns in that time.
TURNS_MAX = 40


class Flags:
    """The kernel's flags of all rings of the process, since a descriptor does not show its loop."""

    def __init__(self) -> None:
        self.rings = [
            mmap.mmap(int(name), mmap.PAGESIZE)
            for name in os.listdir("/proc/self/fd")
            if name_of(int(name)) == "anon_inode:[io_uring]"
        ]
        assert self.rings
        for memory in self.rings:
            submissions, completions = struct.unpack_from("II", memory, SIZES)
            # Otherwise this kernel has another layout, and the test would corrupt memory.
            assert 0 < submissions < completions
            assert submissions & (submissions - 1) == completions & (completions - 1) == 0

    def taskrun(self) -> bool:
        return all(flags_of(memory) & IORING_SQ_TASKRUN for memory in self.rings)

    def set_taskrun(self) -> None:
        for memory in self.rings:
            struct.pack_into("I", memory, FLAGS, flags_of(memory) | IORING_SQ_TASKRUN)


def flags_of(memory: mmap.mmap) -> int:
    (flags,) = struct.unpack_from("I", memory, FLAGS)
    return int(flags)


def name_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


def ordinary() -> uringloop.Loop:
    return uringloop.Loop()


def spinning() -> uringloop.Loop:
    return uringloop.Loop(busy_poll_us=100)


def gathering() -> uringloop.Loop:
    return uringloop.Loop(batch_wait_us=100)


@pytest.fixture(params=[ordinary, spinning, gathering])
def loop(request: pytest.FixtureRequest) -> Iterator[uringloop.Loop]:
    factory: Callable[[], uringloop.Loop] = request.param
    loop = factory()
    yield loop
    loop.close()


async def sleeping(loop: uringloop.Loop) -> None:
    """Sleep while the flag is stale, and check that the loop sleeps, too."""
    # Let the work at the start of a run end.
    await asyncio.sleep(0.01)
    flags = Flags()
    flags.set_taskrun()
    turns = loop.stats()["turns"]
    used = time.thread_time()
    await asyncio.sleep(SLEEP_S)
    used = time.thread_time() - used
    assert flags.taskrun(), "the kernel had work, so the flag was not stale"
    assert loop.stats()["turns"] - turns < TURNS_MAX
    assert used < SLEEP_S / 2


def test_a_flag_without_work_does_not_keep_the_loop_awake(loop: uringloop.Loop) -> None:
    loop.run_until_complete(sleeping(loop))


def test_flag_without_work_does_not_wake_a_loop_with_shared_sockets(loop: uringloop.Loop) -> None:
    async def main() -> None:
        sock = socket.create_server(("127.0.0.1", 0))
        server = await loop.create_server(asyncio.Protocol, sock=sock)
        try:
            await sleeping(loop)
        finally:
            server.close()

    loop.run_until_complete(main())


def test_a_busy_loop_gets_completions_although_the_flag_is_stale(loop: uringloop.Loop) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            reading: Any = asyncio.ensure_future(loop.sock_recv(ours, 10))
            await asyncio.sleep(0.01)
            Flags().set_taskrun()
            theirs.send(b"hello")
            for _ in range(1000):
                await asyncio.sleep(0)
            assert reading.done()
            assert await reading == b"hello"

    loop.run_until_complete(main())
