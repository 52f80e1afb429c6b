"""Datagram transports: sending, UDP_SEGMENT, flow control, closing."""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import gc
import re
import socket
import warnings
from pathlib import Path
from typing import Any

import pytest
from support.datagrams import (
    Mailbox,
    abort_and_wait,
    drained,
    endpoint,
    fill_receiver,
    udp,
    unix_pair,
    unsent,
)
from support.roles import (
    Loop,
    in_thread,
    needs_ipv6,
    noise,
    on_loop,
    record_handler_calls,
    released,
    turns,
    until,
)

import uringloop
from uringloop._cpython import stdlib

LOCAL = ("127.0.0.1", 0)
LARGEST = 65_507
# Datagrams that a UNIX socket keeps: 10 by default, and 512 where systemd runs.
QUEUE_LENGTH = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
LARGEST_IPV6 = 65_527
# Options that the socket module has no constants for.
UDP_SEGMENT, UDP_GRO = 103, 104


# ── sending ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@on_loop
async def test_sendto_accepts_every_bytes_like_type(each_loop: Loop, kind: Any) -> None:
    with udp() as peer:
        async with endpoint(each_loop, remote_addr=peer.getsockname()) as (transport, _):
            transport.sendto(kind(b"hello"))
            assert drained(peer, 1) == [b"hello"]


@on_loop
async def test_sendto_sends_all_bytes_of_a_view_of_wider_items(each_loop: Loop) -> None:
    numbers = array.array("I", range(100))
    with udp() as peer:
        async with endpoint(each_loop, remote_addr=peer.getsockname()) as (transport, _):
            transport.sendto(memoryview(numbers))
            assert drained(peer, 1) == [numbers.tobytes()]


@on_loop
async def test_empty_datagrams_are_sent_since_python_3_13(each_loop: Loop) -> None:
    with udp() as peer:
        async with endpoint(each_loop, local_addr=LOCAL) as (transport, _):
            transport.sendto(b"", peer.getsockname())
            transport.sendto(b"full", peer.getsockname())
            sent = [b"", b"full"] if stdlib.EMPTY_DATAGRAMS_ARE_SENT else [b"full"]
            assert drained(peer, len(sent)) == sent


@pytest.mark.parametrize("wrong", ["text", None, 5, [b"list"]])
@on_loop
async def test_sendto_refuses_objects_that_are_not_bytes_like(each_loop: Loop, wrong: Any) -> None:
    async with endpoint(each_loop, local_addr=LOCAL) as (transport, _):
        with pytest.raises(TypeError) as caught:
            transport.sendto(wrong, ("127.0.0.1", 9))
        assert str(caught.value) == (
            f"data argument must be a bytes-like object, not '{type(wrong).__name__}'"
        )
        assert not transport.is_closing()


@on_loop
async def test_endpoint_with_a_remote_address_refuses_any_other(each_loop: Loop) -> None:
    with udp() as peer:
        address = peer.getsockname()
        async with endpoint(each_loop, remote_addr=address) as (transport, _):
            transport.sendto(b"one", None)
            transport.sendto(b"two", address)
            wanted = f"Invalid address: must be None or {address}"
            with pytest.raises(ValueError, match=f"^{re.escape(wanted)}$"):
                transport.sendto(b"three", ("127.0.0.1", 9))
            assert drained(peer, 2) == [b"one", b"two"]


@on_loop
async def test_sendto_sends_to_the_given_address(each_loop: Loop) -> None:
    async with endpoint(each_loop, local_addr=LOCAL) as (transport, mailbox):
        with udp() as left, udp() as right:
            for peer in (left, right, left):
                peer.sendto(b"question", transport.get_extra_info("sockname"))
            await mailbox.received(3)
            for number, (_, address) in enumerate(mailbox.mail):
                transport.sendto(b"%d" % number, address)
            transport.sendto(b"by name", ("localhost", right.getsockname()[1]))
            assert drained(left, 2) == [b"0", b"2"]
            assert drained(right, 2) == [b"1", b"by name"]


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
@on_loop
async def test_datagrams_of_400_senders_carry_their_addresses(each_loop: Loop, host: str) -> None:
    # Some of 400 senders share a slot of the address cache; each sends twice, uncached and cached.
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(udp(host)) for _ in range(400)]
        async with endpoint(each_loop, local_addr=(host, 0)) as (transport, mailbox):
            for count in (1, 2):
                for number, peer in enumerate(peers):
                    peer.sendto(b"%d" % number, transport.get_extra_info("sockname"))
                    if number % 50 == 49:
                        # Keep the socket's receive buffer from overflowing.
                        await mailbox.received((count - 1) * len(peers) + number + 1)
            senders = [(b"%d" % number, peer.getsockname()) for number, peer in enumerate(peers)]
            assert mailbox.mail == senders * 2
            for data, address in mailbox.mail:
                transport.sendto(data, address)
            for number, peer in enumerate(peers):
                assert drained(peer, 2) == [b"%d" % number] * 2


@needs_ipv6
@on_loop
async def test_an_address_of_another_family_is_refused(each_loop: Loop) -> None:
    handler_calls = record_handler_calls(each_loop)
    async with (
        endpoint(each_loop, local_addr=LOCAL) as (four, four_mailbox),
        endpoint(each_loop, local_addr=("::", 0)) as (six, six_mailbox),
    ):
        with udp() as peer:
            peer.sendto(b"to four", four.get_extra_info("sockname"))
            [(_, sender)] = await four_mailbox.received()
            six.sendto(b"from six", sender)
            assert isinstance(six_mailbox.errors[0], socket.gaierror)
            assert drained(peer) == []
        with udp("::1") as peer:
            peer.sendto(b"to six", ("::1", six.get_extra_info("sockname")[1]))
            [(_, sender)] = await six_mailbox.received()
            four.sendto(b"from four", sender)
            await until(lambda: four_mailbox.lost != [])
            assert isinstance(four_mailbox.lost[0], TypeError)
    assert [call["message"] for call in handler_calls] == [
        "Fatal write error on datagram transport"
    ]


@pytest.mark.parametrize("wrong", [None, ("127.0.0.1",), "text"])
@on_loop
async def test_invalid_address_closes_an_unconnected_endpoint(each_loop: Loop, wrong: Any) -> None:
    handler_calls = record_handler_calls(each_loop)
    async with endpoint(each_loop, local_addr=LOCAL) as (transport, mailbox):
        transport.sendto(b"data", wrong)
        await until(lambda: mailbox.lost != [])
        assert isinstance(mailbox.lost[0], TypeError)
    assert [call["message"] for call in handler_calls] == [
        "Fatal write error on datagram transport"
    ]


@on_loop
async def test_view_with_gaps_is_sent_without_them(loop: uringloop.Loop) -> None:
    # Issue 51. asyncio does so only if other datagrams wait, and else ends the endpoint.
    with udp() as peer:
        async with endpoint(loop, remote_addr=peer.getsockname()) as (transport, _):
            transport.sendto(memoryview(b"g-a-p-s-")[::2])
            assert peer.recv(100) == b"gaps"


# ── UDP_SEGMENT ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("connected", [True, False])
@on_loop
async def test_udp_segment_splits_a_send_into_datagrams(each_loop: Loop, connected: bool) -> None:
    with udp() as peer:
        where = peer.getsockname()
        options: Any = {"remote_addr": where} if connected else {"local_addr": LOCAL}
        async with endpoint(each_loop, **options) as (transport, _):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1000)
            address = None if connected else where
            for data in (noise(40_500), bytearray(noise(2000)), noise(999)):
                transport.sendto(data, address)
                pieces = [bytes(data[at : at + 1000]) for at in range(0, len(data), 1000)]
                assert drained(peer, len(pieces)) == pieces


@on_loop
async def test_udp_gro_delivers_segmented_datagrams_one_by_one(loop: uringloop.Loop) -> None:
    async with endpoint(loop, local_addr=LOCAL) as (receiving, mailbox):
        where = receiving.get_extra_info("sockname")
        receiving.get_extra_info("socket").setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        async with endpoint(loop, remote_addr=where) as (transport, _):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1400)
            data = noise(40 * 1400)
            transport.sendto(data)
            await mailbox.received(40)
            assert mailbox.data == [data[at : at + 1400] for at in range(0, len(data), 1400)]


@on_loop
async def test_too_many_segments_are_an_error(each_loop: Loop) -> None:
    with udp() as peer:
        async with endpoint(each_loop, remote_addr=peer.getsockname()) as (transport, mailbox):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 10)
            # The kernel allows 64 segments at most, newer kernels 128.
            transport.sendto(noise(2000))
            assert [error.errno for error in mailbox.errors] == [errno.EINVAL]
            assert drained(peer) == []


# ── flow control ──────────────────────────────────────────────────────────────────────────


@on_loop
async def test_full_socket_queues_and_pauses_the_protocol(each_loop: Loop, tmp_path: Path) -> None:
    ours, peer = unix_pair(tmp_path)
    async with endpoint(each_loop, sock=ours) as (transport, mailbox):
        with peer:
            sent = 0
            while "pause_writing" not in mailbox.calls:
                transport.sendto(b"%8d" % sent * 200)
                sent += 1
                assert sent < 1000
            size = unsent(transport)
            assert 64 * 1024 < size < 64 * 1024 + 1700
            got: list[bytes] = []
            while len(got) < sent:
                got += drained(peer)
                await turns()
            assert got == [b"%8d" % number * 200 for number in range(sent)]
            await until(lambda: mailbox.calls[-1] == "resume_writing")
            # Some versions of asyncio never subtract what they add for headers.
            if isinstance(each_loop, uringloop.Loop):
                assert unsent(transport) == 0
            assert mailbox.calls == ["connection_made", "pause_writing", "resume_writing"]


@on_loop
async def test_queued_datagram_counts_its_bytes_and_a_header(
    each_loop: Loop, tmp_path: Path
) -> None:
    ours, peer = unix_pair(tmp_path)
    fill_receiver(ours)
    async with endpoint(each_loop, sock=ours) as (transport, _):
        with peer:
            transport.sendto(bytes(100))
            transport.sendto(bytes(50))
            assert unsent(transport) == (166 if stdlib.EMPTY_DATAGRAMS_ARE_SENT else 150)


@on_loop
async def test_write_buffer_limits_are_those_of_asyncio(each_loop: Loop, tmp_path: Path) -> None:
    ours, peer = unix_pair(tmp_path)
    fill_receiver(ours)
    async with endpoint(each_loop, sock=ours) as (transport, mailbox):
        limits: Any = transport
        with peer:
            limits.set_write_buffer_limits(high=100, low=60)
            assert limits.get_write_buffer_limits() == (60, 100)
            with pytest.raises(ValueError, match=r"^high \(1\) must be >= low \(2\)"):
                limits.set_write_buffer_limits(high=1, low=2)
            transport.sendto(bytes(80))
            assert mailbox.calls == ["connection_made"]
            limits.set_write_buffer_limits(high=10)
            assert limits.get_write_buffer_limits() == (2, 10)
            transport.sendto(bytes(1))
            assert mailbox.calls == ["connection_made", "pause_writing"]


@on_loop
async def test_queued_data_is_a_copy(each_loop: Loop, tmp_path: Path) -> None:
    ours, peer = unix_pair(tmp_path)
    stuffed = fill_receiver(ours)
    async with endpoint(each_loop, sock=ours) as (transport, _):
        with peer:
            reused = bytearray(b"first")
            transport.sendto(reused)
            reused[:] = b"other"
            transport.sendto(memoryview(reused))
            reused[:] = b"wrong"
            transport.sendto(memoryview(b"l-a-y-o-u-t")[::2])
            got: list[bytes] = []
            while len(got) < stuffed + 3:
                got += drained(peer)
                await turns()
            assert got[stuffed:] == [b"first", b"other", b"layout"]


@on_loop
async def test_full_receiver_of_an_unconnected_endpoint_loses_nothing(
    each_loop: Loop, tmp_path: Path
) -> None:
    path = str(tmp_path / "peer")
    count = QUEUE_LENGTH + 100
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.bind(path)
        peer.setblocking(False)
        async with endpoint(each_loop, family=socket.AF_UNIX) as (transport, _):
            for number in range(count):
                transport.sendto(b"%d" % number, path)
            assert unsent(transport) > 0
            got: list[bytes] = []
            while len(got) < count:
                got += drained(peer)
                await turns()
            assert got == [b"%d" % number for number in range(count)]


@on_loop
async def test_queued_datagrams_to_a_closed_peer_are_errors(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    # uringloop only: after such an error asyncio's add_writer() outlives the transport.
    ours, peer = unix_pair(tmp_path)
    fill_receiver(ours)
    async with endpoint(loop, sock=ours) as (transport, mailbox):
        for _ in range(3):
            transport.sendto(b"late")
        peer.close()
        await mailbox.failed(3)
        assert unsent(transport) == 0
        assert isinstance(mailbox.errors[0], ConnectionError)
        # ENOTCONN: the kernel has disconnected the socket after the first error.
        numbers = {getattr(exc, "errno", None) for exc in mailbox.errors}
        assert numbers <= {errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN}
        assert not transport.is_closing()


async def full_and_paused(loop: Loop, protocol: Mailbox, path: str, peer: Any) -> Any:
    """Return an endpoint whose datagrams to *peer*, which gets the name *path*, wait for room."""
    peer.bind(path)
    peer.setblocking(False)
    transport: Any
    transport, _ = await loop.create_datagram_endpoint(lambda: protocol, family=socket.AF_UNIX)
    transport.set_write_buffer_limits(high=0)
    while not unsent(transport):
        transport.sendto(b"stuffing", path)
    assert protocol.calls == ["connection_made", "pause_writing"]
    return transport


@on_loop
async def test_a_wrong_address_in_the_queue_ends_a_paused_writer(
    each_loop: Loop, tmp_path: Path
) -> None:
    path, mailbox = str(tmp_path / "peer"), Mailbox()
    handler_calls = record_handler_calls(each_loop)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        transport = await full_and_paused(each_loop, mailbox, path, peer)
        transport.sendto(b"to nobody", 5)
        transport.sendto(b"behind it", path)
        assert drained(peer)[0] == b"stuffing"
        await until(lambda: mailbox.lost != [])
        assert isinstance(mailbox.lost[0], TypeError)
        assert [call["exception"] for call in handler_calls] == mailbox.lost
        assert mailbox.calls == ["connection_made", "pause_writing", "connection_lost"]
        assert set(drained(peer)) <= {b"stuffing"}
        await released(transport)


@on_loop
async def test_an_abort_in_error_received_does_not_resume_the_writer(
    each_loop: Loop, tmp_path: Path
) -> None:
    class Aborting(Mailbox):
        def error_received(self, exc: Exception) -> None:
            super().error_received(exc)
            self.transport.abort()

    path, mailbox = str(tmp_path / "peer"), Aborting()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        transport = await full_and_paused(each_loop, mailbox, path, peer)
        transport.sendto(b"behind it", path)
    await until(lambda: mailbox.lost != [])
    assert [type(exc) for exc in mailbox.errors] == [ConnectionRefusedError]
    assert mailbox.lost == [None]
    assert mailbox.calls == ["connection_made", "pause_writing", "connection_lost"]
    await released(transport)


# ── closing ───────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_connection_lost_runs_once_and_in_a_later_turn(each_loop: Loop) -> None:
    async with endpoint(each_loop, local_addr=LOCAL) as (transport, mailbox):
        assert not transport.is_closing()
        transport.close()
        transport.close()
        transport.abort()
        assert transport.is_closing()
        assert mailbox.lost == []
        await released(transport)
        assert mailbox.lost == [None]
        transport.close()
        transport.abort()
        await turns(3)
        assert mailbox.calls == ["connection_made", "connection_lost"]


@on_loop
async def test_close_sends_queued_datagrams_first(each_loop: Loop, tmp_path: Path) -> None:
    ours, peer = unix_pair(tmp_path)
    stuffed = fill_receiver(ours)
    async with endpoint(each_loop, sock=ours) as (transport, mailbox):
        with peer:
            for number in range(20):
                transport.sendto(b"%d" % number)
            transport.close()
            await turns(5)
            assert mailbox.lost == []
            got: list[bytes] = []
            while not mailbox.lost:
                got += drained(peer)
                await turns()
            got += drained(peer)
            assert got[stuffed:] == [b"%d" % number for number in range(20)]
            assert mailbox.lost == [None]


@pytest.mark.parametrize("closed_first", [False, True])
@on_loop
async def test_abort_drops_queued_datagrams(
    each_loop: Loop, tmp_path: Path, closed_first: bool
) -> None:
    ours, peer = unix_pair(tmp_path)
    stuffed = fill_receiver(ours)
    async with endpoint(each_loop, sock=ours) as (transport, mailbox):
        with peer:
            transport.sendto(b"dropped")
            if closed_first:
                transport.close()
            transport.abort()
            await released(transport)
            assert mailbox.lost == [None]
            assert len(drained(peer)) == stuffed


@on_loop
async def test_nothing_is_received_after_close(each_loop: Loop) -> None:
    async with endpoint(each_loop, local_addr=LOCAL) as (transport, mailbox):
        with udp() as peer:
            for _ in range(10):
                peer.sendto(b"late", transport.get_extra_info("sockname"))
            transport.close()
            await released(transport)
            await turns(3)
            assert mailbox.mail == []


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
@pytest.mark.parametrize("end", ["close", "abort"])
@on_loop
async def test_closing_in_datagram_received_drops_the_rest(
    each_loop: Loop, tmp_path: Path, family: int, end: str
) -> None:
    class Once(Mailbox):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            getattr(self.transport, end)()

    local: Any = LOCAL if family == socket.AF_INET else str(tmp_path / "mailbox")
    options: dict[str, Any] = {"local_addr": local, "family": family}
    async with endpoint(each_loop, Once(), **options) as (transport, mailbox):
        with socket.socket(family, socket.SOCK_DGRAM) as peer:
            # The kernel queues about ten datagrams for a UNIX socket.
            for number in range(8):
                peer.sendto(b"%d" % number, transport.get_extra_info("sockname"))
            await released(transport)
            assert mailbox.data == [b"0"]
            assert mailbox.lost == [None]


@on_loop
async def test_sends_after_closing_are_dropped_and_logged(
    each_loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with udp() as peer:
        async with endpoint(each_loop, remote_addr=peer.getsockname()) as (transport, mailbox):
            transport.close()
            for _ in range(4):
                transport.sendto(b"late")
            assert caplog.text == ""
            transport.sendto(b"late")
            assert "socket.send() raised exception." in caplog.text
            await released(transport)
            transport.sendto(b"later")
            assert drained(peer) == []
            assert mailbox.errors == []


@on_loop
async def test_unconnected_endpoint_ignores_sendto_after_closing(loop: Loop) -> None:
    # uringloop only: asyncio reports an AttributeError of its own.
    with udp() as peer:
        async with endpoint(loop, local_addr=LOCAL) as (transport, _):
            transport.close()
            await released(transport)
            transport.sendto(b"late", peer.getsockname())
            assert drained(peer) == []


@on_loop
async def test_no_operation_is_left_after_closing(loop: uringloop.Loop, tmp_path: Path) -> None:
    ours, peer = unix_pair(tmp_path)
    fill_receiver(ours)
    before = loop._operations_in_flight
    async with (
        endpoint(loop, local_addr=LOCAL) as (transport, mailbox),
        endpoint(loop, sock=ours) as (stuck, _),
    ):
        with peer, udp() as sender:
            stuck.sendto(b"stuck")
            for _ in range(100):
                sender.sendto(b"data", transport.get_extra_info("sockname"))
            await mailbox.received(100)
            assert loop._operations_in_flight == before + 3
    assert loop._operations_in_flight == before
    assert loop._buffers_out == 0


def test_unclosed_endpoint_warns(each_loop: Loop) -> None:
    each_loop.run_until_complete(each_loop.create_datagram_endpoint(Mailbox, local_addr=LOCAL))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        each_loop.close()
        gc.collect()
    messages = [str(warning.message) for warning in caught]
    assert any(message.startswith("unclosed transport <") for message in messages)


def test_queued_datagrams_survive_a_change_of_thread(each_loop: Loop, tmp_path: Path) -> None:
    ours, peer = unix_pair(tmp_path)
    stuffed = fill_receiver(ours)

    async def begin() -> asyncio.DatagramTransport:
        transport, _ = await each_loop.create_datagram_endpoint(Mailbox, sock=ours)
        transport.sendto(b"queued")
        return transport

    async def finish() -> list[bytes]:
        got: list[bytes] = []
        while len(got) < stuffed + 1:
            got += drained(peer)
            await turns()
        await abort_and_wait(transport)
        return got

    transport = in_thread(lambda: each_loop.run_until_complete(begin()))
    with peer:
        assert in_thread(lambda: each_loop.run_until_complete(finish()))[-1] == b"queued"
