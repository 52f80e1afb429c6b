"""Ends of TLS connections beside pauses; some that asyncio does not bring to an end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import pytest
from conftest import Collector
from contexts import Contexts
from roles import Loop, complaints, noise, on_loop, turns
from secure import Filler, tls_stream

import uringloop


@on_loop
async def test_close_ends_what_an_end_has_left_waiting(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    # asyncio waits for ever here: for reading to be resumed, by a program that has closed.
    right = Collector(loop)
    async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        peer.tls.write(b"last words")
        await loop.sock_sendall(peer.sock, peer.outgoing.read())
        peer.sock.shutdown(socket.SHUT_WR)
        await turns(20)
        transport.close()
        assert await asyncio.wait_for(right.lost, 5) is None
        assert not right.data


class Sleepy(Collector):
    """Pauses reading in the midst of what it is given."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.pause_reading()


class Closing(Sleepy):
    """And then closes."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        assert self.transport is not None
        self.transport.close()


@pytest.mark.parametrize("kind", [Sleepy, Closing])
@on_loop
async def test_a_pause_within_the_last_bytes_does_not_disturb_the_end(
    each_loop: Loop, contexts: Contexts, kind: type[Sleepy]
) -> None:
    # The end of the records and that of the connection are both there already.
    right = kind(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        peer.tls.write(b"last words")
        with pytest.raises(ssl.SSLWantReadError):
            peer.tls.unwrap()
        await each_loop.sock_sendall(peer.sock, peer.outgoing.read())
        peer.sock.shutdown(socket.SHUT_WR)
        await turns(20)
        transport.resume_reading()
        assert await asyncio.wait_for(right.lost, 5) is None
        await turns(3)
        assert right.data == b"last words"


class Cautious(Filler):
    """Pauses reading after each piece; its buffer's slices are copies."""

    def get_buffer(self, sizehint: int) -> bytearray:
        assert isinstance(self.buffer, bytearray)
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        self.transport.pause_reading()
        asyncio.get_running_loop().call_soon(self.transport.resume_reading)


@pytest.mark.parametrize("kind", [Filler, Cautious])
@on_loop
async def test_a_small_buffer_gets_everything_before_the_end(
    loop: uringloop.Loop, contexts: Contexts, kind: type[Filler]
) -> None:
    # asyncio fills it once, copies of it with what comes in the next records, and then ends.
    data = noise(50_000)
    right = kind(loop, 1000)
    async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        for start in range(0, len(data), 700):
            peer.tls.write(data[start : start + 700])
        await loop.sock_sendall(peer.sock, peer.outgoing.read())
        peer.sock.shutdown(socket.SHUT_WR)
        await turns(20)
        transport.resume_reading()
        assert await asyncio.wait_for(right.lost, 5) is None
        assert right.data == data
        assert right.ended


class Unfit(Filler):
    """May have memory that takes no bytes."""

    memory: Any = bytearray(9)

    def get_buffer(self, sizehint: int) -> Any:
        return self.memory


@pytest.mark.parametrize(
    "buffer", [b"bytes", memoryview(b"read-only"), memoryview(bytearray(9))[::2], [1, 2], "text"]
)
@on_loop
async def test_memory_that_takes_no_bytes_ends_the_connection(
    each_loop: Loop, contexts: Contexts, buffer: object
) -> None:
    seen = complaints(each_loop)
    right = Unfit(each_loop, 0)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
        # Not before: asyncio asks for a buffer in the handshake.
        right.memory = buffer
        await peer.send(b"x")
        error = await right.lost
    assert type(error) is TypeError
    assert str(error) == (
        f"read() argument 2 must be read-write bytes-like object, not {type(buffer).__name__}"
    )
    assert [report["exception"] for report in seen] == [error]
