"""TCP transports with a Protocol: order of callbacks, EOF, closing, errors, extra info."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import socket
import warnings

import pytest
from support.loops import LoopFactory
from support.protocols import Collector, Echo
from support.roles import (
    Failing,
    HalfOpen,
    Loop,
    abort_and_wait,
    check_error_loses_connection,
    noise,
    on_loop,
    read_exactly,
    read_to_end,
    record_handler_calls,
    released,
    reset,
    serving,
    stream,
    turns,
    until,
)
from support.sockets import tcp_pair

# Small kernel buffers, so that a write of PLENTY stays queued in the transport.
NARROW = 16 * 1024
PLENTY = 4 * 1024 * 1024


# ── callbacks ─────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_callbacks_run_in_order_and_once(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (_, peer):
        peer.send(b"hello")
        assert await collector.received(5) == b"hello"
        peer.close()
        assert await collector.lost is None
        await turns(3)
    assert collector.calls == [
        "connection_made",
        "data_received",
        "eof_received",
        "connection_lost",
    ]


@on_loop
async def test_connection_made_runs_before_waiting_data_is_delivered(each_loop: Loop) -> None:
    ours, peer = tcp_pair()
    with peer:
        peer.send(b"early")
        collector = Collector(each_loop)
        transport, protocol = await each_loop.create_connection(lambda: collector, sock=ours)
        assert protocol is collector
        assert collector.calls[0] == "connection_made"
        assert await collector.received(5) == b"early"
        transport.close()
        await collector.lost


@on_loop
async def test_data_arrives_as_bytes(each_loop: Loop) -> None:
    kinds: set[type] = set()

    class Typed(Collector):
        def data_received(self, data: bytes) -> None:
            kinds.add(type(data))
            super().data_received(data)

    typed = Typed(each_loop)
    async with stream(each_loop, typed) as (_, peer):
        peer.send(b"hello")
        await typed.received(5)
    assert kinds == {bytes}


@on_loop
async def test_one_byte_at_a_time_arrives_whole(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    data = noise(300)
    async with stream(each_loop, collector) as (_, peer):
        for index in range(len(data)):
            peer.send(data[index : index + 1])
            await collector.received(index + 1)
        assert bytes(collector.data) == data


@on_loop
async def test_data_sent_right_before_eof_is_never_lost(each_loop: Loop) -> None:
    for seed in range(100):
        collector = Collector(each_loop)
        data = noise(20_000, seed)
        async with stream(each_loop, collector) as (_, peer):
            peer.send(data)
            peer.close()
            assert await collector.lost is None
        assert bytes(collector.data) == data


@on_loop
async def test_data_sent_right_before_a_reset_is_never_lost(each_loop: Loop) -> None:
    for seed in range(50):
        collector = Collector(each_loop)
        data = noise(5000, seed)
        async with stream(each_loop, collector) as (_, peer):
            peer.send(data)
            reset(peer)
            assert isinstance(await collector.lost, ConnectionResetError)
        assert bytes(collector.data) == data


@on_loop
async def test_end_of_stream_closes_by_default(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        peer.shutdown(socket.SHUT_WR)
        await collector.eof
        assert transport.is_closing()
        assert await read_to_end(each_loop, peer) == b""
        assert await collector.lost is None


@on_loop
async def test_eof_received_returning_true_keeps_the_writing_half(each_loop: Loop) -> None:
    collector = HalfOpen(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        peer.shutdown(socket.SHUT_WR)
        await collector.eof
        await turns(3)
        assert not transport.is_closing()
        transport.write(b"still here")
        assert await read_exactly(each_loop, peer, 10) == b"still here"
        transport.close()
        assert await read_to_end(each_loop, peer) == b""
        assert await collector.lost is None
    assert collector.calls.count("eof_received") == 1


@on_loop
async def test_writing_to_a_closed_peer_loses_the_connection(each_loop: Loop) -> None:
    collector = HalfOpen(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        peer.close()
        await collector.eof
        while not collector.lost.done():
            transport.write(b"anyone?")
            await asyncio.sleep(0)
        assert isinstance(await collector.lost, ConnectionError)


@on_loop
async def test_reset_by_the_peer_is_connection_reset_error(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        reset(peer)
        assert isinstance(await collector.lost, ConnectionResetError)
        assert transport.is_closing()
    assert collector.calls == ["connection_made", "connection_lost"]


@on_loop
async def test_callbacks_run_in_the_context_of_creation(each_loop: Loop) -> None:
    name = contextvars.ContextVar("name", default="unset")
    seen: list[str] = []

    class Witness(Collector):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            seen.append(name.get())
            super().connection_made(transport)

        def data_received(self, data: bytes) -> None:
            seen.append(name.get())
            super().data_received(data)

        def eof_received(self) -> bool | None:
            seen.append(name.get())
            return super().eof_received()

        def connection_lost(self, exc: Exception | None) -> None:
            seen.append(name.get())
            super().connection_lost(exc)

    witness = Witness(each_loop)
    name.set("creation")
    async with stream(each_loop, witness) as (_, peer):
        name.set("later")
        peer.send(b"x")
        await witness.received(1)
        peer.close()
        await witness.lost
    assert seen == ["creation"] * 4


# ── closing ───────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_close_sends_pending_data_first(each_loop: Loop) -> None:
    data = noise(PLENTY)
    collector = Collector(each_loop)
    async with stream(each_loop, collector, buffer_size=NARROW) as (transport, peer):
        transport.write(data)
        transport.close()
        assert transport.is_closing()
        assert not collector.lost.done()
        assert await read_to_end(each_loop, peer) == data
        assert await collector.lost is None


@on_loop
async def test_connection_lost_runs_after_close_returns(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        transport.close()
        transport.close()
        assert collector.calls == ["connection_made"]
        assert await collector.lost is None
        await turns(3)
        assert collector.calls == ["connection_made", "connection_lost"]
        assert await read_to_end(each_loop, peer) == b""


@on_loop
async def test_no_data_is_delivered_after_close(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        peer.send(b"unread")
        transport.close()
        peer.send(b"unread")
        await collector.lost
    assert collector.calls == ["connection_made", "connection_lost"]


@on_loop
async def test_abort_discards_pending_data(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector, buffer_size=NARROW) as (transport, peer):
        transport.write(bytes(PLENTY))
        await turns(2)
        transport.abort()
        transport.abort()
        assert transport.is_closing()
        assert transport.get_write_buffer_size() == 0
        assert collector.calls[-1] != "connection_lost"
        assert await collector.lost is None
        assert len(await read_to_end(each_loop, peer)) < PLENTY
    assert collector.calls.count("connection_lost") == 1


@on_loop
async def test_data_written_right_before_abort_is_sent(each_loop: Loop) -> None:
    """asyncio sends in write(), so that abort() drops only bytes that the socket refused."""
    async with stream(each_loop, Collector(each_loop)) as (transport, peer):
        transport.write(b"the last ")
        transport.writelines([b"words", b"!"])
        transport.abort()
        transport.write(b"too late")
        assert await read_to_end(each_loop, peer) == b"the last words!"


@on_loop
async def test_abort_ends_a_close_that_waits_for_the_peer(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector, buffer_size=NARROW) as (transport, _):
        transport.write(bytes(PLENTY))
        transport.close()
        await turns(3)
        assert not collector.lost.done()
        transport.abort()
        assert await collector.lost is None


@on_loop
async def test_reset_while_closing_reports_the_error(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector, buffer_size=NARROW) as (transport, peer):
        transport.write(bytes(PLENTY))
        transport.close()
        await turns(2)
        reset(peer)
        assert isinstance(await collector.lost, ConnectionError)


@pytest.mark.parametrize("end", ["close", "abort"])
@on_loop
async def test_closing_inside_data_received_stops_the_data(each_loop: Loop, end: str) -> None:
    class Once(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if end == "close":
                self.transport.close()
            else:
                self.transport.abort()

    once = Once(each_loop)
    async with stream(each_loop, once) as (_, peer):
        peer.send(b"one")
        await once.received(3)
        peer.send(b"two")
        assert await once.lost is None
    assert bytes(once.data) == b"one"
    assert once.calls == ["connection_made", "data_received", "connection_lost"]


@pytest.mark.parametrize("end", ["close", "abort"])
@on_loop
async def test_closing_inside_connection_made_reads_nothing(each_loop: Loop, end: str) -> None:
    class Brief(Collector):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.write(b"bye")
            if end == "close":
                self.transport.close()
            else:
                self.transport.abort()

    ours, peer = tcp_pair()
    with peer:
        peer.send(b"never read")
        brief = Brief(each_loop)
        transport, _ = await each_loop.create_connection(lambda: brief, sock=ours)
        assert await brief.lost is None
        await released(transport)
    assert brief.calls == ["connection_made", "connection_lost"]


@on_loop
async def test_data_written_before_close_in_data_received_is_sent(each_loop: Loop) -> None:
    class Answer(Collector):
        def data_received(self, data: bytes) -> None:
            self.transport.write(data.upper())
            self.transport.close()

    async with stream(each_loop, Answer(each_loop)) as (_, peer):
        peer.send(b"shout")
        assert await read_exactly(each_loop, peer, 5) == b"SHOUT"


# ── errors of protocols ───────────────────────────────────────────────────────────────────


class Faulty(Collector, Failing):
    """Raise in the given callback."""

    def __init__(self, loop: Loop, callback: str) -> None:
        super().__init__(loop)
        self.callback = callback
        self.error = ValueError(callback)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._fail_in("connection_made")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._fail_in("data_received")

    def eof_received(self) -> bool | None:
        super().eof_received()
        self._fail_in("eof_received")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._fail_in("connection_lost")

    def _fail_in(self, callback: str) -> None:
        if callback == self.callback:
            raise self.error


@pytest.mark.parametrize("callback", ["data_received", "eof_received"])
@on_loop
async def test_an_error_in_a_callback_loses_the_connection(each_loop: Loop, callback: str) -> None:
    await check_error_loses_connection(each_loop, Faulty(each_loop, callback))


@on_loop
async def test_an_error_in_connection_made_is_reported_and_survived(each_loop: Loop) -> None:
    handler_calls = record_handler_calls(each_loop)
    faulty = Faulty(each_loop, "connection_made")
    async with stream(each_loop, faulty) as (transport, peer):
        assert [call["exception"] for call in handler_calls] == [faulty.error]
        assert str(handler_calls[0]["message"]).startswith("Exception in callback ")
        assert not transport.is_closing()
        peer.send(b"go on")
        assert await faulty.received(5) == b"go on"


@on_loop
async def test_an_error_in_connection_lost_is_reported_and_the_socket_closed(
    each_loop: Loop,
) -> None:
    handler_calls = record_handler_calls(each_loop)
    faulty = Faulty(each_loop, "connection_lost")
    async with stream(each_loop, faulty) as (transport, _):
        transport.close()
        await released(transport)
        await until(lambda: len(handler_calls) == 1)
    assert [call["exception"] for call in handler_calls] == [faulty.error]


def test_system_exit_in_data_received_leaves_the_loop(each_loop: Loop) -> None:
    class Leaver(Collector):
        def data_received(self, data: bytes) -> None:
            raise SystemExit(3)

    ours, peer = tcp_pair()
    with peer:
        transport, _ = each_loop.run_until_complete(
            each_loop.create_connection(lambda: Leaver(each_loop), sock=ours)
        )
        peer.send(b"x")
        with pytest.raises(SystemExit):
            each_loop.run_forever()
        each_loop.run_until_complete(abort_and_wait(transport))


# ── the transport as an object ────────────────────────────────────────────────────────────


@on_loop
async def test_a_transport_is_an_asyncio_transport(each_loop: Loop) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, _):
        assert isinstance(transport, asyncio.Transport)
        assert isinstance(transport, asyncio.ReadTransport)
        assert isinstance(transport, asyncio.WriteTransport)


@on_loop
async def test_extra_info_names_both_ends(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, peer):
        assert transport.get_extra_info("peername") == peer.getsockname()
        assert transport.get_extra_info("sockname") == peer.getpeername()
        assert transport.get_extra_info("no such thing") is None
        assert transport.get_extra_info("no such thing", 7) == 7
        names = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        transport.close()
        await collector.lost
        assert (transport.get_extra_info("peername"), transport.get_extra_info("sockname")) == names


@on_loop
async def test_the_socket_of_a_transport_can_be_inspected(each_loop: Loop) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, peer):
        sock = transport.get_extra_info("socket")
        assert (sock.family, sock.type) == (socket.AF_INET, socket.SOCK_STREAM)
        assert sock.getsockname() == peer.getpeername()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert sock.fileno() > 0
        assert sock.gettimeout() == 0.0


@on_loop
async def test_accepted_connections_know_both_ends_and_have_nodelay(each_loop: Loop) -> None:
    accepted: list[Collector] = []

    def factory() -> Collector:
        accepted.append(Collector(each_loop))
        return accepted[-1]

    async with serving(each_loop, factory) as address:
        with socket.create_connection(address) as peer:
            await until(lambda: len(accepted) == 1 and accepted[0].made.done())
            transport = accepted[0].transport
            assert transport.get_extra_info("peername") == peer.getsockname()
            assert transport.get_extra_info("sockname") == address
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


@on_loop
async def test_repr_shows_the_fd_and_the_state(each_loop: Loop) -> None:
    collector = Collector(each_loop)
    async with stream(each_loop, collector) as (transport, _):
        fd = transport.get_extra_info("socket").fileno()
        assert f"fd={fd} " in repr(transport)
        assert "clos" not in repr(transport)
        transport.close()
        assert "closing" in repr(transport)
        await released(transport)
        assert "closed" in repr(transport)


@on_loop
async def test_is_reading_and_is_closing_follow_close(each_loop: Loop) -> None:
    async with stream(each_loop, Collector(each_loop)) as (transport, _):
        assert transport.is_reading()
        assert not transport.is_closing()
        transport.close()
        assert not transport.is_reading()
        assert transport.is_closing()


@on_loop
async def test_set_protocol_delivers_to_the_new_protocol(each_loop: Loop) -> None:
    first, second = Collector(each_loop), Collector(each_loop)
    async with stream(each_loop, first) as (transport, peer):
        assert transport.get_protocol() is first
        peer.send(b"one")
        await first.received(3)
        transport.set_protocol(second)
        assert transport.get_protocol() is second
        second.calls.append("set_protocol")
        peer.send(b"two")
        assert await second.received(3) == b"two"
        peer.close()
        assert await second.lost is None
    assert first.calls == ["connection_made", "data_received"]
    assert second.calls == ["set_protocol", "data_received", "eof_received", "connection_lost"]


@on_loop
async def test_set_protocol_inside_data_received_takes_effect_at_once(each_loop: Loop) -> None:
    class Greeter(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.set_protocol(heir)
            self.transport.write(b"go")

    heir = Collector(each_loop)
    heir.calls.append("set_protocol")
    greeter = Greeter(each_loop)
    async with stream(each_loop, greeter) as (_, peer):
        peer.send(b"hi")
        assert await read_exactly(each_loop, peer, 2) == b"go"
        peer.send(b"rest")
        assert await heir.received(4) == b"rest"
    assert bytes(greeter.data) == b"hi"


def test_an_unclosed_transport_warns_when_it_is_collected(loop_factory: LoopFactory) -> None:
    loop = loop_factory()
    ours, peer = tcp_pair()
    with peer:
        transport, protocol = loop.run_until_complete(
            loop.create_connection(asyncio.Protocol, sock=ours)
        )
        loop.close()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del transport, protocol, ours, loop
            gc.collect()
        texts = [str(w.message) for w in caught if w.category is ResourceWarning]
        assert any(text.startswith("unclosed transport <") for text in texts), texts
        peer.setblocking(True)
        peer.settimeout(5)
        assert peer.recv(1) == b""


# ── many connections ──────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@on_loop
async def test_five_hundred_connections_echo_their_own_bytes(each_loop: Loop) -> None:
    async def converse(address: tuple[str, int], seed: int) -> None:
        collector = Collector(each_loop)
        transport, _ = await each_loop.create_connection(lambda: collector, *address)
        sent = b""
        for turn in range(5):
            sent += (piece := noise(1 + 997 * turn, seed * 10 + turn))
            transport.write(piece)
            assert await collector.received(len(sent)) == sent
        transport.close()
        assert await collector.lost is None

    async with serving(each_loop, Echo) as address:
        await asyncio.gather(*(converse(address, seed) for seed in range(500)))
