"""A protocol that leaves the run, by Ctrl-C say: the next run goes on where this one was left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from conftest import Collector
from contexts import Contexts
from datagrams import Mailbox, drained, endpoint, stuff, unix_pair
from piping import Writer, a_pipe, drain, writing
from roles import PATIENCE, Loop, link, noise, until
from secure import tls_link

T = TypeVar("T")

LEAVING = pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])


def run(loop: Loop, awaitable: Awaitable[T]) -> T:
    """Run *awaitable*, which must end."""

    async def limited() -> T:
        return await asyncio.wait_for(awaitable, PATIENCE)

    return loop.run_until_complete(limited())


def leave_in(protocol: object, name: str, leaving: type[BaseException]) -> None:
    """Have the first call of a protocol's method end with *leaving*."""
    method: Callable[..., object] = getattr(protocol, name)
    pending = [leaving]

    def leave(*args: object) -> object:
        result = method(*args)
        if pending:
            raise pending.pop()
        return result

    setattr(protocol, name, leave)


# ── pause_writing ─────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def linked(
    loop: Loop, protocol: Collector, contexts: Contexts | None
) -> AsyncIterator[tuple[asyncio.Transport, Collector]]:
    """Connect *protocol* to a collector, over TLS if there are contexts for that."""
    other = Collector(loop)
    if contexts is None:
        connecting = link(loop, protocol, other)
    else:
        connecting = tls_link(loop, protocol, other, contexts)
    async with connecting as (transport, _):
        yield transport, other


@LEAVING
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("size", [4000, 1_000_000])
@pytest.mark.parametrize("how", ["write", "writelines"])
def test_what_is_written_leaves_although_pause_writing_leaves_the_run(
    each_loop: Loop,
    contexts: Contexts,
    leaving: type[BaseException],
    secure: bool,
    size: int,
    how: str,
) -> None:
    async def write() -> None:
        for number in range(100_000_000 // size):
            data = noise(size, number)
            written.extend(data)
            if how == "write":
                transport.write(data)
            else:
                transport.writelines([data[:1], data[1:]])

    async def finish() -> bytes:
        transport.write(b"the last words")
        transport.close()
        await other.lost
        return bytes(other.data)

    protocol = Collector(each_loop)
    written = bytearray()
    stack = contextlib.AsyncExitStack()
    connecting = linked(each_loop, protocol, contexts if secure else None)
    transport, other = run(each_loop, stack.enter_async_context(connecting))
    transport.set_write_buffer_limits(high=1)
    leave_in(protocol, "pause_writing", leaving)
    with pytest.raises(leaving):
        each_loop.run_until_complete(write())
    assert run(each_loop, finish()) == written + b"the last words"
    assert protocol.calls.count("pause_writing") >= 1
    run(each_loop, stack.aclose())


@LEAVING
def test_what_is_written_leaves_by_itself_before_resume_writing(
    each_loop: Loop, leaving: type[BaseException]
) -> None:
    async def write() -> None:
        transport.write(bytes(20_000_000))

    protocol = Collector(each_loop)
    stack = contextlib.AsyncExitStack()
    transport, other = run(each_loop, stack.enter_async_context(linked(each_loop, protocol, None)))
    leave_in(protocol, "pause_writing", leaving)
    with pytest.raises(leaving):
        each_loop.run_until_complete(write())
    run(each_loop, until(lambda: len(other.data) == 20_000_000))
    run(each_loop, until(lambda: "resume_writing" in protocol.calls))
    assert protocol.calls == ["connection_made", "pause_writing", "resume_writing"]
    run(each_loop, stack.aclose())


@LEAVING
def test_write_eof_after_pause_writing_has_left_the_run_comes_last(
    each_loop: Loop, leaving: type[BaseException]
) -> None:
    async def write() -> None:
        transport.write(bytes(20_000_000))

    async def finish() -> None:
        transport.write_eof()
        await other.eof

    protocol = Collector(each_loop)
    stack = contextlib.AsyncExitStack()
    transport, other = run(each_loop, stack.enter_async_context(linked(each_loop, protocol, None)))
    leave_in(protocol, "pause_writing", leaving)
    with pytest.raises(leaving):
        each_loop.run_until_complete(write())
    run(each_loop, finish())
    assert len(other.data) == 20_000_000
    run(each_loop, stack.aclose())


@LEAVING
@pytest.mark.parametrize("how", ["write", "writelines"])
def test_what_is_written_to_a_pipe_leaves_although_pause_writing_leaves_the_run(
    each_loop: Loop, leaving: type[BaseException], how: str
) -> None:
    async def write(writer: Writer) -> None:
        if how == "write":
            writer.pipe.write(data)
        else:
            writer.pipe.writelines([data[:1], data[1:]])

    data = noise(1_000_000)
    reader, file = a_pipe()
    stack = contextlib.AsyncExitStack()
    writer = run(each_loop, stack.enter_async_context(writing(each_loop, file)))
    leave_in(writer, "pause_writing", leaving)
    with reader:
        with pytest.raises(leaving):
            each_loop.run_until_complete(write(writer))
        writer.pipe.write_eof()
        assert run(each_loop, drain(reader)) == data
        run(each_loop, stack.aclose())


@LEAVING
def test_datagrams_leave_although_pause_writing_leaves_the_run(
    each_loop: Loop, tmp_path: Path, leaving: type[BaseException]
) -> None:
    async def send(transport: Any) -> None:
        transport.sendto(b"kept")

    class Box(Mailbox):
        def pause_writing(self) -> None:
            calls.append("pause")

        def resume_writing(self) -> None:
            calls.append("resume")

    calls: list[str] = []
    ours, peer = unix_pair(tmp_path)
    count = stuff(ours)
    box = Box()
    stack = contextlib.AsyncExitStack()
    with peer:
        transport, _ = run(
            each_loop, stack.enter_async_context(endpoint(each_loop, box, sock=ours))
        )
        transport.set_write_buffer_limits(high=0)
        leave_in(box, "pause_writing", leaving)
        with pytest.raises(leaving):
            each_loop.run_until_complete(send(transport))
        found = drained(peer)
        run(each_loop, until(lambda: "resume" in calls))
        found += drained(peer)
        assert found[count:] == [b"kept"]
        assert calls == ["pause", "resume"]
        run(each_loop, stack.aclose())
