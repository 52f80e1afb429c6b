"""Datagram transports: receiving, pausing, errors, threads, extra info."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.datagrams import Mailbox, abort_and_wait, drained, endpoint, udp, unix_pair
from support.loops import run_turns
from support.roles import (
    Loop,
    in_thread,
    needs_ipv6,
    noise,
    nothing_comes,
    on_loop,
    record_handler_calls,
    released,
    turns,
    until,
    unused_port,
)

import uringloop
from uringloop import testing

LOCAL = ("127.0.0.1", 0)
LARGEST = 65_507
LARGEST_IPV6 = 65_527
# asyncio's datagram transports cannot be paused before 3.11.4 (gh-103607); Debian 12 has 3.11.2.
PAUSES = sys.version_info >= (3, 11, 4)


@pytest.fixture
def _pauses(each_loop: Loop) -> None:
    if not PAUSES and not isinstance(each_loop, uringloop.Loop):
        pytest.skip("asyncio's datagram transports can be paused since 3.11.4")


needs_pausing = pytest.mark.usefixtures("_pauses")


# ── receiving ─────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_nothing_is_received_before_the_endpoint_is_handed_out(each_loop: Loop) -> None:
    order: list[str] = []

    class Receiver(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            order.append("data")
            received.set_result(data)

    received = each_loop.create_future()
    with udp() as sock, udp() as sender:
        sender.sendto(b"early", sock.getsockname())
        transport, _ = await each_loop.create_datagram_endpoint(Receiver, sock=sock)
        order.append("open")
        assert await received == b"early"
        assert order == ["open", "data"]
        transport.close()
        await turns(3)


@on_loop
async def test_datagrams_keep_their_boundaries_order_and_senders(each_loop: Loop) -> None:
    async with endpoint(each_loop, local_addr=LOCAL) as (transport, mailbox):
        with udp() as left, udp() as right:
            expected = []
            for number in range(50):
                peer = right if number % 3 else left
                data = noise(20 * number + 1, number)
                peer.sendto(data, transport.get_extra_info("sockname"))
                expected.append((data, peer.getsockname()))
            assert await mailbox.received(50) == expected


@on_loop
async def test_empty_datagram_is_delivered_and_is_not_eof(each_loop: Loop) -> None:
    async with endpoint(each_loop, local_addr=LOCAL) as (transport, mailbox):
        with udp() as peer:
            for data in (b"", b"full", b"", b"", b"full"):
                peer.sendto(data, transport.get_extra_info("sockname"))
            await mailbox.received(5)
            assert mailbox.data == [b"", b"full", b"", b"", b"full"]
            assert {address for _, address in mailbox.mail} == {peer.getsockname()}


@pytest.mark.parametrize(
    ("host", "size"),
    [("127.0.0.1", LARGEST), pytest.param("::1", LARGEST_IPV6, marks=needs_ipv6)],
)
@on_loop
async def test_largest_datagram_arrives_whole(each_loop: Loop, host: str, size: int) -> None:
    async with endpoint(each_loop, local_addr=(host, 0)) as (transport, mailbox):
        with udp(host) as peer:
            for seed in range(3):
                peer.sendto(noise(size, seed), transport.get_extra_info("sockname"))
                await mailbox.received(seed + 1)
                assert mailbox.data[seed] == noise(size, seed)
                transport.sendto(noise(size, seed), peer.getsockname())
                assert await each_loop.sock_recv(peer, 2 * size) == noise(size, seed)


@on_loop
async def test_more_datagrams_than_buffers_all_arrive_in_order(each_loop: Loop) -> None:
    async with (
        endpoint(each_loop, local_addr=LOCAL) as (left, left_mailbox),
        endpoint(each_loop, local_addr=LOCAL) as (right, right_mailbox),
    ):
        with udp() as peer:
            numbers = [b"%d" % number for number in range(200)]
            for _ in range(5):
                for number in numbers:
                    peer.sendto(number, left.get_extra_info("sockname"))
                    peer.sendto(number, right.get_extra_info("sockname"))
                for mailbox in (left_mailbox, right_mailbox):
                    await mailbox.received(len(numbers))
                    assert mailbox.data == numbers
                    mailbox.mail.clear()


def test_no_endpoint_is_forgotten_when_the_kernel_refuses_to_arm_it_again() -> None:
    loop = testing.Loop(order="fifo", kernel_sockets=True)
    waits: list[Any] = []

    def fill_queue(peer: socket.socket) -> None:
        while True:
            waits.append(loop.sock_recv(peer, 1))
            waits[-1].send(None)

    async def exchange(peer: socket.socket, ends: list[Any]) -> list[Any]:
        # The ring receives from the fifth datagram on, and takes a buffer for each.
        for count in range(1, 6):
            for transport, mailbox in ends:
                peer.sendto(b"%d" % count, transport.get_extra_info("sockname"))
                await mailbox.received(count)
        loop.faults = testing.Faults(starved=1.0)
        for transport, _ in ends:
            peer.sendto(b"6", transport.get_extra_info("sockname"))
        before = loop.stats()["starved"]
        await until(lambda: loop.stats()["starved"] >= before + len(ends))
        # The receives have ended in the enter of this turn, whose submissions now fill the queue.
        loop.faults = testing.Faults(starved=1.0, busy=1.0)
        with pytest.raises(BlockingIOError):
            fill_queue(peer)
        return [await mailbox.received(6) for _, mailbox in ends]

    async def main() -> list[Any]:
        return [await loop.create_datagram_endpoint(Mailbox, local_addr=LOCAL) for _ in range(3)]

    with contextlib.closing(loop), udp() as peer:
        ends = loop.run_until_complete(main())
        exchanging = loop.create_task(exchange(peer, ends))
        with pytest.raises(BlockingIOError):
            loop.run_until_complete(exchanging)
        assert not exchanging.done()
        loop.faults = testing.Faults()
        for mail in loop.run_until_complete(exchanging):
            assert [data for data, _ in mail] == [b"1", b"2", b"3", b"4", b"5", b"6"]
        for wait in waits:
            wait.close()
        for transport, _ in ends:
            transport.close()
        run_turns(loop, 3)
        assert loop.stats()["operations"] == 0


@on_loop
async def test_burst_loses_only_datagrams_that_the_kernel_drops(each_loop: Loop) -> None:
    async with endpoint(each_loop, local_addr=LOCAL) as (transport, mailbox):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        with udp() as peer:
            sockname = transport.get_extra_info("sockname")
            for number in range(5000):
                peer.sendto(b"%d" % number, sockname)
                if number % 100 == 99:
                    await turns()
            await until(lambda: mailbox.mail != [])
            await turns(5)
            peer.sendto(b"5000", sockname)
            await until(lambda: mailbox.data[-1] == b"5000")
            numbers = [int(data) for data in mailbox.data]
            assert numbers == sorted(set(numbers))
            # At least one for each of the 50 turns: the receive is re-armed every time.
            assert len(numbers) >= 50


@on_loop
async def test_large_unix_datagram_arrives_whole(each_loop: Loop, tmp_path: Path) -> None:
    ours, peer = unix_pair(tmp_path, send_buffer=1 << 20)
    async with endpoint(each_loop, sock=ours) as (transport, mailbox):
        with peer:
            for size in (0, 1, 150_000, 0, 70_000, 5):
                peer.send(noise(size))
            await mailbox.received(6)
            assert mailbox.data == [noise(size) for size in (0, 1, 150_000, 0, 70_000, 5)]
            transport.sendto(noise(150_000))
            assert await each_loop.sock_recv(peer, 1 << 20) == noise(150_000)


@on_loop
async def test_datagram_larger_than_asyncios_max_size_arrives_whole(
    loop: Loop, tmp_path: Path
) -> None:
    ours, peer = unix_pair(tmp_path, send_buffer=1 << 20)
    async with endpoint(loop, sock=ours) as (_, mailbox):
        with peer:
            try:
                peer.send(noise(300_000))
            except OSError as exc:
                pytest.skip(f"net.core.wmem_max of this machine is too small: {exc}")
            await mailbox.received()
            assert mailbox.data == [noise(300_000)]


@on_loop
async def test_unix_datagrams_of_many_senders_keep_their_order(
    each_loop: Loop, tmp_path: Path
) -> None:
    path = str(tmp_path / "mailbox")
    options: dict[str, Any] = {"local_addr": path, "family": socket.AF_UNIX}
    async with endpoint(each_loop, **options) as (_, mailbox):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
            peer.setblocking(False)
            for number in range(100):
                # The kernel queues about ten datagrams for a UNIX socket.
                await each_loop.sock_sendto(peer, b"%d" % number, path)
            await mailbox.received(100)
            assert mailbox.data == [b"%d" % number for number in range(100)]


# ── datagrams that the kernel has merged (UDP_GRO) ───────────────────────────────────────────
# uringloop only: asyncio delivers them as one, without their boundaries.


# Options that the socket module has no constants for.
UDP_SEGMENT, UDP_GRO = 103, 104
SO_TIMESTAMP = 29


def merging(sock: Any) -> None:
    """Let the kernel merge datagrams that *sock* receives."""
    sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)


def send_merged(peer: socket.socket, size: int, count: int, address: Any) -> list[bytes]:
    """Send *count* datagrams of *size* in one packet, the last of them shorter; return them."""
    peer.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
    data = noise(size * count - size // 2)
    assert peer.sendto(data, address) == len(data)
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
@on_loop
async def test_merged_datagrams_are_delivered_one_by_one(loop: uringloop.Loop, host: str) -> None:
    async with endpoint(loop, local_addr=(host, 0)) as (transport, mailbox):
        sock = transport.get_extra_info("socket")
        merging(sock)
        # SO_TIMESTAMP adds a control message beside that of the segment size.
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
        with udp(host) as peer:
            sent = send_merged(peer, 100, 10, sock.getsockname())
            sent += send_merged(peer, 1400, 40, sock.getsockname())
            peer.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
            peer.sendto(b"alone", sock.getsockname())
            await mailbox.received(51)
            assert mailbox.mail == [(data, peer.getsockname()) for data in [*sent, b"alone"]]


@on_loop
async def test_pausing_stops_between_merged_datagrams(loop: uringloop.Loop) -> None:
    class Pauses(Mailbox):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            if len(self.mail) in (3, 12):
                self.transport.pause_reading()  # type: ignore[attr-defined]

    async with endpoint(loop, Pauses(), local_addr=LOCAL) as (transport, mailbox):
        merging(transport.get_extra_info("socket"))
        with udp() as peer:
            address = transport.get_extra_info("sockname")
            sent = send_merged(peer, 100, 8, address) + send_merged(peer, 200, 8, address)
            for count in (3, 12, 16):
                await mailbox.received(count)
                await turns(5)
                assert mailbox.data == sent[:count]
                transport.resume_reading()


@pytest.mark.parametrize("method", ["close", "abort"])
def test_close_and_abort_drop_remaining_merged_datagrams(loop: uringloop.Loop, method: str) -> None:
    class Ends(Mailbox):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            if len(self.mail) == 3:
                getattr(self.transport, method)()

    @on_loop
    async def check(loop: uringloop.Loop) -> None:
        async with endpoint(loop, Ends(), local_addr=LOCAL) as (transport, mailbox):
            merging(transport.get_extra_info("socket"))
            with udp() as peer:
                sent = send_merged(peer, 100, 8, transport.get_extra_info("sockname"))
                await until(lambda: mailbox.lost)
                assert mailbox.data == sent[:3]

    check(loop=loop)


def test_an_interrupt_loses_no_merged_datagram(loop: uringloop.Loop) -> None:
    class Interrupts(Mailbox):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            if len(self.mail) == 3:
                raise KeyboardInterrupt

    async def begin() -> Any:
        transport, _ = await loop.create_datagram_endpoint(lambda: mailbox, local_addr=LOCAL)
        merging(transport.get_extra_info("socket"))
        return transport

    mailbox = Interrupts()
    transport = loop.run_until_complete(begin())
    with udp() as peer:
        sent = send_merged(peer, 100, 8, transport.get_extra_info("sockname"))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(mailbox.received(8))
        loop.run_until_complete(mailbox.received(8))
    assert mailbox.data == sent
    loop.run_until_complete(abort_and_wait(transport))


# ── pausing ───────────────────────────────────────────────────────────────────────────────


@needs_pausing
@on_loop
async def test_datagrams_wait_while_paused(each_loop: Loop) -> None:
    async with endpoint(each_loop, local_addr=LOCAL) as (transport, mailbox):
        address = transport.get_extra_info("sockname")
        with udp() as peer:
            peer.sendto(b"before", address)
            await mailbox.received()
            assert transport.is_reading()
            transport.pause_reading()
            transport.pause_reading()
            assert not transport.is_reading()
            expected = [noise(500, number) for number in range(40)]
            for data in expected:
                peer.sendto(data, address)
                await asyncio.sleep(0)
            await nothing_comes(each_loop)
            assert mailbox.data == [b"before"]
            transport.resume_reading()
            transport.resume_reading()
            assert transport.is_reading()
            await mailbox.received(41)
            assert mailbox.data == [b"before", *expected]


@needs_pausing
@on_loop
async def test_pausing_in_datagram_received_stops_at_that_datagram(each_loop: Loop) -> None:
    class OneByOne(Mailbox):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            self.transport.pause_reading()  # type: ignore[attr-defined]

    async with endpoint(each_loop, OneByOne(), local_addr=LOCAL) as (transport, mailbox):
        address = transport.get_extra_info("sockname")
        with udp() as peer:
            for number in range(100):
                peer.sendto(noise(9, number), address)
            for count in range(1, 101):
                await mailbox.received(count)
                await turns(2)
                assert mailbox.data == [noise(9, number) for number in range(count)]
                transport.resume_reading()


@needs_pausing
@on_loop
async def test_unix_datagrams_wait_while_paused(each_loop: Loop, tmp_path: Path) -> None:
    ours, theirs = unix_pair(tmp_path)
    async with endpoint(each_loop, sock=ours) as (transport, mailbox):
        with theirs:
            transport.pause_reading()
            theirs.send(b"first")
            theirs.send(b"second")
            await nothing_comes(each_loop)
            assert mailbox.data == []
            transport.resume_reading()
            await mailbox.received(2)
            assert mailbox.data == [b"first", b"second"]


@needs_pausing
@on_loop
async def test_an_error_waits_while_paused(each_loop: Loop) -> None:
    port = unused_port()
    async with endpoint(each_loop, remote_addr=("127.0.0.1", port)) as (transport, mailbox):
        transport.pause_reading()
        transport.sendto(b"to nobody")
        await nothing_comes(each_loop)
        assert mailbox.errors == []
        transport.resume_reading()
        await mailbox.failed()
        assert [type(exc) for exc in mailbox.errors] == [ConnectionRefusedError]


@needs_pausing
@on_loop
async def test_closing_while_paused_drops_received_datagrams(each_loop: Loop) -> None:
    async with endpoint(each_loop, local_addr=LOCAL) as (transport, mailbox):
        transport.pause_reading()
        with udp() as peer:
            peer.sendto(b"too late", transport.get_extra_info("sockname"))
            await nothing_comes(each_loop)
        transport.close()
        transport.resume_reading()
        assert not transport.is_reading()
        await until(lambda: mailbox.lost != [])
        assert mailbox.data == []


@on_loop
async def test_stream_methods_raise_not_implemented_error(each_loop: Loop) -> None:
    async with endpoint(each_loop, local_addr=LOCAL) as (transport, _):
        calls: list[Callable[[], object]] = [
            lambda: transport.write(b"data"),
            lambda: transport.writelines([b"data"]),
            lambda: transport.write_eof(),
            lambda: transport.can_write_eof(),
        ]
        for call in calls:
            with pytest.raises(NotImplementedError):
                call()


# ── errors ────────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_econnrefused_goes_to_error_received_and_reading_goes_on(each_loop: Loop) -> None:
    port = unused_port()
    async with endpoint(each_loop, remote_addr=("127.0.0.1", port)) as (transport, mailbox):
        for count in (1, 2, 3):
            transport.sendto(b"anybody?")
            await mailbox.failed(count)
        assert {type(exc) for exc in mailbox.errors} == {ConnectionRefusedError}
        assert {exc.errno for exc in mailbox.errors} == {errno.ECONNREFUSED}
        with udp(port=port) as peer:
            peer.sendto(b"here", transport.get_extra_info("sockname"))
            await mailbox.received()
            assert mailbox.data == [b"here"]
            transport.sendto(b"good")
            assert drained(peer, 1) == [b"good"]
        assert not transport.is_closing()


@on_loop
async def test_emsgsize_goes_to_error_received(each_loop: Loop) -> None:
    with udp() as peer:
        async with endpoint(each_loop, remote_addr=peer.getsockname()) as (transport, mailbox):
            transport.sendto(bytes(LARGEST + 1))
            assert [exc.errno for exc in mailbox.errors] == [errno.EMSGSIZE]
            transport.sendto(b"smaller")
            assert drained(peer, 1) == [b"smaller"]


@on_loop
async def test_sendto_raises_the_exception_of_error_received(each_loop: Loop) -> None:
    class Failing(Mailbox):
        def error_received(self, exc: Exception) -> None:
            raise LookupError("no idea")

    with udp() as peer:
        options = {"remote_addr": peer.getsockname()}
        async with endpoint(each_loop, Failing(), **options) as (transport, _):
            with pytest.raises(LookupError, match="no idea"):
                transport.sendto(bytes(LARGEST + 1))
            assert not transport.is_closing()


@pytest.mark.parametrize("kind", ["udp", "unix"])
@on_loop
async def test_errors_in_callbacks_are_reported_and_receiving_goes_on(
    each_loop: Loop, tmp_path: Path, kind: str
) -> None:
    class Failing(Mailbox):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            raise LookupError(data)

        def error_received(self, exc: Exception) -> None:
            super().error_received(exc)
            raise LookupError(exc)

    handler_calls = record_handler_calls(each_loop)
    if kind == "unix":
        ours, peer = unix_pair(tmp_path)
    else:
        ours, peer = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        ours.bind(LOCAL)
        peer.connect(ours.getsockname())
        ours.connect(peer.getsockname())
    async with endpoint(each_loop, Failing(), sock=ours) as (transport, mailbox):
        with peer:
            for data in (b"one", b"", b"three"):
                peer.send(data)
            await mailbox.received(3)
        if kind == "udp":
            transport.sendto(b"gone")
            await mailbox.failed()
        assert not transport.is_closing()
    expected: list[object] = [b"one", b"", b"three", *mailbox.errors]
    assert [getattr(call["exception"], "args", None) for call in handler_calls] == [
        (e,) for e in expected
    ]


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("kind", ["udp", "unix"])
def test_the_next_run_receives_on_after_an_interrupt(
    each_loop: Loop, tmp_path: Path, leaving: type[BaseException], kind: str
) -> None:
    class Interrupted(Mailbox):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            if data == b"stop":
                raise leaving

    if kind == "unix":
        ours, peer = unix_pair(tmp_path)
    else:
        ours, peer = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        ours.bind(LOCAL)
        peer.connect(ours.getsockname())
    transport, mailbox = each_loop.run_until_complete(
        each_loop.create_datagram_endpoint(Interrupted, sock=ours)
    )
    with peer:
        for data in (b"one", b"stop", b"three", b""):
            peer.send(data)
        with pytest.raises(leaving):
            each_loop.run_forever()
        assert mailbox.data == [b"one", b"stop"]
        each_loop.run_until_complete(mailbox.received(4))
        peer.send(b"five")
        each_loop.run_until_complete(mailbox.received(5))
    assert mailbox.data == [b"one", b"stop", b"three", b"", b"five"]
    each_loop.run_until_complete(abort_and_wait(transport))


# ── threads ───────────────────────────────────────────────────────────────────────────────


# The kernel queues about ten datagrams for a UNIX socket.
@pytest.mark.parametrize(("family", "burst"), [(socket.AF_INET, 20), (socket.AF_UNIX, 2)])
def test_datagrams_sent_between_runs_in_different_threads_arrive(
    each_loop: Loop, tmp_path: Path, family: int, burst: int
) -> None:
    local: Any = LOCAL if family == socket.AF_INET else str(tmp_path / "mailbox")

    async def begin() -> tuple[asyncio.DatagramTransport, Mailbox]:
        return await each_loop.create_datagram_endpoint(Mailbox, local_addr=local, family=family)

    transport, mailbox = in_thread(lambda: each_loop.run_until_complete(begin()))
    expected: list[bytes] = []

    def receive_all() -> None:
        each_loop.run_until_complete(mailbox.received(len(expected)))

    with socket.socket(family, socket.SOCK_DGRAM) as peer:
        peer.connect(transport.get_extra_info("sockname"))
        peer.setblocking(False)
        for turn in range(10):
            for _ in range(burst):
                expected.append(b"%d" % len(expected))
                peer.send(expected[-1])
            # Every other run is in the main thread, which stays alive between its runs.
            if turn % 2:
                receive_all()
            elif turn % 4:
                in_thread(receive_all)
            else:
                # One turn, which may end before the datagrams are received.
                in_thread(lambda: run_turns(each_loop))
        receive_all()
    assert mailbox.data == expected
    each_loop.run_until_complete(abort_and_wait(transport))


# ── set_protocol(), extra info, repr() ────────────────────────────────────────────────────


@on_loop
async def test_set_protocol_replaces_the_protocol(each_loop: Loop) -> None:
    mailbox, other = Mailbox(), Mailbox()
    async with endpoint(each_loop, mailbox, local_addr=LOCAL) as (transport, _):
        assert transport.get_protocol() is mailbox
        transport.set_protocol(other)
        assert transport.get_protocol() is other
        with udp() as peer:
            peer.sendto(b"for the other", transport.get_extra_info("sockname"))
            await other.received()
        assert mailbox.mail == []


@on_loop
async def test_extra_info_and_repr_describe_the_transport(loop: Loop) -> None:
    async with endpoint(loop, local_addr=LOCAL) as (transport, _):
        assert isinstance(transport, asyncio.DatagramTransport)
        # asyncio's datagram transport is an instance of both classes, too.
        assert isinstance(transport, asyncio.Transport)
        sock = transport.get_extra_info("socket")
        assert sock.family == socket.AF_INET
        assert transport.get_extra_info("sockname") == sock.getsockname()
        assert transport.get_extra_info("nothing", "default") == "default"
        await turns()
        fd = sock.fileno()
        text = f"<DatagramTransport open fd={fd} read=polling write=<idle, bufsize=0>>"
        assert repr(transport) == text
        with pytest.raises(RuntimeError, match=rf"^File descriptor {fd} is used by transport <"):
            loop.add_reader(fd, print)
        transport.close()
        assert repr(transport).startswith("<DatagramTransport closing ")
        await released(transport)
        assert repr(transport).startswith("<DatagramTransport closed ")
