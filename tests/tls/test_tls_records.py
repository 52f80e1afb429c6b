"""TLS records: cut anywhere, joined, damaged, and decrypted into buffers of the program."""

from __future__ import annotations

import asyncio
import random
import ssl
import sys

import pytest
from support.protocols import Collector, Echo
from support.roles import (
    Loop,
    connected,
    noise,
    on_loop,
    record_handler_calls,
    reset,
    turns,
    until,
)
from support.sources import constant
from support.tls_contexts import Contexts, client_context, server_context
from support.tls_peers import Filler, Peer, ending, records, sends_alerts, tls_link, tls_stream

import uringloop
from uringloop._cpython import stdlib
from uringloop._tls import records as native
from uringloop._tls.ssl_protocol import SSLTransport

RECORD = 16 * 1024
HELD = constant("_tls/ssl_protocol.pyx", "HELD_MAX")
LENGTH_MAX = constant("_tls/records.pyx", "LENGTH_MAX")


def record(size: int, kind: int = 23) -> bytes:
    """Return a record of *size* zero bytes, with a valid header if *kind* is a known type."""
    return bytes((kind, 3, 3)) + size.to_bytes(2) + bytes(size)


# ── the ends of records ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cut", [1, 2, 4, 5, 6, 100, 1000])
def test_record_ends_are_found_in_pieces_of_any_size(cut: int) -> None:
    data = record(0) + record(1) + record(300) + record(LENGTH_MAX) + record(17, 21)
    pieces = [data[at : at + cut] for at in range(0, len(data), cut)]
    sizes = [5, 6, 305, LENGTH_MAX + 5, 22]
    assert native.framed(*pieces) == (sizes, 0, True)
    assert native.framed(data[:-1]) == (sizes[:-1], 21, True)


@pytest.mark.parametrize(
    "garbage",
    [record(1, 19), record(1, 25), b"\x17\x02\x03\0\x01.", record(LENGTH_MAX + 1)],
)
def test_an_invalid_header_is_detected(garbage: bytes) -> None:
    assert native.framed(record(3), garbage) == ([8], 0, False)
    assert native.framed(record(3), garbage[:4]) == ([8], 4, True)


# ── receiving ────────────────────────────────────────────────────────────────────────────────


def sent_by(peer: Peer, *messages: bytes) -> list[bytes]:
    """Return the records of *messages*, a list item for each message."""
    made = []
    for message in messages:
        peer.tls.write(message)
        made.append(peer.outgoing.read())
    return made


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_records_may_be_cut_anywhere(each_loop: Loop, version: ssl.TLSVersion) -> None:
    client = client_context()
    client.minimum_version = client.maximum_version = version

    @on_loop
    async def check(each_loop: Loop) -> None:
        right = Collector(each_loop)
        contexts = Contexts(server_context(), client)
        async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
            total = 0
            for cut in (1, 4, 5, 6, 30, 60, 200):
                data = b"".join(sent_by(peer, noise(40, cut), noise(3, cut), noise(500, cut)))
                total += 543
                await each_loop.sock_sendall(peer.sock, data[:cut])
                await turns(3)
                await each_loop.sock_sendall(peer.sock, data[cut:])
                got = await right.received(total)
                assert got[-543:] == noise(40, cut) + noise(3, cut) + noise(500, cut)

    check(each_loop=each_loop)


@on_loop
async def test_several_records_may_arrive_byte_by_byte(each_loop: Loop, contexts: Contexts) -> None:
    right = Collector(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
        data = b"".join(sent_by(peer, b"one ", b"two ", b"three"))
        for at in range(len(data)):
            await each_loop.sock_sendall(peer.sock, data[at : at + 1])
            await turns(1)
        assert await right.received(13) == b"one two three"


@on_loop
async def test_records_that_come_while_paused_are_all_read(
    each_loop: Loop, contexts: Contexts
) -> None:
    right = Collector(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (transport, peer):
        expected = b""
        for seed in range(20):
            data = noise(3000, seed)
            expected += data
            transport.pause_reading()
            await peer.send(data[:1000])
            await turns(2)
            transport.resume_reading()
            await peer.send(data[1000:])
        assert await right.received(len(expected)) == expected


@on_loop
async def test_reading_goes_on_with_limits_below_a_record(
    each_loop: Loop, contexts: Contexts
) -> None:
    right = Collector(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (transport, peer):
        transport.set_read_buffer_limits(high=1)  # type: ignore[attr-defined]
        (data,) = sent_by(peer, noise(9000))
        for at in range(0, len(data), 1000):
            await each_loop.sock_sendall(peer.sock, data[at : at + 1000])
            await turns(2)
        assert await right.received(9000) == noise(9000)


# ── damage ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("garbage", [b"no record at all", record(8), record(0, 99)])
def test_garbage_after_records_is_an_error(
    each_loop: Loop, contexts: Contexts, garbage: bytes
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        right = Collector(each_loop)
        async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
            data = b"".join(sent_by(peer, b"good", b"too"))
            await each_loop.sock_sendall(peer.sock, data + garbage)
            assert isinstance(await right.lost, ssl.SSLError)
            # asyncio drops the records before it.
            told = ["data_received"] if isinstance(each_loop, uringloop.Loop) else []
            assert bytes(right.data) == (b"goodtoo" if told else b"")
            assert right.calls == ["connection_made", *told, "connection_lost"]

    check(each_loop=each_loop)


@pytest.mark.parametrize("close", [False, True])
@on_loop
async def test_what_comes_before_an_alert_is_delivered(
    loop: uringloop.Loop, contexts: Contexts, close: bool
) -> None:
    class Closing(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if close:
                self.transport.close()

    right = Closing(loop)
    async with tls_stream(loop, right, contexts, server_side=True) as (_, peer):
        data = b"".join(sent_by(peer, b"good", b"too"))
        peer.refuse()
        await loop.sock_sendall(peer.sock, data + peer.outgoing.read())
        # After close() an alert is as good as the peer's close_notify.
        assert isinstance(await right.lost, ssl.SSLError) is not close
        assert right.data == b"goodtoo"
        assert ("eof_received" in right.calls) is close


@pytest.mark.parametrize("size", [3, 100])
@on_loop
async def test_what_comes_before_an_alert_fills_the_buffer(
    loop: uringloop.Loop, contexts: Contexts, size: int
) -> None:
    right = Filler(loop, size)
    async with tls_stream(loop, right, contexts, server_side=True) as (_, peer):
        data = b"".join(sent_by(peer, b"good", b"too"))
        peer.refuse()
        await loop.sock_sendall(peer.sock, data + peer.outgoing.read())
        assert isinstance(await right.lost, ssl.SSLError)
        assert right.data == b"goodtoo"


@on_loop
async def test_an_alert_after_close_does_not_keep_bytes_from_the_peer(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    right = Collector(loop)
    async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
        transport.write(bytes(9_000_000))
        transport.close()
        peer.refuse()
        await peer.flush()
        size = 0
        while data := await loop.sock_recv(peer.sock, 1 << 20):
            size += len(data)
        assert size > 9_000_000
        assert await right.lost is None
        assert right.calls[-1] == "connection_lost"
        # The socket may have room before the alert comes.
        between = ["eof_received", "pause_writing", "resume_writing"]
        assert sorted(right.calls[1:-1]) == between


@on_loop
async def test_a_peer_whose_record_is_refused_gets_an_alert_where_asyncio_sends_one(
    each_loop: Loop, contexts: Contexts
) -> None:
    right = Collector(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
        (whole,) = sent_by(peer, b"data")
        await each_loop.sock_sendall(peer.sock, whole[:-1] + bytes([whole[-1] ^ 1]))
        assert isinstance(await right.lost, ssl.SSLError)
        with pytest.raises(ssl.SSLError) as caught:
            await peer.read()
        assert ("ALERT" in str(caught.value)) == sends_alerts(each_loop)


@on_loop
async def test_an_invalid_header_is_an_error_before_the_record_is_complete(
    each_loop: Loop, contexts: Contexts
) -> None:
    right = Collector(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
        await each_loop.sock_sendall(peer.sock, b"GET / HTTP/1.1\r\n")
        assert isinstance(await right.lost, ssl.SSLError)


@on_loop
async def test_eof_within_a_record_ends_the_connection(each_loop: Loop, contexts: Contexts) -> None:
    right = Collector(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
        whole, half = sent_by(peer, b"whole", b"half")
        await each_loop.sock_sendall(peer.sock, whole + half[:-3])
        assert await right.received(5) == b"whole"
        peer.sock.close()
        await right.lost
        assert right.data == b"whole"


# ── buffers of the program ───────────────────────────────────────────────────────────────────


class Resizing(Filler):
    def get_buffer(self, sizehint: int) -> bytearray:
        assert isinstance(self.buffer, bytearray)
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        assert isinstance(self.buffer, bytearray)
        # BufferError while its memory is exported.
        self.buffer.append(0)


class Pausing(Filler):
    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        self.transport.pause_reading()
        asyncio.get_running_loop().call_soon(self.transport.resume_reading)


@pytest.mark.parametrize("kind", [Filler, Pausing])
@pytest.mark.parametrize("size", [1, 7, RECORD, 100_000])
def test_plaintext_is_decrypted_into_the_buffer_of_the_protocol(
    each_loop: Loop, contexts: Contexts, kind: type[Filler], size: int
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        right = kind(each_loop, size)
        total = 700 if size < 10 else 300_000
        async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
            for seed in range(3):
                await peer.send(noise(total, seed))
            await until(lambda: len(right.data) == 3 * total)
            assert right.data == b"".join(noise(total, seed) for seed in range(3))
            assert min(right.hints) >= 0

    check(each_loop=each_loop)


@on_loop
async def test_methods_make_a_protocol_buffered(loop: uringloop.Loop, contexts: Contexts) -> None:
    class Duck(asyncio.BaseProtocol):
        def __init__(self) -> None:
            self.buffer = bytearray(100)
            self.data = b""

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.data += self.buffer[:nbytes]

    duck = Duck()
    async with tls_stream(loop, duck, contexts, server_side=True) as (_, peer):
        await peer.send(b"quack")
        await until(lambda: duck.data == b"quack")


@on_loop
async def test_buffer_updated_may_resize_the_buffer(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    right = Resizing(loop, 1)
    async with tls_stream(loop, right, contexts, server_side=True) as (_, peer):
        await peer.send(noise(5000))
        await until(lambda: len(right.data) == 5000)
        assert right.data == noise(5000)


@on_loop
async def test_close_notify_waits_until_a_small_buffer_has_all_data(
    each_loop: Loop, contexts: Contexts
) -> None:
    right = Filler(each_loop, 10)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
        data = b"".join(sent_by(peer, noise(35))) + peer.records(peer.tls.unwrap)
        await each_loop.sock_sendall(peer.sock, data)
        await peer.read_to_end()
        assert await right.lost is None
        assert right.data == noise(35)
        assert right.ended


@on_loop
async def test_a_read_only_buffer_ends_the_connection(each_loop: Loop, contexts: Contexts) -> None:
    handler_calls = []
    each_loop.set_exception_handler(lambda _, context: handler_calls.append(context))
    right = Filler(each_loop, 1)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
        right.buffer = b"constant"
        await peer.send(b"data")
        assert isinstance(await right.lost, TypeError)
    assert [call["message"] for call in handler_calls] == ["Fatal error on SSL protocol"]


# ── sending ──────────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_small_writes_of_a_turn_share_a_record(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    async with tls_stream(loop, Collector(loop), contexts) as (transport, peer):
        for number in range(100):
            transport.write(b"%d " % number)
        await turns(1)
        (data,) = await records(loop, peer.sock, 1)
        peer.incoming.write(data)
        assert peer.tls.read(1000) == b"".join(b"%d " % number for number in range(100))


@on_loop
async def test_writes_of_every_size_and_kind_arrive_in_order(
    each_loop: Loop, contexts: Contexts
) -> None:
    rng = random.Random(5)
    sizes = (1, 100, HELD - 1, HELD, HELD + 1, RECORD - 1, RECORD, RECORD + 1, 3 * RECORD)
    async with tls_stream(each_loop, Collector(each_loop), contexts) as (transport, peer):
        for round_ in range(10):
            expected = b""
            for seed in range(12):
                data = noise(rng.choice(sizes), 100 * round_ + seed)
                expected += data
                match rng.randrange(5):
                    case 0:
                        transport.write(bytearray(data))
                    case 1:
                        transport.writelines([data[:7], data[7:]])
                    case 2:
                        transport.writelines([memoryview(data)[:3], data[3:]])
                    case _:
                        transport.write(data)
            assert await peer.read_exactly(len(expected)) == expected


@pytest.mark.parametrize("method", ["close", "abort"])
def test_a_small_write_before_the_end_is_sent(
    each_loop: Loop, contexts: Contexts, method: str
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        left = Collector(each_loop)
        async with tls_stream(each_loop, left, contexts) as (transport, peer):
            transport.write(b"last ")
            transport.write(b"words")
            getattr(transport, method)()
            assert await peer.read_exactly(10) == b"last words"
            if method == "close":
                await peer.close()
            assert await left.lost is None

    check(each_loop=each_loop)


@pytest.mark.parametrize("size", [10, 5000, 20_000])
def test_an_error_of_the_transport_below_ends_the_connection(
    each_loop: Loop, contexts: Contexts, size: int
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        record_handler_calls(each_loop)
        left = Collector(each_loop)
        async with tls_stream(each_loop, left, contexts) as (transport, _):
            transport._ssl_protocol._transport.write_eof()  # type: ignore[attr-defined]
            transport.write(bytes(size))
            # A small write is sent at the end of the turn, and the kernel refuses it.
            assert isinstance(await left.lost, (RuntimeError, BrokenPipeError))

    check(each_loop=each_loop)


@on_loop
async def test_a_large_write_after_a_reset_is_one_lost_write(
    each_loop: Loop, contexts: Contexts, caplog: pytest.LogCaptureFixture
) -> None:
    left = Collector(each_loop)
    async with tls_stream(each_loop, left, contexts) as (transport, peer):
        reset(peer.sock)
        transport.write(noise(8_000_000))
        assert isinstance(await left.lost, ConnectionError)
    assert caplog.messages == []


@on_loop
async def test_get_write_buffer_size_sends_held_writes(each_loop: Loop, contexts: Contexts) -> None:
    async with tls_stream(each_loop, Collector(each_loop), contexts) as (transport, peer):
        transport.write(b"small")
        assert transport.get_write_buffer_size() == 0
        transport.write(b" one")
        assert await peer.read_exactly(9) == b"small one"


@on_loop
async def test_a_write_limit_of_zero_pauses_at_once(each_loop: Loop, contexts: Contexts) -> None:
    left = Collector(each_loop)
    async with tls_stream(each_loop, left, contexts) as (transport, peer):
        transport.set_write_buffer_limits(high=0)
        transport.write(b"small")
        assert "pause_writing" in left.calls
        assert await peer.read_exactly(5) == b"small"


@on_loop
async def test_small_writes_to_a_full_socket_pause_the_program(
    each_loop: Loop, contexts: Contexts
) -> None:
    left = Collector(each_loop)
    async with tls_stream(each_loop, left, contexts, buffer_size=RECORD) as (transport, peer):
        sent = b""
        while "pause_writing" not in left.calls:
            sent += noise(2000, len(sent))
            transport.write(sent[-2000:])
            if len(sent) % 7 == 0:
                await turns(1)
            assert len(sent) < 4_000_000
        assert await peer.read_exactly(len(sent)) == sent
        await until(lambda: left.calls[-1] == "resume_writing")


# ── start_tls, and objects left behind ───────────────────────────────────────────────────────


@on_loop
async def test_start_tls_returns_a_transport_of_its_own(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    left, right = Collector(loop), Collector(loop)
    async with tls_link(loop, left, right, contexts) as (client, server):
        inner, _ = await asyncio.gather(
            loop.start_tls(client, left, contexts.client, server_hostname="localhost"),
            loop.start_tls(server, right, contexts.server, server_side=True),
        )
        assert type(inner) is SSLTransport
        inner.close()
        await left.lost


@pytest.mark.skipif(
    not stdlib.START_TLS_MOVES_READ_AHEAD, reason="this asyncio leaves it in the StreamReader"
)
@on_loop
async def test_a_hello_in_the_buffer_of_a_reader_is_not_lost(
    each_loop: Loop, contexts: Contexts
) -> None:
    accepted: asyncio.Future[asyncio.StreamWriter] = each_loop.create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"STARTTLS\n"
        await writer.start_tls(contexts.server)
        writer.write(await reader.readline())
        accepted.set_result(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        with connected(server.sockets[0].getsockname()) as sock:
            sock.setblocking(False)
            peer = Peer(each_loop, sock, contexts.client)
            sock.send(b"STARTTLS\n" + peer.records(peer.tls.do_handshake))
            await peer.handshake()
            await peer.send(b"a line\n")
            assert await peer.read_exactly(7) == b"a line\n"
            async with ending((await accepted).transport):
                pass


@on_loop
async def test_messages_leave_no_objects_behind(loop: uringloop.Loop, contexts: Contexts) -> None:
    async with tls_stream(loop, Echo(), contexts, server_side=True) as (transport, peer):

        async def several() -> int:
            for size in (1, 100, 5000, RECORD, 50_000) * 20:
                await peer.send(bytes(size))
                transport.write(b"more")
                await peer.read_exactly(size + 4)
            return sys.getallocatedblocks()

        await several()
        before = await several()
        assert await several() - before < 50
