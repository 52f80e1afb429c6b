"""A connection's callbacks run in its own context, whichever code writes, closes or resumes.

asyncio runs some callbacks in the context of the caller, and documents nothing; uvloop behaves as
uringloop does. A change that a callback makes to a context variable is visible to the next one.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import pytest
from support.pipes import a_pipe
from support.protocols import Collector
from support.roles import (
    Loop,
    narrow_pair,
    noise,
    on_loop,
    read_exactly,
    released,
    stream,
    until,
)
from support.tls_contexts import Contexts
from support.tls_peers import tls_stream

import uringloop

P = ParamSpec("P")
T = TypeVar("T")
VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="unset")
NARROW = 16 * 1024
PLENTY = 2 * 1024 * 1024


def elsewhere(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call *function* in a context unrelated to the connection."""
    return contextvars.Context().run(function, *args, **kwargs)


async def awaited_elsewhere(call: Callable[[], Awaitable[T]]) -> T:
    """Await the result of *call* in a task whose context is unrelated to the connection."""

    async def wait() -> T:
        return await call()

    return await asyncio.create_task(wait(), context=contextvars.Context())


class Witness(Collector):
    """A collector that records in which context each callback runs."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.seen: dict[str, set[str]] = {}

    def note(self, callback: str) -> None:
        self.seen.setdefault(callback, set()).add(VAR.get())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.note("connection_made")
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.note("data_received")
        super().data_received(data)

    def eof_received(self) -> bool | None:
        self.note("eof_received")
        return super().eof_received()

    def pause_writing(self) -> None:
        self.note("pause_writing")
        super().pause_writing()

    def resume_writing(self) -> None:
        self.note("resume_writing")
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.note("connection_lost")
        super().connection_lost(exc)


class BufferedWitness(Witness, asyncio.BufferedProtocol):
    """The same as a BufferedProtocol."""

    data_received: Any = None

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.buffer = bytearray(1024)

    def get_buffer(self, sizehint: int) -> bytearray:
        self.note("get_buffer")
        return memoryview(self.buffer)  # type: ignore[return-value]

    def buffer_updated(self, nbytes: int) -> None:
        self.note("buffer_updated")
        Collector.data_received(self, bytes(self.buffer[:nbytes]))


EITHER_PROTOCOL = pytest.mark.parametrize("make", [Witness, BufferedWitness])
BY_METHOD = pytest.mark.parametrize("method", ["close", "abort"])


# ── streams ──────────────────────────────────────────────────────────────────────────────────


@EITHER_PROTOCOL
@BY_METHOD
@on_loop
async def test_callbacks_of_a_stream_run_in_its_context(
    loop: uringloop.Loop, make: type[Witness], method: str
) -> None:
    VAR.set("connection")
    witness = make(loop)
    async with stream(loop, witness, buffer_size=NARROW) as (transport, peer):
        VAR.set("later")
        elsewhere(transport.write, noise(PLENTY))
        assert "pause_writing" in witness.calls
        await read_exactly(loop, peer, PLENTY)
        await until(lambda: "resume_writing" in witness.calls)
        elsewhere(transport.pause_reading)
        peer.send(b"paused")
        elsewhere(transport.resume_reading)
        await witness.received(6)
        elsewhere(getattr(transport, method))
        await witness.lost
    assert set(witness.seen) > {"connection_made", "pause_writing", "resume_writing"}
    assert set.union(*witness.seen.values()) == {"connection"}


@on_loop
async def test_set_write_buffer_limits_calls_pause_writing_in_the_context(
    loop: uringloop.Loop,
) -> None:
    VAR.set("connection")
    witness = Witness(loop)
    async with stream(loop, witness, buffer_size=NARROW) as (transport, _):
        transport.set_write_buffer_limits(2 * PLENTY)
        transport.write(noise(PLENTY))
        assert "pause_writing" not in witness.calls
        elsewhere(transport.set_write_buffer_limits, 0)
        assert witness.seen["pause_writing"] == {"connection"}


@on_loop
async def test_connection_lost_after_a_close_elsewhere_runs_in_the_context(
    loop: uringloop.Loop,
) -> None:
    VAR.set("connection")
    witness = Witness(loop)
    async with stream(loop, witness, buffer_size=NARROW) as (transport, peer):
        elsewhere(transport.write, noise(PLENTY))
        elsewhere(transport.write_eof)
        elsewhere(transport.close)
        assert not witness.lost.done()
        await read_exactly(loop, peer, PLENTY)
        await witness.lost
    assert witness.seen["connection_lost"] == {"connection"}


@on_loop
async def test_context_changes_are_visible_to_the_next_callback(each_loop: Loop) -> None:
    seen: list[str] = []

    class Changing(Collector):
        def data_received(self, data: bytes) -> None:
            seen.append(VAR.get())
            VAR.set("received")
            if not self.data:
                self.transport.write(noise(PLENTY))
            super().data_received(data)

        def pause_writing(self) -> None:
            # Called within data_received(), so the connection's context is the current one.
            seen.append(VAR.get())
            VAR.set("paused")
            super().pause_writing()

    VAR.set("connection")
    changing = Changing(each_loop)
    async with stream(each_loop, changing, buffer_size=NARROW) as (_, peer):
        peer.send(b"1")
        await changing.received(1)
        peer.send(b"2")
        await changing.received(2)
    assert seen == ["connection", "received", "paused"]


@on_loop
async def test_a_write_in_another_context_within_a_callback_works(loop: uringloop.Loop) -> None:
    # The connection's context is already entered further up the stack; a context cannot be entered
    # twice.
    class Writing(Witness):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            elsewhere(self.transport.write, noise(PLENTY))

    VAR.set("connection")
    writing = Writing(loop)
    async with stream(loop, writing, buffer_size=NARROW) as (_, peer):
        peer.send(b"x")
        await writing.received(1)
        assert writing.seen["pause_writing"] == {"connection"}


@on_loop
async def test_accepted_connections_run_in_the_context_of_their_server(
    loop: uringloop.Loop,
) -> None:
    VAR.set("server")
    witness = Witness(loop)
    server = await loop.create_server(lambda: witness, "127.0.0.1", 0)
    VAR.set("later")
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        client.setblocking(False)
        await until(lambda: bool(witness.calls))
        elsewhere(witness.transport.write, noise(8 * PLENTY))
        await read_exactly(loop, client, 8 * PLENTY)
        await until(lambda: "resume_writing" in witness.calls)
        elsewhere(witness.transport.close)
        await witness.lost
    server.close()
    await server.wait_closed()
    assert "pause_writing" in witness.seen
    assert set.union(*witness.seen.values()) == {"server"}


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("server_side", [False, True], ids=["client", "server"])
@EITHER_PROTOCOL
@BY_METHOD
@on_loop
async def test_callbacks_over_tls_run_in_the_context_of_the_connection(
    loop: uringloop.Loop, contexts: Contexts, make: type[Witness], server_side: bool, method: str
) -> None:
    VAR.set("connection")
    witness = make(loop)
    async with tls_stream(loop, witness, contexts, server_side=server_side, buffer_size=NARROW) as (
        transport,
        peer,
    ):
        VAR.set("later")
        # The transport below accepts the first write; the second one waits.
        elsewhere(transport.write, noise(PLENTY))
        elsewhere(transport.write, noise(PLENTY))
        assert "pause_writing" in witness.calls
        await peer.read_exactly(2 * PLENTY)
        await until(lambda: "resume_writing" in witness.calls)
        elsewhere(transport.pause_reading)
        await peer.send(b"paused")
        await until(lambda: bool(transport.get_read_buffer_size()))  # type: ignore[attr-defined]
        elsewhere(transport.resume_reading)
        await witness.received(6)
        elsewhere(getattr(transport, method))
        if method == "close":
            await peer.close()
        await witness.lost
    assert set(witness.seen) > {"connection_made", "pause_writing", "resume_writing"}
    assert set.union(*witness.seen.values()) == {"connection"}


@on_loop
async def test_set_write_buffer_limits_over_tls_calls_pause_writing_in_the_context(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    VAR.set("connection")
    witness = Witness(loop)
    async with tls_stream(loop, witness, contexts, buffer_size=NARROW) as (transport, _):
        transport.set_write_buffer_limits(2 * PLENTY)
        transport.write(noise(PLENTY))
        transport.write(noise(PLENTY))
        assert "pause_writing" not in witness.calls
        elsewhere(transport.set_write_buffer_limits, 1)
        assert witness.seen["pause_writing"] == {"connection"}


@on_loop
async def test_small_writes_over_tls_call_pause_writing_in_the_context(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    # Small writes are sent at the end of the turn, in the loop's own context.
    VAR.set("connection")
    witness = Witness(loop)
    async with tls_stream(loop, witness, contexts, buffer_size=NARROW) as (transport, _):
        while "pause_writing" not in witness.calls:
            elsewhere(transport.write, noise(1024))
            await asyncio.sleep(0)
    assert witness.seen["pause_writing"] == {"connection"}


@on_loop
async def test_close_notify_calls_eof_received_in_the_context(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    VAR.set("connection")
    witness = Witness(loop)
    async with tls_stream(loop, witness, contexts) as (transport, peer):
        elsewhere(transport.pause_reading)
        await peer.send(b"last")
        await loop.sock_sendall(peer.sock, peer.records(peer.tls.unwrap))
        await until(lambda: transport.get_read_buffer_size() > 24)  # type: ignore[attr-defined]
        elsewhere(transport.resume_reading)
        await witness.lost
    assert witness.calls[1:] == ["data_received", "eof_received", "connection_lost"]
    assert set.union(*witness.seen.values()) == {"connection"}


@on_loop
async def test_start_tls_keeps_the_context(loop: uringloop.Loop, contexts: Contexts) -> None:
    VAR.set("connection")
    left, right = Witness(loop), Witness(loop)
    ours, theirs = narrow_pair(NARROW)
    client, _ = await loop.create_connection(lambda: left, sock=ours)
    server, _ = await loop.connect_accepted_socket(lambda: right, theirs)

    async def turn() -> tuple[asyncio.Transport, asyncio.Transport]:
        inner, outer = await asyncio.gather(
            loop.start_tls(client, left, contexts.client, server_hostname="localhost"),
            loop.start_tls(server, right, contexts.server, server_side=True),
        )
        assert inner is not None
        assert outer is not None
        # TLS within TLS.
        inmost, outmost = await asyncio.gather(
            loop.start_tls(inner, left, contexts.client, server_hostname="localhost"),
            loop.start_tls(outer, right, contexts.server, server_side=True),
        )
        assert inmost is not None
        assert outmost is not None
        return inmost, outmost

    secured, answering = await awaited_elsewhere(turn)
    # One write for each layer below, and one that waits.
    for _ in range(3):
        elsewhere(secured.write, noise(PLENTY))
    await right.received(3 * PLENTY)
    elsewhere(answering.write, b"answer")
    await left.received(6)
    elsewhere(secured.close)
    await asyncio.gather(left.lost, right.lost)
    assert {"pause_writing", "resume_writing", "data_received", "connection_lost"} < set(left.seen)
    assert set.union(*left.seen.values(), *right.seen.values()) == {"connection"}
    await released(client)
    await released(server)


# ── datagrams ────────────────────────────────────────────────────────────────────────────────


class DatagramWitness(Witness, asyncio.DatagramProtocol):
    def datagram_received(self, data: bytes, addr: object) -> None:
        self.note("datagram_received")
        self.data += data

    def error_received(self, exc: Exception) -> None:
        self.note("error_received")


@BY_METHOD
@on_loop
async def test_callbacks_of_datagrams_run_in_the_context_of_the_endpoint(
    loop: uringloop.Loop, method: str
) -> None:
    VAR.set("connection")
    witness = DatagramWitness(loop)
    ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    peer.setblocking(False)
    with peer:
        transport, _ = await loop.create_datagram_endpoint(lambda: witness, sock=ours)
        VAR.set("later")
        peer.send(b"received")
        await until(lambda: bool(witness.data))
        # Larger than any datagram may be: this causes error_received().
        elsewhere(transport.sendto, bytes(64 * 1024 * 1024))
        transport.set_write_buffer_limits(0)  # type: ignore[attr-defined]
        while "pause_writing" not in witness.calls:
            elsewhere(transport.sendto, b"x")
        while "resume_writing" not in witness.calls:
            await loop.sock_recv(peer, 1)
        elsewhere(getattr(transport, method))
        await witness.lost
        await released(transport)
    assert {"datagram_received", "error_received", "pause_writing", "resume_writing"} < set(
        witness.seen
    )
    assert set.union(*witness.seen.values()) == {"connection"}


# ── pipes and processes ──────────────────────────────────────────────────────────────────────


class PipeWitness(Witness):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A pipe's transport only reads or only writes.
        self.note("connection_made")
        self.calls.append("connection_made")


@BY_METHOD
@on_loop
async def test_callbacks_of_a_write_pipe_run_in_its_context(
    loop: uringloop.Loop, method: str
) -> None:
    VAR.set("connection")
    witness = PipeWitness(loop)
    reader, writer = a_pipe()
    os.set_blocking(reader.fileno(), False)
    with reader:
        transport, _ = await loop.connect_write_pipe(lambda: witness, writer)
        VAR.set("later")
        elsewhere(transport.write, noise(PLENTY))
        left = PLENTY
        while left:
            left -= len(reader.read(65536) or b"")
            await asyncio.sleep(0)
        await until(lambda: "resume_writing" in witness.calls)
        elsewhere(getattr(transport, method))
        await witness.lost
    assert {"pause_writing", "resume_writing", "connection_lost"} < set(witness.seen)
    assert set.union(*witness.seen.values()) == {"connection"}


@on_loop
async def test_callbacks_of_a_read_pipe_run_in_its_context(loop: uringloop.Loop) -> None:
    VAR.set("connection")
    witness = PipeWitness(loop)
    reader, writer = a_pipe()
    with writer:
        transport, _ = await loop.connect_read_pipe(lambda: witness, reader)
        VAR.set("later")
        elsewhere(transport.pause_reading)
        writer.write(b"paused")
        elsewhere(transport.resume_reading)
        await witness.received(6)
        elsewhere(transport.close)
        await witness.lost
    assert {"data_received", "connection_lost"} < set(witness.seen)
    assert set.union(*witness.seen.values()) == {"connection"}


class ProcessWitness(asyncio.SubprocessProtocol):
    def __init__(self, loop: Loop) -> None:
        self.seen: dict[str, str] = {}
        self.lost = loop.create_future()

    def note(self, callback: str) -> None:
        self.seen[callback] = VAR.get()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.note("connection_made")

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.note("pipe_data_received")

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self.note("pipe_connection_lost")

    def process_exited(self) -> None:
        self.note("process_exited")

    def connection_lost(self, exc: Exception | None) -> None:
        self.note("connection_lost")
        self.lost.set_result(None)


@pytest.mark.parametrize("method", ["close", "kill"])
@on_loop
async def test_callbacks_of_a_process_run_in_its_context(loop: uringloop.Loop, method: str) -> None:
    VAR.set("connection")
    witness = ProcessWitness(loop)
    transport, _ = await loop.subprocess_exec(
        lambda: witness, sys.executable, "-c", "print('here', flush=True); input()"
    )
    VAR.set("later")
    await until(lambda: "pipe_data_received" in witness.seen)
    elsewhere(getattr(transport, method))
    await witness.lost
    transport.close()
    assert set(witness.seen) == {
        "connection_made",
        "pipe_data_received",
        "pipe_connection_lost",
        "process_exited",
        "connection_lost",
    }
    assert set(witness.seen.values()) == {"connection"}
