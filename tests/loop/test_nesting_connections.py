"""Nested runs within protocol methods: no byte is lost, delivered twice or out of order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from support.nesting import DEPTH, nestable_loop
from support.protocols import Echo
from support.roles import narrow_pair, nothing_comes, record_handler_calls, until
from support.sockets import tcp_pair, unix_pair
from support.tls_contexts import client_context, server_context
from support.tls_peers import Peer

import uringloop

LARGE = bytes(range(256)) * 16 * 1024
# Options that the socket module has no constants for.
UDP_SEGMENT, UDP_GRO = 103, 104


@pytest.fixture
def loop() -> Iterator[uringloop.Loop]:
    """A new nestable loop, checked for leaks afterwards."""
    for created in nestable_loop():
        created.set_exception_handler(fail)
        yield created
        assert created._operations_in_flight == 0


failures: list[dict[str, Any]] = []


def fail(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    failures.append(context)


@pytest.fixture(autouse=True)
def _no_handler_call() -> Iterator[None]:
    failures.clear()
    yield
    assert failures == []


class Nester(asyncio.Protocol):
    """A protocol that calls *nest* in each call that delivers bytes, and collects the bytes."""

    transport: Any

    def __init__(self, loop: uringloop.Loop, nest: Callable[[Nester], None]) -> None:
        self.loop = loop
        self.nest = nest
        self.data = bytearray()
        self.calls = 0
        self.lost: asyncio.Future[Exception | None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.calls += 1
        self.nest(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)

    async def close(self) -> None:
        self.transport.close()
        await self.lost


class BufferedNester(Nester, asyncio.BufferedProtocol):
    """The same as a BufferedProtocol, with a buffer of *size* bytes."""

    data_received = None  # type: ignore[assignment]

    def __init__(self, loop: uringloop.Loop, nest: Callable[[Nester], None], size: int) -> None:
        super().__init__(loop, nest)
        self.buffer = bytearray(size)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.buffer[:nbytes]
        self.calls += 1
        self.nest(self)


def send_and_nest(peer: socket.socket) -> Callable[[Nester], None]:
    """Return a function that sends a byte to a Nester and nests until it arrives, up to DEPTH."""

    def nest(nester: Nester) -> None:
        count = len(nester.data)
        if count < DEPTH:
            peer.send(bytes([count]))
            nester.loop.run_until_complete(until(lambda: len(nester.data) > count))

    return nest


def nest_for(count: int, calls: int) -> Callable[[Nester], None]:
    """Return a function that nests until a Nester has *count* bytes, in its first *calls* calls."""

    def nest(nester: Nester) -> None:
        if nester.calls <= calls:
            nester.loop.run_until_complete(until(lambda: len(nester.data) >= count))

    return nest


def nest_for_the_next(count: int, calls: int) -> Callable[[Nester], None]:
    """Return a function that nests until the next call begins, in the first *calls* calls.

    All *count* bytes may come in fewer calls.
    """

    def nest(nester: Nester) -> None:
        call = nester.calls
        if call <= calls and len(nester.data) < count:
            nester.loop.run_until_complete(until(lambda: nester.calls > call))

    return nest


@pytest.mark.parametrize("size", [0, 1, 4096], ids=["data_received", "byte by byte", "buffer"])
def test_a_nested_run_in_data_received_receives_from_the_same_connection(
    loop: uringloop.Loop, size: int
) -> None:
    async def main() -> bytes:
        ours, peer = tcp_pair()
        nest = send_and_nest(peer)
        _, nester = await loop.create_connection(
            lambda: BufferedNester(loop, nest, size) if size else Nester(loop, nest), sock=ours
        )
        peer.send(b"\0")
        await until(lambda: len(nester.data) == DEPTH)
        await nester.close()
        peer.close()
        return bytes(nester.data)

    assert loop.run_until_complete(main()) == bytes(range(DEPTH))


@pytest.mark.parametrize("single", [False, True], ids=["multishot", "one receive at a time"])
def test_a_nested_run_receives_from_a_connection_that_was_paused(
    loop: uringloop.Loop, single: bool
) -> None:
    async def main() -> bytes:
        ours, peer = tcp_pair()
        transport, nester = await loop.create_connection(
            lambda: Nester(loop, lambda _: None), sock=ours
        )
        if single:
            # Data that arrives while reading is paused makes the transport use single receives.
            for count in range(2):
                transport.pause_reading()
                peer.send(b"-")
                await nothing_comes(loop)
                transport.resume_reading()
                await until(lambda: len(nester.data) > count)  # noqa: B023
            nester.data.clear()
        nester.nest = send_and_nest(peer)
        peer.send(b"\0")
        await until(lambda: len(nester.data) == DEPTH)
        await nester.close()
        peer.close()
        return bytes(nester.data)

    assert loop.run_until_complete(main()) == bytes(range(DEPTH))


@pytest.mark.parametrize("size", [0, 7, 1000, 300_000])
@pytest.mark.parametrize("calls", [1, 20])
def test_bytes_keep_their_order_at_any_depth(loop: uringloop.Loop, size: int, calls: int) -> None:
    sent = LARGE[:100_000] if size == 7 else LARGE

    async def main() -> bytes:
        ours, peer = tcp_pair()
        nest = nest_for_the_next(len(sent), calls)
        _, nester = await loop.create_connection(
            lambda: BufferedNester(loop, nest, size) if size else Nester(loop, nest), sock=ours
        )
        sending = loop.create_task(loop.sock_sendall(peer, sent))
        await until(lambda: len(nester.data) >= len(sent))
        await sending
        await nester.close()
        peer.close()
        return bytes(nester.data)

    assert loop.run_until_complete(main()) == sent


@pytest.mark.parametrize("size", [0, 3])
def test_the_rest_of_a_message_arrives_during_its_first_delivery(
    loop: uringloop.Loop, size: int
) -> None:
    sent = bytes(range(200))

    async def main() -> bytes:
        ours, peer = tcp_pair()
        nest = nest_for(len(sent), 1)
        _, nester = await loop.create_connection(
            lambda: BufferedNester(loop, nest, size) if size else Nester(loop, nest), sock=ours
        )
        peer.send(sent[:100])
        loop.call_later(0.001, peer.send, sent[100:])
        await until(lambda: len(nester.data) >= len(sent))
        await nester.close()
        peer.close()
        return bytes(nester.data)

    assert loop.run_until_complete(main()) == sent


def test_stashed_data_keeps_its_order(loop: uringloop.Loop) -> None:
    async def main() -> bytes:
        ours, peer = tcp_pair()
        transport, nester = await loop.create_connection(
            lambda: Nester(loop, lambda _: None), sock=ours
        )
        nester.nest = nest_for(DEPTH, DEPTH - 1)
        transport.pause_reading()
        for number in range(DEPTH):
            peer.send(bytes([number]))
            await asyncio.sleep(0)
        transport.resume_reading()
        await until(lambda: len(nester.data) == DEPTH)
        await nester.close()
        peer.close()
        return bytes(nester.data)

    assert loop.run_until_complete(main()) == bytes(range(DEPTH))


def test_resume_writing_can_nest_while_another_connection_waits_for_a_flush(
    loop: uringloop.Loop,
) -> None:
    class Resumer(asyncio.Protocol):
        """Exchanges a byte over the other connection in resume_writing()."""

        resumed = 0

        def resume_writing(self) -> None:
            self.resumed += 1
            other.transport.write(b"x")
            loop.run_until_complete(until(lambda: other.data == b"x" * self.resumed))

    resumer = Resumer()

    async def main() -> None:
        ours, peer = narrow_pair(4096)
        peer.setblocking(False)
        transport, _ = await loop.create_connection(lambda: resumer, sock=ours)
        for round_number in range(1, 6):
            transport.write(LARGE[:500_000])
            # Both transports are on the flush list when the first one's queue has room again.
            other.transport.write(b"")
            received = 0
            while received < 500_000:
                received += len(await loop.sock_recv(peer, 100_000))
            await until(lambda: resumer.resumed == round_number)  # noqa: B023
        transport.abort()
        peer.close()

    async def connect() -> Nester:
        left, right = tcp_pair()
        echo, _ = await loop.create_connection(Echo, sock=right)
        echoes.append(echo)
        _, nester = await loop.create_connection(lambda: Nester(loop, lambda _: None), sock=left)
        return nester

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    echoes: list[asyncio.BaseTransport] = []
    other = loop.run_until_complete(connect())
    loop.run_until_complete(main())
    for echo in echoes:
        echo.close()
    loop.run_until_complete(other.close())


def test_resume_writing_can_nest_at_the_end_of_a_run(loop: uringloop.Loop) -> None:
    class Resumer(asyncio.Protocol):
        """Nests a run when the end of a run completes its send."""

        paused = resumed = 0

        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            transport.set_write_buffer_limits(500_000, 500_000)

        def pause_writing(self) -> None:
            self.paused += 1

        def resume_writing(self) -> None:
            self.resumed += 1
            loop.run_until_complete(asyncio.sleep(0))

    pairs = [narrow_pair(16 * 1024) for _ in range(4)]
    resumers: list[Resumer] = []

    async def fill() -> None:
        for ours, _ in pairs:
            _, resumer = await loop.create_connection(Resumer, sock=ours)
            resumers.append(resumer)
            while not resumer.paused:
                resumer.transport.write(LARGE[:1000])
        # The sends wait in the ring for room.
        await asyncio.sleep(0.01)

    async def make_room() -> None:
        for _, peer in pairs:
            peer.recv(1_000_000)

    async def end() -> None:
        for resumer in resumers:
            resumer.transport.abort()
        await asyncio.sleep(0)

    loop.run_until_complete(fill())
    # Nothing but the end of this run takes the completions of the sends.
    loop.run_until_complete(make_room())
    assert [resumer.resumed for resumer in resumers] == [1] * len(pairs)
    loop.run_until_complete(end())
    for _, peer in pairs:
        peer.close()


def test_every_method_of_a_protocol_can_nest(loop: uringloop.Loop) -> None:
    called: list[str] = []

    def nest(name: str) -> None:
        called.append(name)
        loop.run_until_complete(asyncio.sleep(0.001))
        called.append(f"{name} nested")

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nest("connection_made")

        def data_received(self, data: bytes) -> None:
            nest("data_received")

        def eof_received(self) -> None:
            nest("eof_received")

        def connection_lost(self, exc: Exception | None) -> None:
            nest("connection_lost")
            lost.set_result(None)

    lost = loop.create_future()

    async def main() -> None:
        server = await loop.create_server(Protocol, "127.0.0.1", 0)
        peer = socket.create_connection(server.sockets[0].getsockname())
        peer.send(b"data")
        peer.shutdown(socket.SHUT_WR)
        await lost
        peer.close()
        server.close()
        await server.wait_closed()

    loop.run_until_complete(main())
    names = ("connection_made", "data_received", "eof_received", "connection_lost")
    assert [name for name in called if name in names] == list(names)
    assert sorted(called) == sorted([*names, *(f"{name} nested" for name in names)])


def test_streams_over_tls_can_nest(loop: uringloop.Loop) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        depth = int(line)
        if depth:
            # Connect to the same server within the handler of this connection.
            line = asyncio.run(ask(depth - 1))
        writer.write(b"%d\n" % (int(line) + 1))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def ask(depth: int) -> bytes:
        reader, writer = await asyncio.open_connection(
            *address, ssl=client_context(), server_hostname="localhost"
        )
        writer.write(b"%d\n" % depth)
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line

    async def main() -> int:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_context())
        address.extend(server.sockets[0].getsockname())
        async with server:
            return int(await ask(10))

    address: list[Any] = []
    assert loop.run_until_complete(main()) == 11


def test_an_error_of_connection_made_reaches_the_caller(loop: uringloop.Loop) -> None:
    class Failing(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            raise ZeroDivisionError

    async def connect() -> None:
        server = await loop.create_server(Echo, "127.0.0.1", 0, ssl=server_context())
        async with server:
            address = server.sockets[0].getsockname()
            with pytest.raises(ZeroDivisionError):
                await loop.create_connection(
                    Failing, *address, ssl=client_context(), server_hostname="localhost"
                )

    handler_calls = record_handler_calls(loop)
    loop.run_until_complete(connect())
    assert len(handler_calls) == 1


def test_a_nested_run_receives_from_the_same_tls_connection(loop: uringloop.Loop) -> None:
    async def main() -> bytes:
        def nest(nester: Nester) -> None:
            count = len(nester.data)
            if count < DEPTH:
                peers[0].transport.write(bytes([count]))
                loop.run_until_complete(until(lambda: len(nester.data) > count))

        peers: list[Nester] = []

        def accepted() -> Nester:
            peers.append(Nester(loop, lambda _: None))
            return peers[-1]

        server = await loop.create_server(accepted, "127.0.0.1", 0, ssl=server_context())
        _, nester = await loop.create_connection(
            lambda: Nester(loop, nest),
            *server.sockets[0].getsockname(),
            ssl=client_context(),
            server_hostname="localhost",
        )
        await until(lambda: bool(peers) and hasattr(peers[0], "transport"))
        peers[0].transport.write(b"\0")
        await until(lambda: len(nester.data) == DEPTH)
        await nester.close()
        await peers[0].lost
        server.close()
        await server.wait_closed()
        return bytes(nester.data)

    assert loop.run_until_complete(main()) == bytes(range(DEPTH))


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_nested_run_in_connection_made_receives_from_the_connection(
    loop: uringloop.Loop, secure: bool
) -> None:
    class Greeted(Nester):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.write(b"hello")
            loop.run_until_complete(until(lambda: self.data == b"hello"))

        def data_received(self, data: bytes) -> None:
            self.data += data

    async def main() -> bytes:
        server = await loop.create_server(
            Echo, "127.0.0.1", 0, ssl=server_context() if secure else None
        )
        options: Any = {"ssl": client_context(), "server_hostname": "localhost"}
        _, nester = await loop.create_connection(
            lambda: Greeted(loop, lambda _: None),
            *server.sockets[0].getsockname(),
            **(options if secure else {}),
        )
        # This goes on within the nested run.
        await until(lambda: nester.data == b"hello")
        await nester.close()
        server.close()
        await server.wait_closed()
        return bytes(nester.data)

    assert loop.run_until_complete(main()) == b"hello"


def test_a_tls_connection_ends_in_a_run_within_data_received(loop: uringloop.Loop) -> None:
    # The objects of the connection are freed when the run returns, and not before.
    class Leaving(Nester):
        def data_received(self, data: bytes) -> None:
            self.data += data
            if self.calls == 0:
                self.calls = 1
                ours.close()
                loop.run_until_complete(self.lost)
                gc.collect()

        def connection_lost(self, exc: Exception | None) -> None:
            del self.transport
            super().connection_lost(exc)

    async def main() -> bytes:
        nester = Leaving(loop, lambda _: None)
        server = await loop.create_server(lambda: nester, "127.0.0.1", 0, ssl=server_context())
        ours.setblocking(False)
        await loop.sock_connect(ours, server.sockets[0].getsockname())
        peer = Peer(loop, ours, client_context())
        await peer.handshake()
        await peer.send(b"go")
        await nester.lost
        server.close()
        await server.wait_closed()
        return bytes(nester.data)

    ours = socket.socket()
    assert loop.run_until_complete(main()) == b"go"


def test_a_run_within_the_last_bytes_of_tls_sees_the_end(loop: uringloop.Loop) -> None:
    class Waiting(Nester):
        def data_received(self, data: bytes) -> None:
            self.data += data
            loop.run_until_complete(self.lost)

    async def main() -> bytes:
        ours, theirs = tcp_pair()
        nester = Waiting(loop, lambda _: None)
        peer = Peer(loop, theirs, client_context())
        (transport, _), _ = await asyncio.gather(
            loop.connect_accepted_socket(lambda: nester, ours, ssl=server_context()),
            peer.handshake(),
        )
        transport.pause_reading()
        await peer.send(b"last words")
        theirs.shutdown(socket.SHUT_WR)
        await asyncio.sleep(0.01)
        transport.resume_reading()
        await nester.lost
        theirs.close()
        return bytes(nester.data)

    assert loop.run_until_complete(main()) == b"last words"


def test_records_behind_close_notify_are_dropped_in_a_nested_run(loop: uringloop.Loop) -> None:
    junk = b"\x17\x03\x03\x00\x20" + bytes(32)

    peers: list[Peer] = []

    class Asking(Nester):
        def eof_received(self) -> None:
            peers[0].sock.send(junk)
            loop.run_until_complete(asyncio.sleep(0.01))

    async def main() -> bytes:
        ours, theirs = tcp_pair()
        nester = Asking(loop, lambda _: None)
        peer = Peer(loop, theirs, client_context())
        peers.append(peer)
        await asyncio.gather(
            loop.connect_accepted_socket(lambda: nester, ours, ssl=server_context()),
            peer.handshake(),
        )
        peer.tls.write(b"last words")
        with contextlib.suppress(ssl.SSLWantReadError):
            peer.tls.unwrap()
        theirs.send(peer.outgoing.read() + junk)
        assert await nester.lost is None
        theirs.close()
        return bytes(nester.data)

    assert loop.run_until_complete(main()) == b"last words"


class NestingDatagrams(asyncio.DatagramProtocol):
    """Waits in a nested run for the next datagram, until it has *depth* of them."""

    def __init__(
        self, loop: uringloop.Loop, depth: int, before: Callable[[int], object] = lambda _: None
    ) -> None:
        self.loop = loop
        self.depth = depth
        self.before = before
        self.received: list[bytes] = []
        self.lost = loop.create_future()

    def datagram_received(self, data: bytes, address: Any) -> None:
        self.received.append(data)
        count = len(self.received)
        if count < self.depth:
            self.before(count)
            self.loop.run_until_complete(until(lambda: len(self.received) > count))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)


def test_a_nested_run_in_datagram_received_receives_datagrams(loop: uringloop.Loop) -> None:
    peer = socket.socket(type=socket.SOCK_DGRAM)
    protocol = NestingDatagrams(loop, DEPTH, lambda count: peer.send(b"%d" % count))

    async def main() -> None:
        transport, _ = await loop.create_datagram_endpoint(lambda: protocol, ("127.0.0.1", 0))
        peer.connect(transport.get_extra_info("sockname"))
        peer.send(b"0")
        await until(lambda: len(protocol.received) == DEPTH)
        transport.close()
        await protocol.lost

    with peer:
        loop.run_until_complete(main())
    assert protocol.received == [b"%d" % number for number in range(DEPTH)]


def test_a_nested_run_receives_the_rest_of_merged_datagrams(loop: uringloop.Loop) -> None:
    protocol = NestingDatagrams(loop, 3)

    async def main() -> None:
        transport, _ = await loop.create_datagram_endpoint(lambda: protocol, ("127.0.0.1", 0))
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        peer.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 10)
        peer.sendto(bytes(range(100)), sock.getsockname())
        await until(lambda: len(protocol.received) == 10)
        transport.close()
        await protocol.lost

    with socket.socket(type=socket.SOCK_DGRAM) as peer:
        loop.run_until_complete(main())
    expected = [bytes(range(start, start + 10)) for start in range(0, 100, 10)]
    assert protocol.received == expected


def test_a_nested_run_reads_from_the_same_pipe(loop: uringloop.Loop) -> None:
    async def main() -> bytes:
        def nest(nester: Nester) -> None:
            count = len(nester.data)
            if count < DEPTH:
                os.write(write_end, bytes([count]))
                loop.run_until_complete(until(lambda: len(nester.data) > count))

        read_end, write_end = os.pipe()
        _, nester = await loop.connect_read_pipe(
            lambda: Nester(loop, nest), os.fdopen(read_end, "rb", 0)
        )
        os.write(write_end, b"\0")
        await until(lambda: len(nester.data) == DEPTH)
        await nester.close()
        os.close(write_end)
        return bytes(nester.data)

    assert loop.run_until_complete(main()) == bytes(range(DEPTH))


class NestsFirst(BufferedNester):
    """Nests in get_buffer(), once, when it has received large messages."""

    nest_now: Callable[[], None] | None = None
    ends = 0

    def get_buffer(self, sizehint: int) -> bytearray:
        nest_now, self.nest_now = self.nest_now, None
        if nest_now is not None:
            nest_now()
        return super().get_buffer(sizehint)

    def eof_received(self) -> bool:
        self.ends += 1
        return True


large = pytest.mark.parametrize("make", [tcp_pair, unix_pair], ids=["tcp", "unix"])


@contextlib.asynccontextmanager
async def nester_with_large_messages(
    loop: uringloop.Loop, make: Callable[[], tuple[socket.socket, socket.socket]]
) -> AsyncIterator[tuple[NestsFirst, socket.socket]]:
    """Return a protocol that has received large messages, and its peer."""
    ours, peer = make()
    nester = NestsFirst(loop, lambda nester: None, 65_536)
    with peer:
        await loop.create_connection(lambda: nester, sock=ours)
        for _ in range(30):
            await loop.sock_sendall(peer, LARGE[:100_000])
        await until(lambda: len(nester.data) == 30 * 100_000)
        nester.data.clear()
        yield nester, peer
        await nester.close()


@large
def test_an_end_that_a_nested_run_in_get_buffer_receives_comes_once(
    loop: uringloop.Loop, make: Callable[[], tuple[socket.socket, socket.socket]]
) -> None:
    async def main() -> None:
        async with nester_with_large_messages(loop, make) as (nester, peer):

            def nest() -> None:
                peer.shutdown(socket.SHUT_WR)
                loop.run_until_complete(until(lambda: nester.ends > 0))

            nester.nest_now = nest
            await loop.sock_sendall(peer, LARGE[:100_000])
            await until(lambda: nester.ends > 0)
            await nothing_comes(loop)
            assert nester.ends == 1
            assert bytes(nester.data) == LARGE[:100_000]

    loop.run_until_complete(main())


@large
def test_bytes_that_a_nested_run_in_get_buffer_stashes_keep_their_order(
    loop: uringloop.Loop, make: Callable[[], tuple[socket.socket, socket.socket]]
) -> None:
    async def main() -> None:
        async with nester_with_large_messages(loop, make) as (nester, peer):

            async def small_messages() -> None:
                # So many that the connection is not polled any more.
                for _ in range(200):
                    count = len(nester.data)
                    peer.send(b".")
                    await until(lambda: len(nester.data) > count)  # noqa: B023  # Awaited here.
                nester.transport.pause_reading()
                peer.send(b"A")
                await nothing_comes(loop)

            def nest() -> None:
                loop.run_until_complete(small_messages())
                nester.transport.resume_reading()
                peer.send(b"B")

            nester.nest_now = nest
            peer.send(b"first")
            await until(lambda: b"B" in nester.data)
            assert bytes(nester.data) == b"first" + 200 * b"." + b"AB"

    loop.run_until_complete(main())


@large
def test_bytes_that_the_ring_takes_for_a_nested_run_keep_their_order(
    loop: uringloop.Loop, make: Callable[[], tuple[socket.socket, socket.socket]]
) -> None:
    async def small_messages(
        nester: Nester, peer: socket.socket, send_last: Callable[[], None]
    ) -> None:
        # So many that the ring receives from the connection.
        for _ in range(200):
            count = len(nester.data)
            peer.send(b".")
            await until(lambda: len(nester.data) > count)  # noqa: B023  # Awaited here.
        # Timers run behind the completions of the nested run's last turn.
        loop.call_later(0, send_last)

    async def main() -> None:
        ours, peer = make()
        pairs = [make() for _ in range(2)]
        others = [
            (await loop.create_connection(asyncio.Protocol, sock=left))[0] for left, _ in pairs
        ]

        def send_last() -> None:
            peer.send(b"A")
            # The ring is entered for these, and takes the byte then.
            for other in others:
                other.write(b"written")

        def nest(nester: Nester) -> None:
            if nester.data.endswith(b"first"):
                loop.run_until_complete(small_messages(nester, peer, send_last))
                peer.send(b"B")

        _, nester = await loop.create_connection(lambda: Nester(loop, nest), sock=ours)
        for _ in range(30):
            await loop.sock_sendall(peer, LARGE[:100_000])
        await until(lambda: len(nester.data) == 30 * 100_000)
        nester.data.clear()
        peer.send(b"first")
        await until(lambda: b"A" in nester.data and b"B" in nester.data)
        assert bytes(nester.data) == b"first" + 200 * b"." + b"AB"
        await nester.close()
        for other in others:
            other.abort()
        for sock in (peer, *(right for _, right in pairs)):
            sock.close()
        await nothing_comes(loop)

    loop.run_until_complete(main())


# ── accepting ────────────────────────────────────────────────────────────────────────────────────


class Accepting:
    """A server of *loop* whose factory calls *nest* for connection number *at*."""

    def __init__(self, loop: uringloop.Loop, nest: Callable[[], None], at: int = 1) -> None:
        self.loop = loop
        self.nest = nest
        self.at = at
        self.count = 0
        self.peers: list[socket.socket] = []
        self.accepted: list[Nester] = []

    async def begin(self) -> None:
        self.server = await self.loop.create_server(self.accept, "127.0.0.1", 0)

    def accept(self) -> Nester:
        self.count += 1
        if self.count == self.at:
            self.nest()
        self.accepted.append(Nester(self.loop, lambda nester: None))
        return self.accepted[-1]

    def connect(self, count: int) -> None:
        address = self.server.sockets[0].getsockname()
        self.peers += [socket.create_connection(address) for _ in range(count)]

    async def end(self) -> None:
        self.server.close()
        await until(lambda: all(hasattr(nester, "transport") for nester in self.accepted))
        for nester in self.accepted:
            await nester.close()
        for peer in self.peers:
            peer.close()


def test_a_nested_run_in_a_factory_accepts_what_waits_at_the_same_server(
    loop: uringloop.Loop,
) -> None:
    async def main() -> None:
        def nest() -> None:
            loop.run_until_complete(until(lambda: serving.count == 3))

        serving = Accepting(loop, nest)
        await serving.begin()
        serving.connect(3)
        await until(lambda: len(serving.accepted) == 3)
        await serving.end()

    loop.run_until_complete(main())


def test_a_nested_run_in_a_flush_accepts_what_a_full_turn_has_left(loop: uringloop.Loop) -> None:
    # More than a turn accepts: the end of the turn goes on, first with one server, then with the
    # other.
    most, left = 32, 8

    async def main() -> None:
        def nest() -> None:
            nested.append(len(nested))
            loop.run_until_complete(until(lambda: all(each.count > most + 1 for each in serving)))

        nested: list[int] = []
        serving = [Accepting(loop, nest, most + 1), Accepting(loop, nest, most + 1)]
        for each in serving:
            await each.begin()
        for each in serving:
            each.connect(most + left)
        for each in serving:
            await until(lambda: len(each.accepted) == most + left)  # noqa: B023  # Awaited here.
            await each.end()
        assert nested == [0, 1]

    loop.run_until_complete(main())


def test_a_nested_run_in_a_flush_accepts_at_a_server_whose_poll_has_ended(
    loop: uringloop.Loop,
) -> None:
    def nest() -> None:
        loop.run_until_complete(until(lambda: all(each.count for each in serving)))

    serving = [Accepting(loop, nest), Accepting(loop, nest)]
    for each in serving:
        loop.run_until_complete(each.begin())
    # The end of the run has ended the polls, and the first turn of the next run accepts.
    for each in serving:
        each.connect(1)

    async def main() -> None:
        await until(lambda: all(each.accepted for each in serving))
        for each in serving:
            await each.end()

    loop.run_until_complete(main())
