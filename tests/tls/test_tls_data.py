"""Data over TLS: both directions, pausing, backpressure, and the end of a connection."""

from __future__ import annotations

import array
import asyncio
import fcntl
import random
import socket
import ssl
import struct
import termios

import pytest
from support.protocols import Collector, Echo
from support.roles import Guests, Loop, noise, on_loop, read_to_end, reset, turns, until
from support.sockets import tcp_pair
from support.tls_contexts import Contexts, client_context, server_context
from support.tls_peers import (
    Filler,
    Peer,
    ending,
    no_connections_left,
    tls_client,
    tls_link,
    tls_serving,
    tls_stream,
)
from support.virtual_time import Stopwatch

import uringloop

LOCALHOST = "127.0.0.1"
LARGE = 10 * 1024 * 1024
NARROW = 16 * 1024
# More than small socket buffers and SSLProtocol's own 512 KiB hold.
PLENTY = 2 * 1024 * 1024


class Pauser(Collector):
    """Pauses reading inside data_received."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.pause_reading()


# ── both directions ──────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_ten_megabytes_both_ways_arrive_unchanged(each_loop: Loop, version: ssl.TLSVersion) -> None:
    client = client_context()
    client.minimum_version = client.maximum_version = version

    @on_loop
    async def check(each_loop: Loop) -> None:
        left, right = Collector(each_loop), Collector(each_loop)
        async with tls_link(each_loop, left, right, Contexts(server_context(), client)) as ends:
            there, back = noise(LARGE, 1), noise(LARGE, 2)
            ends[0].write(there)
            ends[1].write(back)
            assert await right.received(LARGE) == there
            assert await left.received(LARGE) == back
            ends[0].close()
            assert await left.lost is None
            assert await right.lost is None

    check(each_loop=each_loop)


@on_loop
async def test_many_small_writes_arrive_in_order(each_loop: Loop, contexts: Contexts) -> None:
    left, right = Collector(each_loop), Collector(each_loop)
    rng = random.Random(3)
    data = noise(20_000, 3)
    async with tls_link(each_loop, left, right, contexts) as (client, _):
        sent = 0
        while sent < len(data):
            size = rng.randrange(1, 60)
            client.write(data[sent : sent + size])
            sent += size
            if rng.random() < 0.1:
                await turns(1)
        assert await right.received(len(data)) == data


@on_loop
async def test_every_kind_of_buffer_is_written(each_loop: Loop, contexts: Contexts) -> None:
    async with tls_stream(each_loop, Collector(each_loop), contexts) as (transport, peer):
        transport.write(b"bytes ")
        transport.write(bytearray(b"bytearray "))
        transport.write(memoryview(b"a memoryview ")[2:])
        transport.write(b"")
        transport.writelines([b"a ", bytearray(b"list "), memoryview(b"of them")])
        expected = b"bytes bytearray memoryview a list of them"
        assert await peer.read_exactly(len(expected)) == expected
        with pytest.raises(TypeError, match=r"^data: expecting a bytes-like instance, got str$"):
            transport.write("text")  # type: ignore[arg-type]


@on_loop
async def test_a_view_with_gaps_is_sent_without_them(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    # Issue 51. asyncio ends the connection.
    numbers = array.array("I", range(100))
    async with tls_stream(loop, Collector(loop), contexts) as (transport, peer):
        transport.write(memoryview(b"g-a-p-s-")[::2])
        transport.writelines([b" ", memoryview(b"back")[::-1], b" "])
        transport.write(memoryview(numbers)[::5])
        transport.write(memoryview(numbers))
        expected = b"gaps kcab " + numbers[::5].tobytes() + numbers.tobytes()
        assert await peer.read_exactly(len(expected)) == expected


@on_loop
async def test_a_buffer_may_be_changed_after_write(each_loop: Loop, contexts: Contexts) -> None:
    async with tls_stream(each_loop, Collector(each_loop), contexts) as (transport, peer):
        data = bytearray(b"before")
        transport.write(data)
        data[:] = b"after!"
        assert await peer.read_exactly(6) == b"before"


@on_loop
async def test_write_eof_is_not_supported(each_loop: Loop, contexts: Contexts) -> None:
    async with tls_stream(each_loop, Collector(each_loop), contexts) as (transport, peer):
        assert not transport.can_write_eof()
        with pytest.raises(NotImplementedError):
            transport.write_eof()
        transport.write(b"still open")
        assert await peer.read_exactly(10) == b"still open"


@on_loop
async def test_data_in_the_last_packet_of_the_handshake_is_received(
    each_loop: Loop, contexts: Contexts
) -> None:
    ours, theirs = tcp_pair()
    with theirs:
        right = Collector(each_loop)
        peer = Peer(each_loop, theirs, contexts.client)
        accepted = each_loop.create_task(
            each_loop.connect_accepted_socket(lambda: right, ours, ssl=contexts.server)
        )
        theirs.send(peer.records(peer.tls.do_handshake))
        # The server's whole flight, then the client's Finished and data in one send.
        while not right.made.done() and peer.tls.version() is None:
            peer.incoming.write(await each_loop.sock_recv(theirs, 1 << 16))
            finished = peer.records(peer.tls.do_handshake)
        peer.tls.write(b"early bird")
        theirs.send(finished + peer.outgoing.read())
        transport, _ = await accepted
        async with ending(transport):
            assert await right.received(10) == b"early bird"
            assert right.calls == ["connection_made", "data_received"]


@on_loop
async def test_a_record_may_arrive_byte_by_byte(each_loop: Loop, contexts: Contexts) -> None:
    right = Collector(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
        peer.tls.write(b"one record")
        record = peer.outgoing.read()
        for at in range(len(record)):
            assert not right.data
            await each_loop.sock_sendall(peer.sock, record[at : at + 1])
            await turns(2)
        assert await right.received(10) == b"one record"


@on_loop
async def test_a_damaged_record_ends_the_connection(each_loop: Loop, contexts: Contexts) -> None:
    right = Collector(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
        peer.tls.write(b"to be damaged")
        record = bytearray(peer.outgoing.read())
        record[-1] ^= 1
        await each_loop.sock_sendall(peer.sock, record)
        assert isinstance(await right.lost, ssl.SSLError)
        assert right.calls == ["connection_made", "connection_lost"]


@pytest.mark.parametrize("size", [1, 1000, 300_000])
def test_buffered_protocols_read_tls(each_loop: Loop, contexts: Contexts, size: int) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        total = 2_000 if size == 1 else 1_000_000
        right = Filler(each_loop, size)
        async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
            data = noise(total)
            await peer.send(data)
            await until(lambda: len(right.data) == total)
            assert right.data == data
            await peer.close()
            assert await right.lost is None
            assert right.ended

    check(each_loop=each_loop)


@on_loop
async def test_protocols_can_be_exchanged(each_loop: Loop, contexts: Contexts) -> None:
    first, second = Collector(each_loop), Collector(each_loop)
    async with tls_stream(each_loop, first, contexts, server_side=True) as (transport, peer):
        await peer.send(b"first")
        assert await first.received(5) == b"first"
        second.connection_made(transport)
        transport.set_protocol(second)
        assert transport.get_protocol() is second
        await peer.send(b"second")
        assert await second.received(6) == b"second"
        await peer.close()
        assert await second.lost is None
        assert "connection_lost" not in first.calls


# ── pausing ──────────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_paused_protocol_receives_nothing(each_loop: Loop, contexts: Contexts) -> None:
    right = Collector(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        assert not transport.is_reading()
        await peer.send(b"wait")
        await turns(20)
        assert not right.data
        transport.resume_reading()
        assert transport.is_reading()
        assert await right.received(4) == b"wait"


@pytest.mark.parametrize("server_side", [False, True])
def test_pause_reading_in_data_received_takes_effect(
    each_loop: Loop, contexts: Contexts, server_side: bool
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        ours = Pauser(each_loop)
        total = 3_000_000
        data = noise(total)
        link = tls_stream(each_loop, ours, contexts, server_side=server_side)
        async with link as (transport, peer):
            sending = each_loop.create_task(peer.send(data))
            count = 0
            while len(ours.data) < total:
                await ours.received(count + 1)
                count = len(ours.data)
                await turns(3)
                assert len(ours.data) == count
                transport.resume_reading()
            await sending
            assert ours.data == data

    check(each_loop=each_loop)


@on_loop
async def test_a_paused_protocol_applies_backpressure_to_the_peer(
    each_loop: Loop, contexts: Contexts
) -> None:
    right = Collector(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (transport, peer):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW)
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NARROW)
        transport.pause_reading()
        data = noise(PLENTY)
        sending = each_loop.create_task(peer.send(data))
        await turns(500)
        assert not sending.done()
        assert not right.data
        transport.resume_reading()
        await sending
        assert await right.received(PLENTY) == data


@on_loop
async def test_eof_while_paused_is_delivered_after_resuming(
    each_loop: Loop, contexts: Contexts
) -> None:
    right = Collector(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        peer.tls.write(b"last words")
        await each_loop.sock_sendall(peer.sock, peer.outgoing.read())
        peer.sock.shutdown(socket.SHUT_WR)
        await turns(20)
        assert right.calls == ["connection_made"]
        transport.resume_reading()
        assert await right.lost is None
        assert right.data == b"last words"


# ── backpressure ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("server_side", [False, True])
def test_a_slow_reader_pauses_and_resumes_the_writer(
    each_loop: Loop, contexts: Contexts, server_side: bool
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        ours = Collector(each_loop)
        link = tls_stream(each_loop, ours, contexts, server_side=server_side, buffer_size=NARROW)
        async with link as (transport, peer):
            data = noise(PLENTY)
            written = 0
            while "pause_writing" not in ours.calls:
                transport.write(data[written : written + 65_536])
                written += 65_536
                await turns(1)
            assert transport.get_write_buffer_size() > 0
            assert "resume_writing" not in ours.calls
            assert await peer.read_exactly(written) == data[:written]
            await until(lambda: "resume_writing" in ours.calls)
            assert ours.calls == ["connection_made", "pause_writing", "resume_writing"]
            assert transport.get_write_buffer_size() == 0

    check(each_loop=each_loop)


@on_loop
async def test_the_program_sets_the_write_limits(each_loop: Loop, contexts: Contexts) -> None:
    left = Collector(each_loop)
    async with tls_stream(each_loop, left, contexts) as (transport, _):
        assert transport.get_write_buffer_limits() == (128 * 1024, 512 * 1024)
        transport.set_write_buffer_limits(high=4000)
        assert transport.get_write_buffer_limits() == (1000, 4000)
        with pytest.raises(ValueError, match="must be >= low"):
            transport.set_write_buffer_limits(high=1, low=2)


@on_loop
async def test_drain_waits_for_a_slow_tls_reader(each_loop: Loop, contexts: Contexts) -> None:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    async with tls_stream(each_loop, protocol, contexts, buffer_size=NARROW) as (transport, peer):
        writer = asyncio.StreamWriter(transport, protocol, reader, each_loop)
        data = noise(PLENTY)

        async def pour() -> None:
            for at in range(0, PLENTY, 65_536):
                writer.write(data[at : at + 65_536])
                await writer.drain()

        pouring = each_loop.create_task(pour())
        await turns(200)
        assert not pouring.done()
        assert await peer.read_exactly(PLENTY) == data
        await pouring
        writer.close()
        await peer.close()
        await writer.wait_closed()


# ── the end ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("server_side", [False, True])
def test_close_sends_close_notify(each_loop: Loop, contexts: Contexts, server_side: bool) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        ours = Collector(each_loop)
        link = tls_stream(each_loop, ours, contexts, server_side=server_side)
        async with link as (transport, peer):
            transport.close()
            assert transport.is_closing()
            assert await peer.read() == b""
            await peer.close()
            assert await ours.lost is None
            assert ours.calls == ["connection_made", "eof_received", "connection_lost"]
            transport.write(b"too late")
            transport.close()
            await turns(3)
            assert ours.calls.count("connection_lost") == 1

    check(each_loop=each_loop)


@pytest.mark.parametrize("server_side", [False, True])
def test_close_notify_of_the_peer_ends_the_connection(
    each_loop: Loop, contexts: Contexts, server_side: bool
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        ours = Collector(each_loop)
        link = tls_stream(each_loop, ours, contexts, server_side=server_side)
        async with link as (_, peer):
            await peer.send(b"bye")
            await peer.close()
            assert await ours.lost is None
            assert ours.data == b"bye"
            assert ours.calls == [
                "connection_made",
                "data_received",
                "eof_received",
                "connection_lost",
            ]

    check(each_loop=each_loop)


@pytest.mark.parametrize("server_side", [False, True])
def test_close_sends_buffered_data_first(
    each_loop: Loop, contexts: Contexts, server_side: bool
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        ours = Collector(each_loop)
        # Below the high-water mark of the TCP transport: SSLProtocol itself buffers nothing.
        data = noise(200_000)
        link = tls_stream(each_loop, ours, contexts, server_side=server_side, buffer_size=NARROW)
        async with link as (transport, peer):
            transport.write(data)
            transport.close()
            await turns(5)
            assert not ours.lost.done()
            assert await peer.read_exactly(len(data)) == data
            assert await peer.read() == b""
            await peer.close()
            assert await ours.lost is None

    check(each_loop=each_loop)


# asyncio's default is half a minute.
@pytest.mark.parametrize(("timeout", "seconds"), [(20.0, 20.0), (None, 30.0)])
@on_loop
async def test_shutdown_times_out_without_close_notify_of_the_peer(
    each_virtual_loop: Loop, contexts: Contexts, timeout: float | None, seconds: float
) -> None:
    left = Collector(each_virtual_loop)
    link = tls_stream(each_virtual_loop, left, contexts, shutdown_timeout=timeout)
    async with link as (transport, _):
        watch = Stopwatch(each_virtual_loop)
        transport.close()
        assert isinstance(await left.lost, TimeoutError)
        assert watch.shows(seconds)
        assert left.calls == ["connection_made", "connection_lost"]


@on_loop
async def test_abort_closes_without_close_notify(each_loop: Loop, contexts: Contexts) -> None:
    left = Collector(each_loop)
    link = tls_stream(each_loop, left, contexts, buffer_size=NARROW)
    async with link as (transport, peer):
        transport.write(noise(PLENTY))
        transport.abort()
        assert transport.is_closing()
        assert await left.lost is None
        await turns(3)
        assert left.calls.count("connection_lost") == 1
        # The peer gets what was sent before, without a close_notify.
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await peer.read_to_end()


@pytest.mark.parametrize("server_side", [False, True])
def test_eof_without_close_notify_ends_the_connection(
    each_loop: Loop, contexts: Contexts, server_side: bool
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        ours = Collector(each_loop)
        link = tls_stream(each_loop, ours, contexts, server_side=server_side)
        async with link as (_, peer):
            await peer.send(b"cut")
            peer.sock.shutdown(socket.SHUT_WR)
            assert await ours.lost is None
            assert ours.data == b"cut"
            assert ours.calls.count("eof_received") == 1
            assert ours.calls.count("connection_lost") == 1

    check(each_loop=each_loop)


@on_loop
async def test_a_reset_is_passed_to_connection_lost(each_loop: Loop, contexts: Contexts) -> None:
    left = Collector(each_loop)
    async with tls_stream(each_loop, left, contexts) as (_, peer):
        await turns(2)
        reset(peer.sock)
        assert isinstance(await left.lost, ConnectionResetError)
        assert left.calls == ["connection_made", "connection_lost"]


@on_loop
async def test_a_reset_while_writing_ends_the_connection_once(
    each_loop: Loop, contexts: Contexts
) -> None:
    left = Collector(each_loop)
    link = tls_stream(each_loop, left, contexts, buffer_size=NARROW)
    async with link as (transport, peer):
        transport.write(noise(PLENTY))
        await turns(3)
        reset(peer.sock)
        assert isinstance(await left.lost, ConnectionError)
        transport.write(b"more")
        await turns(3)
        assert left.calls.count("connection_lost") == 1


@on_loop
async def test_an_exception_of_the_protocol_ends_the_connection(
    each_loop: Loop, contexts: Contexts
) -> None:
    class Broken(Collector):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError(data)

    handler_calls: list[dict[str, object]] = []
    left = Broken(each_loop)
    async with tls_stream(each_loop, left, contexts) as (_, peer):
        each_loop.set_exception_handler(lambda _, context: handler_calls.append(context))
        await peer.send(b"boom")
        assert isinstance(await left.lost, ZeroDivisionError)
    assert [type(call["exception"]) for call in handler_calls] == [ZeroDivisionError]
    assert handler_calls[0]["message"] == "Fatal error on SSL protocol"


@pytest.mark.parametrize("size", [10, 4000, 100_000])
@pytest.mark.parametrize("end", ["raise", "abort", "abort the transport below"])
@on_loop
async def test_writes_before_an_abort_reach_the_peer(
    each_loop: Loop, contexts: Contexts, end: str, size: int
) -> None:
    class Refusing(Collector):
        def data_received(self, data: bytes) -> None:
            self.transport.write(b"refused: ")
            self.transport.write(data * size)
            if end == "raise":
                raise ZeroDivisionError(data)
            if end == "abort":
                self.transport.abort()
            else:
                below.abort()

    left = Refusing(each_loop)
    async with tls_stream(each_loop, left, contexts) as (transport, peer):
        below = transport._ssl_protocol._transport  # type: ignore[attr-defined]
        each_loop.set_exception_handler(lambda _, context: None)
        await peer.send(b"?")
        await left.lost
        assert await peer.read_exactly(9 + size) == b"refused: " + b"?" * size


# ── servers ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@on_loop
async def test_two_hundred_handshakes_at_once(each_loop: Loop, contexts: Contexts) -> None:
    count = 200

    async def visit(address: tuple[str, int], number: int) -> None:
        transport, collector = await tls_client(each_loop, address, contexts.client)
        async with ending(transport):
            data = struct.pack("!I", number) * 1000
            transport.write(data)
            assert await collector.received(len(data)) == data
            transport.close()
            assert await collector.lost is None

    async with tls_serving(each_loop, Echo, contexts.server) as address:
        await asyncio.gather(*(visit(address, number) for number in range(count)))


@on_loop
async def test_a_server_can_be_started_again(each_loop: Loop, contexts: Contexts) -> None:
    port = 0
    for _ in range(3):
        server = await each_loop.create_server(Echo, LOCALHOST, port, ssl=contexts.server)
        address = server.sockets[0].getsockname()
        port = address[1]
        transport, collector = await tls_client(each_loop, address, contexts.client)
        async with ending(transport):
            transport.write(b"again")
            assert await collector.received(5) == b"again"
            transport.close()
            assert await collector.lost is None
        server.close()
        await no_connections_left(server)


@pytest.mark.parametrize("method", ["close_clients", "abort_clients"])
def test_a_server_ends_its_clients(loop: uringloop.Loop, contexts: Contexts, method: str) -> None:
    # asyncio has these methods since 3.13; both end the TCP connection.
    @on_loop
    async def check(loop: uringloop.Loop) -> None:
        guests = Guests(loop)
        server = await loop.create_server(guests, LOCALHOST, 0, ssl=contexts.server)
        address = server.sockets[0].getsockname()
        transport, collector = await tls_client(loop, address, contexts.client)
        async with ending(transport):
            await guests.arrived()
            getattr(server, method)()
            assert await guests.seen[0].lost is None
            await collector.lost
            assert guests.seen[0].calls == ["connection_made", "connection_lost"]
        server.close()
        await no_connections_left(server)

    check(loop=loop)


@on_loop
async def test_a_server_ends_a_client_in_its_handshake(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    guests = Guests(loop)
    server = await loop.create_server(guests, LOCALHOST, 0, ssl=contexts.server)
    with socket.create_connection(server.sockets[0].getsockname()) as sock:
        sock.setblocking(False)
        await until(lambda: bool(guests.seen))
        await turns(2)
        server.close_clients()
        assert await read_to_end(loop, sock) == b""
    server.close()
    await no_connections_left(server)
    assert guests.seen[0].calls == []


@on_loop
async def test_a_reset_behind_close_notify_is_a_connection_reset(
    each_loop: Loop, contexts: Contexts
) -> None:
    # The kernel reports it once, to a receive whose result nobody waits for any more.
    right = Collector(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        data = noise(300_000)
        peer.tls.write(data)
        peer.notify()
        await each_loop.sock_sendall(peer.sock, peer.outgoing.read())
        await until(lambda: fcntl.ioctl(peer.sock, termios.TIOCOUTQ, bytes(4)) == bytes(4))
        reset(peer.sock)
        await turns(20)
        transport.resume_reading()
        assert isinstance(await right.lost, ConnectionResetError)
        assert right.data == data
