"""Steps of random programs: datagrams, messages with ancillary data, descriptors, limits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from typing import Any

from support.leaks import open_fds

from uringloop import sockets

LOCAL = ("127.0.0.1", 0)


class Datagrams(asyncio.DatagramProtocol):
    """Collects datagrams; none may come while reading is paused."""

    transport: Any

    def __init__(self, model: Any) -> None:
        self.model = model
        self.got: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        if not self.transport.is_reading():
            self.model.differs("a datagram came while reading was paused")
        self.got.append(data)


class Messages(Datagrams):
    """Collects datagrams whose first byte must be the ECN bits that they came with."""

    def message_received(self, data: bytes, ancdata: list[Any], flags: int, address: Any) -> None:
        bits = [value[0] for level, kind, value in ancdata if kind == socket.IP_TOS]
        if bits != [data[0] & 3] or flags:
            self.model.differs(f"a message has {ancdata} and flags {flags}")
        self.datagram_received(data, address)


async def datagrams(model: Any, count: int, *, messages: bool) -> None:
    """Send datagrams to an endpoint that pauses: messages in each way, or by sendto()."""
    model.note("messages" if messages else "datagrams", count)
    end, protocol = await model.loop.create_datagram_endpoint(
        lambda: (Messages if messages else Datagrams)(model), LOCAL
    )
    if messages:
        end.get_extra_info("socket").setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    other, _ = await model.loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, remote_addr=end.get_extra_info("sockname")
    )
    # Less than a socket's receive buffer: the kernel drops none.
    sent = [model.data(model.rng.choice((1, 500, 1400))) for _ in range(count)]
    for data in sent:
        if messages:
            send_message(model, other, data)
        else:
            other.sendto(data)
        await model.turns(model.rng.randrange(2))
        if model.rng.random() < 0.2:
            end.pause_reading()
            await model.turns(model.rng.randrange(3))
        elif not end.is_reading():
            end.resume_reading()
    if not end.is_reading():
        end.resume_reading()
    got = protocol.got
    try:
        if model.harmful:
            await model.turns(50)
        else:
            await model.until("datagrams", lambda: len(got) == len(sent))
    finally:
        other.close()
        end.close()
    rest = iter(sent)
    if not all(data in rest for data in got):
        model.differs("wrong datagrams, or the wrong order")


def send_message(model: Any, transport: Any, data: bytes) -> None:
    ecn = (socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", data[0] & 3))
    if model.rng.random() < 0.5:
        middle = model.rng.randrange(len(data))
        transport.sendmsg([data[:middle], bytearray(data[middle:])], [ecn])
    else:
        transport.send_segments(data, 1400, None, [ecn])


async def descriptors(model: Any, count: int, cancels: int) -> None:
    """Pass pipes on to receives that are cancelled *cancels* times."""
    model.note("descriptors", count, cancels)
    before = open_fds()
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left.setblocking(False)
    right.setblocking(False)
    received: list[tuple[bytes, int]] = []

    async def send() -> None:
        for number in range(count):
            reader, writer = os.pipe()
            os.write(writer, b"%d" % number)
            try:
                await sockets.send_fds(model.loop, left, [b"%d" % number], [reader, writer])
            finally:
                os.close(reader)
                os.close(writer)

    async def receive() -> None:
        while len(received) < count:
            await sockets.wait(model.loop, right, sockets.READ)
            data, fds, _, _ = await sockets.recv_fds(model.loop, right, 10, 2)
            reader, writer = fds
            received.append((data, reader))
            os.close(writer)

    try:
        with left, right:
            await cancelling(model, send(), receive, cancels)
        found = [(data, os.read(reader, 10)) for data, reader in received]
        wanted = [(b"%d" % number, b"%d" % number) for number in range(count)]
        if found != wanted:
            model.differs(f"descriptors: {found}")
    except OSError as exc:
        if not model.harmful:
            model.differs(f"descriptors: {exc!r}")
    finally:
        for _, reader in received:
            os.close(reader)
    if not model.harmful and open_fds() - before:
        model.differs(f"descriptors are left: {open_fds() - before}")


async def cancelling(model: Any, sending: Any, receive: Any, cancels: int) -> None:
    """Run both; cancel the receiving task some times and start it again."""
    task = asyncio.ensure_future(sending)
    for _ in range(cancels):
        receiving = asyncio.ensure_future(receive())
        await model.turns(model.rng.randrange(4))
        receiving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await receiving
    await asyncio.gather(task, receive())


class Guest(asyncio.Protocol):
    """Answers, and closes; *present* counts the guests of a server."""

    def __init__(self, present: list[int]) -> None:
        self.present = present

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.present.append(self.present[-1] + 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self.present.append(self.present[-1] - 1)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)
        self.transport.close()


async def limited(model: Any, limit: int, count: int) -> None:
    """Ask a server that has a limit, pauses at times, and drains in the end."""
    model.note("limited", limit, count)
    present = [0]
    server = await model.loop.create_server(lambda: Guest(present), *LOCAL, max_connections=limit)
    address = server.sockets[0].getsockname()

    async def ask(number: int) -> None:
        reader, writer = await asyncio.open_connection(*address)
        try:
            # One byte: faults take no question apart.
            writer.write(question := bytes([number]))
            answer = await reader.read()
            if answer != question and not model.harmful:
                model.differs(f"a server with a limit answers {answer!r}")
        finally:
            writer.close()

    asking = [asyncio.ensure_future(ask(number)) for number in range(count)]
    for _ in range(model.rng.randrange(3)):
        server.pause_accepting()
        await model.turns(model.rng.randrange(5))
        server.resume_accepting()
        await model.turns(model.rng.randrange(5))
    ended = await asyncio.gather(*asking, return_exceptions=True)
    most = max(present)
    await server.drain(None if not model.harmful else 1.0)
    for exc in ended:
        if isinstance(exc, BaseException) and not (model.harmful and isinstance(exc, OSError)):
            raise exc
    if most > limit:
        model.differs(f"{most} connections of {limit}")
    if not model.harmful and present[-1]:
        model.differs("a drained server has connections")
