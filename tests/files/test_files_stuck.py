"""A disk that does not respond: closing the loop abandons the operations in flight.

A page fault stands in for the disk: the kernel's thread, or the software ring's, writes memory to a
file, and userfaultfd(2) withholds the pages of that memory until it is closed.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import gc
import mmap
import os
import struct
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import opened
from support.leaks import open_fds

import uringloop

SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}.get(os.uname().machine, -1)
UFFDIO_API = 0xC018AA3F
UFFDIO_REGISTER = 0xC020AA00
UFFD_API = 0xAA
MODE_MISSING = 1
SIZE = 8 << 20


class Stuck:
    """Bytes that cannot be read before the test has ended; hides them from pytest's reports."""

    def __init__(self) -> None:
        # A block of this size comes from mmap, and has no pages yet.
        self.data = bytes(SIZE)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck()
    libc = ctypes.CDLL(None, use_errno=True)
    faults = libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
    if faults < 0:
        pytest.skip(f"userfaultfd: {errno.errorcode.get(ctypes.get_errno(), '?')}")
    try:
        fcntl.ioctl(faults, UFFDIO_API, bytearray(struct.pack("QQQ", UFFD_API, 0, 0)))
        # The first page has the header of the object.
        begin = (id(made.data) // mmap.PAGESIZE + 1) * mmap.PAGESIZE
        pages = struct.pack("QQQQ", begin, SIZE // 2, MODE_MISSING, 0)
        fcntl.ioctl(faults, UFFDIO_REGISTER, bytearray(pages))
        yield made
    finally:
        os.close(faults)


def test_a_file_can_be_closed_after_its_loop_gave_up_waiting_for_the_disk(
    tmp_path: Path, stuck: Stuck
) -> None:
    path = tmp_path / "file"
    fds = open_fds()
    loop = uringloop.new_event_loop()
    file = loop.run_until_complete(opened(path, "wb"))

    async def begin() -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(file.pwrite(stuck.data, 0))
        while not file._operations_in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return task

    began = time.monotonic()
    task = loop.run_until_complete(begin())
    loop.close()
    # The end of a run waits for the disk for a limited time, and so does close().
    assert time.monotonic() - began < 10
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    watch = weakref.ref(task)
    del task
    gc.collect()
    assert watch() is None
    asyncio.run(asyncio.wait_for(file.close(), 10))
    assert file.closed
    assert open_fds() <= fds
