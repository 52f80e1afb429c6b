"""uringloop.sockets on each loop: messages with ancillary data, descriptors, waits."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.leaks import open_fds
from support.roles import (
    Loop,
    kernel_version,
    on_loop,
    read_exactly,
    reset,
    turns,
    until,
    unused_port,
)
from support.sockets import cancelled, content, pipe_with, tcp_pair, unix_pair
from support.software_ring import room_for

import uringloop
from uringloop import sockets

LOCALHOST = "127.0.0.1"
READ, WRITE, HANGUP, ERROR = sockets.READ, sockets.WRITE, sockets.HANGUP, sockets.ERROR
# linux/in.h: the socket module has the name from 3.14 on.
IP_RECVERR = 11
# linux/errqueue.h: struct sock_extended_err begins with the error's number.
ERROR_NUMBER = struct.Struct("=I")
# asm-generic/socket.h: a descriptor of the sender's process comes with each message.
SO_PASSPIDFD = 76

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = unix_pair()
    with left, right:
        yield left, right


@contextlib.contextmanager
def datagrams(folder: Path) -> Iterator[Pair]:
    """Two UNIX sockets for datagrams; the second one has an address."""
    left, right = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        right.bind(str(folder / "right"))
        yield left, right


@pytest.fixture
def seqpacket() -> Iterator[Pair]:
    """Two UNIX sockets that keep the bounds of messages."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        yield left, right


@pytest.fixture
def udp() -> Iterator[socket.socket]:
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind((LOCALHOST, 0))
        sock.setblocking(False)
        yield sock


class Counting(socket.socket):
    """Counts its attempts to receive and to send."""

    attempts = 0

    def recvmsg(self, *args: Any) -> Any:
        self.attempts += 1
        return super().recvmsg(*args)

    def recvmsg_into(self, *args: Any) -> Any:
        self.attempts += 1
        return super().recvmsg_into(*args)

    def sendmsg(self, *args: Any) -> Any:
        self.attempts += 1
        return super().sendmsg(*args)


def fill(sock: socket.socket) -> int:
    """Send until there is no room, and return how many bytes that were."""
    filled = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += sock.send(bytes(65536))
    return filled


# ── messages ──────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_message_arrives_as_a_blocking_program_gets_it(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    for waits in (False, True):
        receiving = each_loop.create_task(sockets.recvmsg(each_loop, right, 100, 100))
        if waits:
            await turns(5)
        assert await sockets.sendmsg(each_loop, left, [b"one", bytearray(b"two")]) == 6
        received = await receiving
        assert left.sendmsg([b"one", bytearray(b"two")]) == 6
        assert received == right.recvmsg(100, 100)


@on_loop
async def test_buffers_are_filled_in_order(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    buffers = [bytearray(2), bytearray(10)]
    receiving = each_loop.create_task(sockets.recvmsg_into(each_loop, right, iter(buffers)))
    await turns(5)
    left.send(b"abcdef")
    assert (await receiving)[0] == 6
    assert bytes(buffers[0] + buffers[1][:4]) == b"abcdef"


@on_loop
async def test_iterators_are_used_for_each_attempt(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    filled = fill(left)
    sending = each_loop.create_task(
        sockets.sendmsg(each_loop, left, iter([b"first", b"second"]), iter([]))
    )
    await turns(5)
    assert not sending.done()
    received = b""
    while len(received) < filled + 11:
        received += await each_loop.sock_recv(right, 65536)
    assert await sending == 11
    assert received[filled:] == b"firstsecond"


@on_loop
async def test_a_truncated_message_says_so(each_loop: Loop, seqpacket: Pair) -> None:
    left, right = seqpacket
    left.send(b"abcdef")
    left.send(b"next")
    data, _, flags, _ = await sockets.recvmsg(each_loop, right, 3)
    assert (data, flags & socket.MSG_TRUNC) == (b"abc", socket.MSG_TRUNC)
    assert (await sockets.recvmsg(each_loop, right, 100, 0, socket.MSG_PEEK))[0] == b"next"
    assert (await sockets.recvmsg(each_loop, right, 100))[0] == b"next"


@on_loop
async def test_an_address_is_sent_to_and_received(each_loop: Loop, udp: socket.socket) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as peer:
        peer.setblocking(False)
        await sockets.sendmsg(each_loop, peer, [b"hello"], [], 0, udp.getsockname())
        port = peer.getsockname()[1]
        received = await sockets.recvmsg(each_loop, udp, 100)
        assert received == (b"hello", [], 0, (LOCALHOST, port))


@on_loop
async def test_ancillary_data_of_a_datagram_arrive(each_loop: Loop, udp: socket.socket) -> None:
    udp.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    with socket.socket(type=socket.SOCK_DGRAM) as peer:
        peer.setblocking(False)
        congested = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", 3))]
        address = udp.getsockname()
        await sockets.sendmsg(each_loop, peer, [b"x"], congested, 0, address)
        _, ancillary, _, _ = await sockets.recvmsg(each_loop, udp, 100, socket.CMSG_SPACE(4))
    assert ancillary == [(socket.IPPROTO_IP, socket.IP_TOS, b"\x03")]


@on_loop
async def test_a_receive_from_the_error_queue_waits_for_an_error(
    each_loop: Loop, udp: socket.socket
) -> None:
    udp.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    # What can be read is not an error.
    udp.sendto(b"data", udp.getsockname())
    receiving = each_loop.create_task(
        sockets.recvmsg(each_loop, udp, 100, 200, socket.MSG_ERRQUEUE)
    )
    await asyncio.sleep(0.02)
    assert not receiving.done()
    port = unused_port()
    udp.sendto(b"lost", (LOCALHOST, port))
    data, ancillary, flags, address = await receiving
    assert (data, address) == (b"lost", (LOCALHOST, port))
    assert flags & socket.MSG_ERRQUEUE
    assert [one[:2] for one in ancillary] == [(socket.IPPROTO_IP, IP_RECVERR)]
    assert udp.recv(100) == b"data"


@on_loop
async def test_urgent_data_are_waited_for(each_loop: Loop) -> None:
    left, right = tcp_pair()
    with left, right:
        left.send(b"ordinary")
        receiving = each_loop.create_task(sockets.recvmsg(each_loop, right, 1, 0, socket.MSG_OOB))
        await asyncio.sleep(0.02)
        # The kernel reports an error while there are none.
        if receiving.done():
            assert isinstance(receiving.exception(), OSError)
            with pytest.raises(OSError, match="Invalid argument"):
                right.recvmsg(1, 0, socket.MSG_OOB)
            return
        left.send(b"!", socket.MSG_OOB)
        assert (await receiving)[0] == b"!"


@pytest.mark.parametrize("into", [False, True])
@on_loop
async def test_what_can_be_read_does_not_repeat_a_receive_of_errors(
    each_loop: Loop, into: bool
) -> None:
    with Counting(type=socket.SOCK_DGRAM) as sock:
        sock.bind((LOCALHOST, 0))
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        sock.sendto(b"data", sock.getsockname())
        buffer = bytearray(100)
        call: Awaitable[Any] = (
            sockets.recvmsg_into(each_loop, sock, [buffer], 200, socket.MSG_ERRQUEUE)
            if into
            else sockets.recvmsg(each_loop, sock, 100, 200, socket.MSG_ERRQUEUE)
        )
        receiving = asyncio.ensure_future(call)
        await asyncio.sleep(0.02)
        assert sock.attempts == 1
        sock.sendto(b"lost", (LOCALHOST, unused_port()))
        result = (await receiving)[0]
        assert (buffer[:result] if into else result) == b"lost"


@on_loop
async def test_a_send_to_a_full_receiver_is_tried_at_intervals(
    each_loop: Loop, tmp_path: Path
) -> None:
    with (
        Counting(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer,
    ):
        peer.bind(str(tmp_path / "peer"))
        address = peer.getsockname()
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.sendto(b"stuffing", address)
        # A poll says that there is room, because there is in this socket.
        sending = each_loop.create_task(sockets.sendmsg(each_loop, sock, [b"x"], (), 0, address))
        await asyncio.sleep(0.1)
        assert 1 < sock.attempts < 20
        peer.recv(100)
        assert await sending == 1


@on_loop
async def test_ancillary_data_of_an_iterator_wait_for_room(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    filled = fill(left)
    fd = pipe_with(b"passed")
    items = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    sending = each_loop.create_task(sockets.sendmsg(each_loop, left, [b"x"], iter(items)))
    await turns(5)
    assert not sending.done()
    await read_exactly(each_loop, right, filled)
    assert await sending == 1
    os.close(fd)
    _, fds, _, _ = await sockets.recv_fds(each_loop, right, 100, 1)
    assert [content(fd) for fd in fds] == [b"passed"]


@on_loop
async def test_a_cancelled_call_loses_no_message(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    for number in range(100):
        receiving = each_loop.create_task(sockets.recvmsg(each_loop, right, 100))
        await turns(number % 4)
        left.send(b"%d" % number)
        if number % 3:
            await turns(number % 2)
        receiving.cancel()
        try:
            data = (await receiving)[0]
        except asyncio.CancelledError:
            data = right.recv(100)
        assert data == b"%d" % number


# ── descriptors ───────────────────────────────────────────────────────────────────────────


@on_loop
async def test_descriptors_are_passed_on(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    ours = [pipe_with(b"%d" % number) for number in range(3)]
    receiving = each_loop.create_task(sockets.recv_fds(each_loop, right, 100, 5))
    await turns(5)
    assert await sockets.send_fds(each_loop, left, [b"da", b"ta"], ours) == 4
    for fd in ours:
        os.close(fd)
    data, fds, flags, _ = await receiving
    assert (data, flags) == (b"data", 0)
    assert [content(fd) for fd in fds] == [b"0", b"1", b"2"]


@on_loop
async def test_a_cancelled_call_keeps_descriptors_for_the_next_one(
    each_loop: Loop, pair: Pair
) -> None:
    left, right = pair
    before = len(open_fds())
    receiving = each_loop.create_task(sockets.recv_fds(each_loop, right, 100, 5))
    await turns(5)
    fd = pipe_with(b"kept")
    left.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    os.close(fd)
    await cancelled(receiving)
    assert len(open_fds()) <= before
    _, fds, _, _ = await sockets.recv_fds(each_loop, right, 100, 5)
    assert [content(fd) for fd in fds] == [b"kept"]


@on_loop
async def test_descriptors_beyond_the_space_are_closed_by_the_kernel(
    each_loop: Loop, pair: Pair
) -> None:
    left, right = pair
    ours = [pipe_with(b"%d" % number) for number in range(3)]
    await sockets.send_fds(each_loop, left, [b"x"], ours)
    for fd in ours:
        os.close(fd)
    before = len(open_fds())
    _, fds, flags, _ = await sockets.recv_fds(each_loop, right, 100, 1)
    assert flags & socket.MSG_CTRUNC
    assert len(open_fds()) == before + len(fds)
    # The kernel rounds the space up.
    assert 1 <= len(fds) <= 2
    for fd in fds:
        os.close(fd)


@on_loop
async def test_descriptors_are_sent_to_an_address_and_received_with_flags(
    each_loop: Loop, tmp_path: Path
) -> None:
    with datagrams(tmp_path) as (left, right):
        address = right.getsockname()
        fd = pipe_with(b"ab")
        with pytest.raises(OSError, match="not supported"):
            await sockets.send_fds(each_loop, left, [b"x"], [fd], socket.MSG_OOB, address)
        assert await sockets.send_fds(each_loop, left, [b"x"], [fd], 0, address) == 1
        os.close(fd)
        for flags, held in ((socket.MSG_PEEK, b"a"), (0, b"b")):
            data, fds, _, _ = await sockets.recv_fds(each_loop, right, 100, 1, flags)
            assert (data, [content(fd, 1) for fd in fds]) == (b"x", [held])


@pytest.mark.skipif(kernel_version() < (6, 5), reason="SO_PASSPIDFD is of Linux 6.5")
@on_loop
async def test_a_descriptor_of_the_sender_s_process_is_not_left_open(
    each_loop: Loop, pair: Pair
) -> None:
    left, right = pair
    right.setsockopt(socket.SOL_SOCKET, SO_PASSPIDFD, 1)
    before = open_fds()
    left.send(b"x")
    assert (await sockets.recv_fds(each_loop, right, 100, 5))[:2] == (b"x", [])
    assert open_fds() == before


@pytest.mark.skipif(kernel_version() < (6, 5), reason="SO_PASSPIDFD is of Linux 6.5")
@pytest.mark.parametrize("count", [0, 1])
@on_loop
async def test_a_message_arrives_if_the_sender_s_process_can_have_no_descriptor(
    each_loop: Loop, pair: Pair, count: int
) -> None:
    left, right = pair
    right.setsockopt(socket.SOL_SOCKET, SO_PASSPIDFD, 1)
    before = open_fds()
    passed = [pipe_with(b"passed") for _ in range(count)]
    socket.send_fds(left, [b"data"], passed)
    for fd in passed:
        os.close(fd)
    # The only one is for the pipe. Of the space, some is for the number of the other.
    with room_for(count):
        data, fds, _, _ = await sockets.recv_fds(each_loop, right, 100, 20)
    assert data == b"data"
    assert [content(fd) for fd in fds] == [b"passed"] * count
    assert open_fds() == before


# ── waiting ───────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_wait_ends_when_data_arrive(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    waiting = each_loop.create_task(sockets.wait(each_loop, right, READ))
    await turns(5)
    assert not waiting.done()
    left.send(b"x")
    assert await waiting == READ
    # It took nothing, and an event that still holds is found again.
    assert await sockets.wait(each_loop, right, READ | WRITE) == READ | WRITE
    assert right.recv(100) == b"x"


@on_loop
async def test_one_wait_may_follow_another(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    for _ in range(5):
        waiting = each_loop.create_task(sockets.wait(each_loop, right, READ))
        await turns(5)
        assert not waiting.done()
        left.send(b"x")
        assert await waiting == READ
        assert right.recv(100) == b"x"


@on_loop
async def test_a_wait_ends_when_there_is_room(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    filled = fill(left)
    waiting = each_loop.create_task(sockets.wait(each_loop, left, WRITE))
    await turns(5)
    assert not waiting.done()
    await read_exactly(each_loop, right, filled)
    assert await waiting == WRITE


@on_loop
async def test_a_wait_for_a_hangup_does_not_end_for_data(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    waiting = each_loop.create_task(sockets.wait(each_loop, right, HANGUP))
    left.send(b"x")
    await asyncio.sleep(0.02)
    assert not waiting.done()
    left.shutdown(socket.SHUT_WR)
    assert await waiting == HANGUP
    assert right.recv(100) == b"x"


@on_loop
async def test_a_half_close_does_not_end_a_wait_for_room(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    fill(left)
    right.shutdown(socket.SHUT_WR)
    waiting = each_loop.create_task(sockets.wait(each_loop, left, WRITE))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await cancelled(waiting)


@on_loop
async def test_errors_and_hangups_are_told_unasked(each_loop: Loop) -> None:
    left, right = tcp_pair()
    with right:
        waiting = each_loop.create_task(sockets.wait(each_loop, right, READ))
        await turns(5)
        reset(left)
        assert await waiting == READ | HANGUP | ERROR


@on_loop
async def test_each_of_several_waits_gets_its_event(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    waits = [
        each_loop.create_task(sockets.wait(each_loop, right, events))
        for events in (READ, READ | HANGUP, HANGUP, ERROR)
    ]
    await turns(5)
    left.send(b"x")
    assert [await one for one in waits[:2]] == [READ, READ]
    left.close()
    assert await waits[2] == HANGUP
    assert await waits[3] == HANGUP


@on_loop
async def test_a_reader_of_the_program_stays(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    called: list[bytes] = []
    each_loop.add_reader(right, lambda: called.append(right.recv(1)))
    waiting = each_loop.create_task(sockets.wait(each_loop, right, HANGUP))
    left.send(b"ab")
    await until(lambda: len(called) == 2)
    assert not waiting.done()
    left.shutdown(socket.SHUT_WR)
    assert await waiting == HANGUP
    assert each_loop.remove_reader(right)


@on_loop
async def test_a_cancelled_wait_leaves_nothing(each_loop: Loop, pair: Pair) -> None:
    _, right = pair
    before = open_fds()
    for events in (READ, HANGUP, ERROR):
        waiting = each_loop.create_task(sockets.wait(each_loop, right, events))
        await turns(5)
        await cancelled(waiting)
    assert set(open_fds()) <= set(before)


# ── errors ────────────────────────────────────────────────────────────────────────────────

Call = Callable[[Loop, socket.socket], Awaitable[Any]]

WRONG: dict[str, tuple[Call, Callable[[socket.socket], Any]]] = {
    "recvmsg a text": (
        lambda loop, sock: sockets.recvmsg(loop, sock, "x"),  # type: ignore[arg-type]
        lambda sock: sock.recvmsg("x", 0, 0),  # type: ignore[arg-type]
    ),
    "recvmsg a negative size": (
        lambda loop, sock: sockets.recvmsg(loop, sock, -1),
        lambda sock: sock.recvmsg(-1, 0, 0),
    ),
    "recvmsg a negative size of ancillary data": (
        lambda loop, sock: sockets.recvmsg(loop, sock, 1, -1),
        lambda sock: sock.recvmsg(1, -1, 0),
    ),
    "recvmsg flags of a text": (
        lambda loop, sock: sockets.recvmsg(loop, sock, 1, 0, "x"),  # type: ignore[arg-type]
        lambda sock: sock.recvmsg(1, 0, "x"),  # type: ignore[arg-type]
    ),
    "recvmsg_into bytes": (
        lambda loop, sock: sockets.recvmsg_into(loop, sock, [b"xx"]),
        lambda sock: sock.recvmsg_into([b"xx"], 0, 0),
    ),
    "recvmsg_into no list": (
        lambda loop, sock: sockets.recvmsg_into(loop, sock, 5),  # type: ignore[arg-type]
        lambda sock: sock.recvmsg_into(5, 0, 0),  # type: ignore[arg-type]
    ),
    "sendmsg no list": (
        lambda loop, sock: sockets.sendmsg(loop, sock, 5),  # type: ignore[arg-type]
        lambda sock: sock.sendmsg(5, (), 0, None),  # type: ignore[arg-type]
    ),
    "sendmsg a text": (
        lambda loop, sock: sockets.sendmsg(loop, sock, ["x"]),
        lambda sock: sock.sendmsg(["x"], (), 0, None),  # type: ignore[list-item]
    ),
    "sendmsg strange ancillary data": (
        lambda loop, sock: sockets.sendmsg(loop, sock, [b"x"], [5]),  # type: ignore[list-item]
        lambda sock: sock.sendmsg([b"x"], [5], 0, None),  # type: ignore[list-item]
    ),
    "sendmsg to a strange address": (
        lambda loop, sock: sockets.sendmsg(loop, sock, [b"x"], (), 0, 5),
        lambda sock: sock.sendmsg([b"x"], (), 0, 5),  # type: ignore[arg-type]
    ),
    "send_fds of a closed one": (
        lambda loop, sock: sockets.send_fds(loop, sock, [b"x"], [1_000_000]),
        lambda sock: socket.send_fds(sock, [b"x"], [1_000_000]),
    ),
    "send_fds of a text": (
        lambda loop, sock: sockets.send_fds(loop, sock, [b"x"], ["x"]),  # type: ignore[list-item]
        lambda sock: socket.send_fds(sock, [b"x"], ["x"]),  # type: ignore[list-item]
    ),
    "recv_fds a text": (
        lambda loop, sock: sockets.recv_fds(loop, sock, "x", 1),  # type: ignore[arg-type]
        lambda sock: socket.recv_fds(sock, "x", 1),  # type: ignore[arg-type]
    ),
    "recv_fds a negative number": (
        lambda loop, sock: sockets.recv_fds(loop, sock, 1, -1),
        lambda sock: socket.recv_fds(sock, 1, -1),
    ),
}


@pytest.mark.parametrize("name", WRONG)
@on_loop
async def test_wrong_arguments_raise_what_the_socket_raises(
    each_loop: Loop, pair: Pair, name: str
) -> None:
    call, plain = WRONG[name]
    with pytest.raises((TypeError, ValueError, OverflowError, OSError)) as wanted:
        plain(pair[0])
    with pytest.raises(wanted.type) as found:
        await call(each_loop, pair[0])
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("events", [0, 16, READ | 64, -1])
@on_loop
async def test_unknown_events_are_refused(each_loop: Loop, pair: Pair, events: int) -> None:
    with pytest.raises(ValueError, match="events must be READ, WRITE, HANGUP, ERROR or some"):
        await sockets.wait(each_loop, pair[0], events)
    with pytest.raises(TypeError, match="events must be an Event, not 'str'"):
        await sockets.wait(each_loop, pair[0], "READ")  # type: ignore[arg-type]


@on_loop
async def test_a_blocking_socket_is_refused_in_debug_mode(each_loop: Loop, pair: Pair) -> None:
    left, _ = pair
    left.setblocking(True)
    each_loop.set_debug(True)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: sockets.recvmsg(each_loop, left, 1),
        lambda: sockets.sendmsg(each_loop, left, [b"x"]),
        lambda: sockets.recv_fds(each_loop, left, 1, 1),
        lambda: sockets.wait(each_loop, left, READ),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="the socket must be non-blocking"):
            await call()


@on_loop
async def test_each_call_refuses_a_blocking_socket_in_debug_mode(
    each_loop: Loop, pair: Pair
) -> None:
    left, right = pair
    left.setblocking(True)
    each_loop.set_debug(True)
    right.send(b"x")
    with pytest.raises(ValueError, match="the socket must be non-blocking"):
        await sockets.recvmsg_into(each_loop, left, [bytearray(1)])
    with pytest.raises(ValueError, match="the socket must be non-blocking"):
        await sockets.send_fds(each_loop, left, [b"x"], [])


@on_loop
async def test_a_closed_socket_is_an_error(each_loop: Loop, pair: Pair) -> None:
    left, _ = pair
    left.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        await sockets.recvmsg(each_loop, left, 1)
    for events in (READ, WRITE, HANGUP, ERROR):
        with pytest.raises(OSError, match="Bad file descriptor"):
            await sockets.wait(each_loop, left, events)


@on_loop
async def test_the_loop_s_own_wait_at_a_closed_socket_is_an_error(
    loop: uringloop.Loop, pair: Pair
) -> None:
    left, _ = pair
    left.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        await loop.sock_wait(left, READ)


@on_loop
async def test_a_wait_at_a_closed_descriptor_is_an_error(each_loop: Loop, pair: Pair) -> None:
    left, _ = pair
    os.close(left.fileno())
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            await sockets.wait(each_loop, left, READ)
    finally:
        left.detach()


def test_the_methods_of_the_loop_do_the_same(loop: uringloop.Loop, pair: Pair) -> None:
    left, right = pair

    async def main() -> None:
        buffer = bytearray(10)
        fd = pipe_with(b"a pipe")
        assert await loop.sock_sendmsg(left, [b"one"]) == 3
        assert await loop.sock_recvmsg(right, 100) == (b"one", [], 0, None)
        await loop.sock_sendmsg(left, [b"two"])
        assert (await loop.sock_recvmsg_into(right, [buffer]))[0] == 3
        assert await loop.sock_send_fds(left, [b"x"], [fd]) == 1
        os.close(fd)
        _, fds, _, _ = await loop.sock_recv_fds(right, 100, 1)
        assert content(fds[0]) == b"a pipe"
        assert await loop.sock_wait(left, WRITE) == WRITE

    loop.run_until_complete(main())


@on_loop
async def test_the_methods_of_the_loop_take_iterators_flags_and_addresses(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    with datagrams(tmp_path) as (left, right):
        address = right.getsockname()
        stuffed = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                stuffed += left.sendto(b"x", address)
        fd = pipe_with(b"abc")
        items = iter([(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        sending = loop.create_task(loop.sock_sendmsg(left, iter([b"y"]), items, 0, address))
        await turns(5)
        assert not sending.done()
        assert [right.recv(100) for _ in range(stuffed)] == [b"x"] * stuffed
        assert await sending == 1
        assert await loop.sock_send_fds(left, [b"z"], [fd], 0, address) == 1
        with pytest.raises(OSError, match="not supported"):
            await loop.sock_send_fds(left, [b"z"], [fd], socket.MSG_OOB, address)
        os.close(fd)
        # A peek makes descriptors of its own.
        for flags, held in ((socket.MSG_PEEK, b"a"), (0, b"b"), (0, b"c")):
            data, fds, _, _ = await loop.sock_recv_fds(right, 100, 1, flags)
            assert data == (b"z" if held == b"c" else b"y")
            assert [content(fd, 1) for fd in fds] == [held]


@on_loop
async def test_messages_pass_at_random_beside_cancels(each_loop: Loop, seqpacket: Pair) -> None:
    """Each message arrives once and in order, with its descriptor."""
    left, right = seqpacket
    count = 200

    async def send() -> None:
        for number in range(count):
            fd = pipe_with(b"%d" % number)
            try:
                await sockets.send_fds(each_loop, left, [b"%d" % number], [fd])
            finally:
                os.close(fd)
            if number % 7 == 0:
                await asyncio.sleep(0)

    sending = each_loop.create_task(send())
    number = 0
    while number < count:
        receiving = each_loop.create_task(sockets.recv_fds(each_loop, right, 100, 1))
        await turns(number % 3)
        if number % 5 == 0:
            receiving.cancel()
        try:
            data, fds, _, _ = await receiving
        except asyncio.CancelledError:
            data, fds, _, _ = await sockets.recv_fds(each_loop, right, 100, 1)
        assert data == b"%d" % number
        assert [content(fd) for fd in fds] == [b"%d" % number]
        number += 1
    await sending
