"""Helpers of the tests of processes: fixtures, the children of this process, a protocol."""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import contextlib
import glob
import os
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.roles import Loop, until

PIPE = asyncio.subprocess.PIPE
DEVNULL = asyncio.subprocess.DEVNULL
PLENTY = 4 * 1024 * 1024
# Seconds: longer than any test takes.
FOREVER = "600"


@pytest.fixture(autouse=True)
def watcher(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give stock asyncio before 3.12 the child watcher that is the default since then."""
    if sys.version_info >= (3, 12) or "each_loop" not in request.fixturenames:
        yield
        return
    before = asyncio.get_child_watcher()
    pidfd = asyncio.PidfdChildWatcher()
    pidfd.attach_loop(request.getfixturevalue("each_loop"))
    asyncio.set_child_watcher(pidfd)
    yield
    with warnings.catch_warnings():
        # A failed test may leave a child behind, and reports that itself.
        warnings.simplefilter("ignore", RuntimeWarning)
        asyncio.set_child_watcher(before)


@pytest.fixture(autouse=True)
def orphans() -> Iterator[None]:
    """Fail a test that leaves a child process behind, running or as a zombie."""
    before = children()
    yield
    assert children() - before == set()


def children() -> set[int]:
    """Return the ids of this process's children, including zombies."""
    numbers: set[int] = set()
    for name in glob.glob("/proc/self/task/*/children"):
        # The thread may have ended since.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            numbers.update(map(int, Path(name).read_text().split()))
    return numbers


def thread_names() -> dict[int, str]:
    """Return the names of the threads of this process, including kernel workers, by thread id."""
    found: dict[int, str] = {}
    for task in Path("/proc/self/task").iterdir():
        # A thread may end in the meantime.
        with contextlib.suppress(OSError):
            found[int(task.name)] = (task / "comm").read_text().rstrip("\n")
    return found


async def exited_process(code: int, options: int) -> asyncio.subprocess.Process:
    """Return a process that has exited before the loop could notice it: no turn is run."""
    source, sink = os.pipe()
    process = await asyncio.create_subprocess_shell(f"read go; exit {code}", stdin=source)
    os.close(source)
    os.close(sink)
    # Blocks on purpose.
    os.waitid(os.P_PID, process.pid, options)  # noqa: ASYNC222
    return process


class Recorder(asyncio.SubprocessProtocol):
    """Record the output of a process and the order of the callbacks."""

    def __init__(self, loop: Loop) -> None:
        self.calls: list[str] = []
        self.data = bytearray()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[Exception | None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.calls.append("connection_made")

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.calls.append(f"data {fd}")
        self.data += data

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self.calls.append(f"lost {fd}")

    def process_exited(self) -> None:
        self.calls.append("process_exited")
        self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("connection_lost")
        self.lost.set_result(exc)


async def output(command: str, **options: Any) -> tuple[bytes, int | None]:
    """Run a shell command and return what it wrote, and its exit code."""
    start: Callable[..., Awaitable[asyncio.subprocess.Process]]
    start = asyncio.create_subprocess_shell
    process = await start(command, stdout=PIPE, **options)
    written, _ = await process.communicate()
    return written, process.returncode


def wait_for(condition: Callable[[], bool]) -> None:
    waiting = asyncio.SelectorEventLoop()
    waiting.run_until_complete(until(condition))
    waiting.close()
