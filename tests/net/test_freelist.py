"""Received bytes objects never change while referenced, although the free list reuses others."""

from __future__ import annotations

import asyncio
import random
import socket
from asyncio import AbstractEventLoop

import pytest

# Sizes below and above the limit of Python's own allocator and the free list's minimum, 480 bytes.
SIZES = [100, 479, 480, 1000, 1016, 4096, 10_000]
MESSAGES = 200


class Collector(asyncio.Protocol):
    """Keep some received objects; with *echo*, write each of them back."""

    transport: asyncio.Transport

    def __init__(self, keep: random.Random, echo: bool) -> None:
        self.keep = keep
        self.echo = echo
        self.kept: dict[int, bytes] = {}
        self.hashes: list[int] = []
        self.received = 0
        self.more = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        # hash() is cached in the object: a reused object must not return its former hash.
        self.hashes.append(hash(data))
        if self.keep.random() < 0.3:
            self.kept[self.received] = data
        if self.echo:
            self.transport.write(data)
        self.received += 1
        self.more.set()


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_kept_messages_do_not_change(each_loop: AbstractEventLoop, size: int, echo: bool) -> None:
    chance = random.Random(size)
    sent = [chance.randbytes(size) for _ in range(MESSAGES)]
    back = bytearray()

    async def main(peer: socket.socket, protocol: Collector) -> None:
        for number, message in enumerate(sent):
            await each_loop.sock_sendall(peer, message)
            while protocol.received <= number:
                protocol.more.clear()
                await protocol.more.wait()
            while echo and len(back) < (number + 1) * size:
                back.extend(await each_loop.sock_recv(peer, size))

    here, peer = socket.socketpair()
    with here, peer:
        here.setblocking(False)
        peer.setblocking(False)
        transport, protocol = each_loop.run_until_complete(
            each_loop.create_connection(lambda: Collector(chance, echo), sock=here)
        )
        each_loop.run_until_complete(asyncio.wait_for(main(peer, protocol), 30))
        transport.close()
        each_loop.run_until_complete(asyncio.sleep(0))
    assert protocol.hashes == [hash(message) for message in sent]
    assert len(protocol.kept) > MESSAGES // 10
    assert {number: sent[number] for number in protocol.kept} == protocol.kept
    assert bytes(back) == b"".join(sent if echo else [])


@pytest.mark.parametrize("size", [1000, 4096, 10_000])
def test_written_objects_do_not_change(each_loop: AbstractEventLoop, size: int) -> None:
    async def main(transport: asyncio.Transport, protocol: Collector, peer: socket.socket) -> None:
        for number in range(MESSAGES):
            mine = bytes([number % 256]) * size
            transport.write(mine)
            if number % 3 == 0:
                held[number] = mine
            got = b""
            while len(got) < size:
                got += await each_loop.sock_recv(peer, size)
            assert got == bytes([number % 256]) * size
            await each_loop.sock_sendall(peer, bytes([255 - number % 256]) * size)
            while protocol.received <= number:
                protocol.more.clear()
                await protocol.more.wait()

    held: dict[int, bytes] = {}
    here, peer = socket.socketpair()
    with here, peer:
        here.setblocking(False)
        peer.setblocking(False)
        transport, protocol = each_loop.run_until_complete(
            each_loop.create_connection(lambda: Collector(random.Random(1), False), sock=here)
        )
        each_loop.run_until_complete(asyncio.wait_for(main(transport, protocol, peer), 30))
        transport.close()
        each_loop.run_until_complete(asyncio.sleep(0))
    assert held == {number: bytes([number % 256]) * size for number in range(0, MESSAGES, 3)}
    assert protocol.kept == {number: bytes([255 - number % 256]) * size for number in protocol.kept}
