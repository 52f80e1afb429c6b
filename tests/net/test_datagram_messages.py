"""Datagram transports that receive messages: ancillary data, the error queue, GRO."""

from __future__ import annotations

import array
import collections
import errno
import functools
import gc
import os
import socket
import struct
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from support.datagram_messages import (
    EXTENDED_ERROR,
    IP,
    IP_RECVERR,
    IPV6,
    IPV6_RECVERR,
    LARGEST,
    LOCAL,
    MANY,
    ORIGIN_TIMESTAMPING,
    RECEIVE_TIMES,
    SEND_TIMES,
    SO_RXQ_OVFL,
    SO_TIMESTAMPING,
    SO_TIMESTAMPNS,
    SOCKET,
    TIMESPEC,
    UDP_GRO,
    Acting,
    Item,
    Message,
    Messages,
    blocking,
    contents,
    cut,
    each_host,
    each_way,
    enable,
    forget,
    leaving_in,
    pass_polls,
    plain_message,
    receiver,
    rights,
    seen_tos,
    tos,
    without_times,
)
from support.datagrams import (
    Mailbox,
    abort_and_wait,
    drained,
    endpoint,
    udp,
    unix_pair,
)
from support.forks import RUN
from support.interrupts import LEAVING, runs
from support.leaks import open_fds
from support.roles import (
    in_thread,
    noise,
    nothing_comes,
    nothing_left,
    on_loop,
    record_handler_calls,
    released,
    run_script,
    turns,
    until,
    unused_port,
)
from support.sockets import pipe_with

from uringloop import Loop

# ── receiving ─────────────────────────────────────────────────────────────────────────────


@each_host
@on_loop
async def test_a_message_is_what_a_blocking_socket_receives(loop: Loop, host: str) -> None:
    async with receiver(loop, host=host) as (transport, mailbox, _):
        with blocking(host) as plain, udp(host) as peer:
            wanted = []
            for number in range(MANY):
                # Every third one is empty. The two lowest bits are those of ECN.
                data = b"%d" % number * (number % 3)
                level, kind = (IPV6, socket.IPV6_TCLASS) if ":" in host else (IP, socket.IP_TOS)
                item = (level, kind, struct.pack("=i", number % 4))
                for where in (transport.get_extra_info("sockname"), plain.getsockname()):
                    peer.sendmsg([data], [item], 0, where)
                wanted.append(plain_message(plain))
                await mailbox.received(number + 1)
            assert {len(message.ancdata) for message in wanted} == {4}
            assert without_times(mailbox.messages) == without_times(wanted)


@each_way
@on_loop
async def test_messages_of_one_turn_keep_their_order(loop: Loop, ring: bool) -> None:
    async with receiver(loop) as (_, mailbox, peer):
        if ring:
            await pass_polls(mailbox, peer)
        for number in range(60):
            peer.sendmsg([b"%d" % number], [tos(4 * number)])
        await mailbox.received(60)
        assert mailbox.mail == [(b"%d" % number, peer.getsockname()) for number in range(60)]
        assert seen_tos(mailbox.messages) == list(range(0, 240, 4))
        assert {(len(one.ancdata), one.flags) for one in mailbox.messages} == {(4, 0)}


@on_loop
async def test_without_options_a_message_has_no_ancillary_data(loop: Loop) -> None:
    async with endpoint(loop, Messages(), local_addr=LOCAL) as (transport, mailbox):
        with udp() as peer:
            for number in range(MANY):
                peer.sendto(b"" if number % 2 else b"full", transport.get_extra_info("sockname"))
                await mailbox.received(number + 1)
            data = [b"full", b""] * (MANY // 2)
            assert mailbox.messages == [Message(one, [], 0, peer.getsockname()) for one in data]


@on_loop
async def test_the_largest_messages_arrive_whole(loop: Loop) -> None:
    async with receiver(loop) as (_, mailbox, peer):
        for number in range(MANY):
            peer.sendmsg([noise(LARGEST, number)], [tos(number % 4)])
            await mailbox.received(number + 1)
        assert mailbox.data == [noise(LARGEST, number) for number in range(MANY)]
        assert seen_tos(mailbox.messages) == [number % 4 for number in range(MANY)]
        assert {(len(one.ancdata), one.flags) for one in mailbox.messages} == {(4, 0)}


@each_way
@on_loop
async def test_messages_wait_while_paused(loop: Loop, ring: bool) -> None:
    async with receiver(loop) as (transport, mailbox, peer):
        if ring:
            await pass_polls(mailbox, peer)
        for start in range(3):
            # The ring may have taken it before the pause.
            peer.send(b"early")
            transport.pause_reading()
            for number in range(40):
                peer.sendmsg([b"%d" % number], [tos(4 * number)])
                if number % 4 == start:
                    await turns()
            await nothing_comes(loop)
            assert mailbox.messages == []
            transport.resume_reading()
            await mailbox.received(41)
            assert mailbox.data == [b"early", *(b"%d" % number for number in range(40))]
            assert seen_tos(mailbox.messages) == [0, *range(0, 160, 4)]
            assert {(len(one.ancdata), one.flags) for one in mailbox.messages} == {(4, 0)}
            forget(mailbox)


@each_way
@on_loop
async def test_pausing_in_message_received_stops_there(loop: Loop, ring: bool) -> None:
    one_by_one = Acting(lambda mailbox: mailbox.transport.pause_reading())
    async with receiver(loop, one_by_one) as (transport, mailbox, peer):
        if ring:
            await pass_polls(mailbox, peer)
        mailbox.numbers = range(1, 31)
        for number in range(30):
            peer.sendmsg([b"%d" % number], [tos(4 * number)])
        for count in range(1, 31):
            await mailbox.received(count)
            await turns(2)
            assert mailbox.data == [b"%d" % number for number in range(count)]
            transport.resume_reading()
        assert seen_tos(mailbox.messages) == list(range(0, 120, 4))


@on_loop
async def test_an_error_in_message_received_is_reported(loop: Loop) -> None:
    handler_calls = record_handler_calls(loop)
    failing = leaving_in(LookupError, *range(1, MANY + 1))
    async with receiver(loop, failing) as (transport, mailbox, peer):
        for number in range(MANY):
            peer.send(b"%d" % number)
            await mailbox.received(number + 1)
        assert mailbox.data == [b"%d" % number for number in range(MANY)]
        assert not transport.is_closing()
        assert len(handler_calls) == MANY
        for call in handler_calls:
            assert call["message"] == "protocol.message_received() failed"
            assert isinstance(call["exception"], LookupError)
            assert (call["transport"], call["protocol"]) == (transport, mailbox)
    handler_calls.clear()


@LEAVING
def test_an_interrupt_in_message_received_loses_nothing(
    loop: Loop, leaving: type[BaseException]
) -> None:
    mailbox = leaving_in(leaving, 2, 4, 9, 13, 18, 19)

    async def exchange() -> None:
        async with receiver(loop, mailbox) as (_, _, peer):
            for number in range(20):
                peer.sendmsg([b"%d" % number], [tos(4 * number)])
                if number < MANY:
                    await mailbox.received(number + 1)
            await mailbox.received(20)

    assert runs(loop, exchange(), leaving) == 6
    assert mailbox.data == [b"%d" % number for number in range(20)]
    assert seen_tos(mailbox.messages) == list(range(0, 80, 4))


# ── set_protocol() ────────────────────────────────────────────────────────────────────────

each_first = pytest.mark.parametrize(
    "kinds", [(Messages, Mailbox), (Mailbox, Messages)], ids=["messages first", "plain first"]
)
Kinds = tuple[type[Mailbox], type[Mailbox]]


@each_first
@pytest.mark.parametrize("count", [2, MANY])
@on_loop
async def test_set_protocol_decides_how_datagrams_come(
    loop: Loop, kinds: Kinds, count: int
) -> None:
    async with receiver(loop, kinds[0]()) as (transport, _, peer):
        for kind in kinds * 2:
            mailbox = kind()
            transport.set_protocol(mailbox)
            await turns(3)
            for number in range(count + 20):
                peer.sendmsg([b"%d" % number], [tos(4 * number)])
                if number < count:
                    await mailbox.received(number + 1)
            await mailbox.received(count + 20)
            assert mailbox.data == [b"%d" % number for number in range(count + 20)]
            if isinstance(mailbox, Messages):
                assert seen_tos(mailbox.messages) == list(range(0, 4 * (count + 20), 4))
                assert {(len(one.ancdata), one.flags) for one in mailbox.messages} == {(4, 0)}


@each_way
@each_first
@on_loop
async def test_set_protocol_loses_no_datagram(loop: Loop, kinds: Kinds, ring: bool) -> None:
    async with receiver(loop, kinds[0]()) as (transport, mailbox, peer):
        if ring:
            await pass_polls(mailbox, peer)
        later = kinds[1]()
        for number in range(40):
            peer.send(b"%d" % number)
            if number == 30:
                transport.set_protocol(later)
        await later.received(40)
        assert mailbox.mail == []
        assert later.data == [b"%d" % number for number in range(40)]
        if isinstance(later, Messages):
            for message in later.messages:
                assert (len(message.ancdata), message.flags) == (4, 0)


@each_way
@on_loop
async def test_ancillary_data_are_kept_for_the_next_protocol(loop: Loop, ring: bool) -> None:
    class Pausing(Mailbox):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            if data != b"by a poll":
                self.transport.pause_reading()  # type: ignore[attr-defined]

    async with endpoint(loop, Pausing(), local_addr=LOCAL) as (transport, mailbox):
        enable(transport.get_extra_info("socket"), IP, socket.IP_RECVTOS)
        with udp() as peer:
            peer.connect(transport.get_extra_info("sockname"))
            if ring:
                await pass_polls(mailbox, peer)
            for number in range(5):
                peer.send(b"%d" % number)
            await mailbox.received()
            # The ring has taken the others, too.
            later = Messages()
            transport.set_protocol(later)
            transport.resume_reading()
            await later.received(4)
        assert seen_tos(later.messages) == [0] * 4
        assert {message.flags for message in later.messages} == {0}


@pytest.mark.parametrize("count", [0, MANY])
@on_loop
async def test_a_switch_in_datagram_received_keeps_the_descriptors_in_the_socket(
    loop: Loop, tmp_path: Path, count: int
) -> None:
    class Switching(Mailbox):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            if data == b"the last":
                self.transport.set_protocol(later)

    ours, peer = unix_pair(tmp_path)
    later = Messages()
    before = open_fds()
    async with endpoint(loop, Switching(), sock=ours) as (_, mailbox):
        with peer:
            for number in range(count):
                peer.send(b"x")
                await mailbox.received(number + 1)
            peer.send(b"the last")
            for number in range(5):
                fd = pipe_with(b"%d" % number)
                peer.sendmsg([b"behind"], [rights(fd)])
                os.close(fd)
            await later.received(5)
        assert len(mailbox.mail) == count + 1
        assert {message.flags & socket.MSG_CTRUNC for message in later.messages} == {0}
        passed = [contents(message.ancdata) for message in later.messages]
        assert passed == [[b"%d" % number] for number in range(5)]
        assert open_fds() <= before


class Unreadable:
    """A method of which Python cannot tell the arguments."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.messages: list[Message] = []

    @property
    def __signature__(self) -> Any:
        raise self.error

    def __call__(self, *message: Any) -> None:
        self.messages.append(Message(*message))


# On 3.14 the first is raised for a name that is imported for type checkers only.
@pytest.mark.parametrize("error", [NameError("addr"), TypeError("addr"), LookupError("addr")])
@on_loop
async def test_a_message_received_with_arguments_that_nobody_can_tell_is_called(
    loop: Loop, error: Exception
) -> None:
    class Own(Mailbox):
        message_received = Unreadable(error)

    messages = Own.message_received.messages
    async with nothing_left(loop), receiver(loop, Own()) as (_, mailbox, peer):
        for number in range(MANY):
            peer.sendmsg([b"%d" % number], [tos(4 * number)])
            await until(lambda number=number: len(messages) == number + 1)  # type: ignore[misc]
        assert mailbox.mail == []
    assert [message.data for message in messages] == [b"%d" % number for number in range(MANY)]
    assert seen_tos(messages) == [4 * number for number in range(MANY)]


@pytest.mark.parametrize("paused", [False, True])
@on_loop
async def test_a_plain_protocol_gets_nothing_of_the_error_queue(loop: Loop, paused: bool) -> None:
    async with endpoint(loop, Messages(), local_addr=LOCAL) as (transport, _):
        enable(transport.get_extra_info("socket"), IP, IP_RECVERR)
        mailbox = Mailbox()
        if paused:
            transport.pause_reading()
        transport.set_protocol(mailbox)
        await turns(3)
        transport.sendto(b"never received", ("127.0.0.1", unused_port()))
        await nothing_comes(loop)
        if paused:
            transport.resume_reading()
        with udp() as peer:
            peer.sendto(b"received", transport.get_extra_info("sockname"))
            await until(lambda: b"received" in mailbox.data)
        assert mailbox.data == [b"received"]


class Own(Mailbox):
    """A protocol with a method of the same name, for its own use."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def message_received(self, text: str) -> None:
        self.texts.append(text)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        super().datagram_received(data, addr)
        self.message_received(data.decode())


@on_loop
async def test_a_method_of_the_program_s_own_is_not_called(loop: Loop) -> None:
    async with receiver(loop, Own()) as (_, mailbox, peer):
        for number in range(MANY):
            peer.send(b"%d" % number)
            await mailbox.received(number + 1)
        assert mailbox.texts == [str(number) for number in range(MANY)]


# ── UNIX sockets ──────────────────────────────────────────────────────────────────────────


@on_loop
async def test_descriptors_belong_to_the_program(loop: Loop, tmp_path: Path) -> None:
    ours, peer = unix_pair(tmp_path)
    before = open_fds()
    async with endpoint(loop, Messages(), sock=ours) as (transport, mailbox):
        with peer:
            for number in range(MANY):
                fds = [pipe_with(b"%d.%d" % (number, each)) for each in range(3)]
                transport.pause_reading()
                peer.sendmsg([b"%d" % number], [rights(*fds)])
                for fd in fds:
                    os.close(fd)
                await turns(3)
                transport.resume_reading()
                await mailbox.received(number + 1)
            assert len(open_fds() - before) == 3 * MANY
            for number, (data, ancdata, flags, addr) in enumerate(mailbox.messages):
                assert (data, addr) == (b"%d" % number, peer.getsockname())
                assert flags & socket.MSG_CTRUNC == 0
                assert contents(ancdata) == [b"%d.%d" % (number, each) for each in range(3)]
            # The kernel closes those that a plain protocol does not take.
            transport.set_protocol(Mailbox())
            peer.sendmsg([b"plain"], [rights(0, 1)])
            await transport.get_protocol().received()
            assert open_fds() == before


@on_loop
async def test_descriptors_of_datagrams_are_not_inherited(loop: Loop, tmp_path: Path) -> None:
    ours, peer = unix_pair(tmp_path)
    async with endpoint(loop, Messages(), sock=ours) as (_, mailbox):
        with peer:
            peer.sendmsg([b"x"], [rights(0)])
            await mailbox.received()
    [fd] = array.array("i", mailbox.messages[0].ancdata[0][2])
    assert not os.get_inheritable(fd)
    os.close(fd)


@on_loop
async def test_a_message_passes_253_descriptors(loop: Loop, tmp_path: Path) -> None:
    # SCM_MAX_FD is 253.
    ours, peer = unix_pair(tmp_path)
    before = open_fds()
    async with (
        endpoint(loop, Messages(), sock=ours) as (sending, _),
        endpoint(loop, Messages(), sock=peer) as (_, mailbox),
    ):
        fd = pipe_with(b"x" * 253)
        sending.sendmsg([b"all"], [rights(*[fd] * 253)])
        os.close(fd)
        await mailbox.received()
        assert contents(mailbox.messages[0].ancdata, 1) == [b"x"] * 253
        assert open_fds() == before


@on_loop
async def test_credentials_of_a_sender_arrive(loop: Loop, tmp_path: Path) -> None:
    ours, peer = unix_pair(tmp_path)
    own = struct.pack("=3i", os.getpid(), os.getuid(), os.getgid())
    item = (SOCKET, socket.SCM_CREDENTIALS, own)
    enable(ours, SOCKET, socket.SO_PASSCRED)
    async with endpoint(loop, Messages(), sock=ours) as (transport, mailbox):
        with peer:
            for number in range(MANY):
                peer.send(b"%d" % number)
                await mailbox.received(number + 1)
            assert [one.ancdata for one in mailbox.messages] == [[item]] * MANY
            enable(peer, SOCKET, socket.SO_PASSCRED)
            transport.sendmsg([b"me"], [item])
            assert peer.recvmsg(100, 100)[:2] == (b"me", [item])


# ── the error queue ───────────────────────────────────────────────────────────────────────


@each_host
@on_loop
async def test_an_error_is_what_a_blocking_socket_receives(loop: Loop, host: str) -> None:
    option = (IPV6, IPV6_RECVERR) if ":" in host else (IP, IP_RECVERR)
    async with receiver(loop, host=host) as (transport, mailbox, peer):
        enable(transport.get_extra_info("socket"), *option)
        with blocking(host) as plain:
            enable(plain, *option)
            for number in range(MANY):
                # Datagrams arrive between the errors.
                peer.send(b"answer")
                where = (host, unused_port(host))
                plain.sendto(b"%d" % number, where)
                transport.sendto(b"%d" % number, where)
                await mailbox.received(2 * number + 2)
                [found] = [one for one in mailbox.messages[-2:] if one.data != b"answer"]
                wanted = plain_message(plain, socket.MSG_ERRQUEUE)
                assert without_times([found]) == without_times([wanted])
                assert found.flags & socket.MSG_ERRQUEUE
                [told] = [item[2] for item in found.ancdata if item[:2] == option]
                assert EXTENDED_ERROR.unpack_from(told)[0] == errno.ECONNREFUSED
        assert mailbox.data.count(b"answer") == MANY
        assert not transport.is_closing()


def send_times(messages: list[Message]) -> list[int]:
    """Return the numbers of the datagrams whose time stamps *messages* are."""
    numbers = []
    for data, ancdata, flags, _ in messages:
        assert data == b""
        assert flags & socket.MSG_ERRQUEUE
        items = {item[:2]: item[2] for item in ancdata}
        assert abs(TIMESPEC.unpack_from(items[SOCKET, SO_TIMESTAMPING])[0] - time.time()) < 60
        number, origin, _, _, kind, datagram = EXTENDED_ERROR.unpack_from(items[IP, IP_RECVERR])
        assert (number, origin, kind) == (errno.ENOMSG, ORIGIN_TIMESTAMPING, 0)
        numbers.append(datagram)
    return numbers


@pytest.mark.parametrize("paused", [False, True])
@on_loop
async def test_each_datagram_brings_the_time_of_its_send(loop: Loop, paused: bool) -> None:
    async with receiver(loop) as (transport, mailbox, peer):
        sock = transport.get_extra_info("socket")
        sock.setsockopt(SOCKET, SO_TIMESTAMPING, SEND_TIMES)
        for start in range(0, 60, 20):
            if paused:
                transport.pause_reading()
            for number in range(start, start + 20):
                transport.sendto(b"%d" % number, peer.getsockname())
                if number % 20 > 10:
                    await turns()
            if paused:
                await nothing_comes(loop)
                assert len(mailbox.messages) == start
                transport.resume_reading()
            await mailbox.received(start + 20)
            assert send_times(mailbox.messages) == list(range(start + 20))
        assert drained(peer, 60) == [b"%d" % number for number in range(60)]
        peer.send(b"receiving goes on")
        await mailbox.received(61)
        assert mailbox.data[-1] == b"receiving goes on"
        assert mailbox.errors == []


def test_errors_arrive_after_a_change_of_thread(loop: Loop) -> None:
    mailbox = Messages()

    async def begin() -> Any:
        transport, _ = await loop.create_datagram_endpoint(lambda: mailbox, local_addr=LOCAL)
        enable(transport.get_extra_info("socket"), IP, IP_RECVERR)
        return transport

    async def send(number: int) -> None:
        transport.sendto(b"%d" % number, ("127.0.0.1", unused_port()))
        await mailbox.received(number + 1)

    transport = in_thread(lambda: loop.run_until_complete(begin()))
    for number in range(6):
        if number % 2:
            in_thread(functools.partial(loop.run_until_complete, send(number)))
        else:
            loop.run_until_complete(send(number))
    assert mailbox.data == [b"%d" % number for number in range(6)]
    loop.run_until_complete(abort_and_wait(transport))


@LEAVING
def test_an_interrupt_loses_nothing_of_the_error_queue(
    loop: Loop, leaving: type[BaseException]
) -> None:
    mailbox = leaving_in(leaving, 1, 3, 10)

    async def exchange() -> None:
        async with receiver(loop, mailbox) as (transport, _, peer):
            sock = transport.get_extra_info("socket")
            sock.setsockopt(SOCKET, SO_TIMESTAMPING, SEND_TIMES)
            for number in range(12):
                transport.sendto(b"%d" % number, peer.getsockname())
            await mailbox.received(12)

    assert runs(loop, exchange(), leaving) == 3
    assert send_times(mailbox.messages) == list(range(12))


@pytest.mark.parametrize("end", ["close", "abort"])
@pytest.mark.parametrize("queued", [False, True])
@on_loop
async def test_closing_with_a_watched_error_queue_leaves_nothing(
    loop: Loop, end: str, queued: bool
) -> None:
    async with nothing_left(loop):
        async with receiver(loop) as (transport, mailbox, peer):
            enable(transport.get_extra_info("socket"), IP, IP_RECVERR)
            await pass_polls(mailbox, peer)
            if queued:
                transport.sendto(b"lost", ("127.0.0.1", unused_port()))
            getattr(transport, end)()
            await released(transport)
            await turns(3)
            assert (mailbox.messages, mailbox.lost) == ([], [None])
        reference = weakref.ref(transport)
        del transport, mailbox.transport
        await turns(3)
        gc.collect()
        assert reference() is None


@pytest.mark.parametrize("paused", [False, True])
@on_loop
async def test_a_socket_is_closed_when_connection_lost_has_returned(
    loop: Loop, paused: bool
) -> None:
    async with receiver(loop) as (transport, mailbox, peer):
        if paused:
            transport.pause_reading()
            # The receive ends, and the poll of the error queue remains.
            peer.send(b"x")
            await nothing_comes(loop)
        sock = transport.get_extra_info("socket")
        transport.abort()
        await until(lambda: mailbox.lost == [None])
        assert sock.fileno() == -1
        assert loop._operations_in_flight == 0


class Prober(Messages):
    """Sends another probe for each time stamp of one."""

    def message_received(self, data: bytes, ancdata: list[Item], flags: int, addr: Any) -> None:
        super().message_received(data, ancdata, flags, addr)
        self.transport.sendto(b"probe")


@on_loop
async def test_time_stamps_that_never_end_leave_time_for_others(loop: Loop) -> None:
    with udp() as peer:
        async with endpoint(loop, Prober(), remote_addr=peer.getsockname()) as (transport, mailbox):
            sock = transport.get_extra_info("socket")
            sock.setsockopt(SOCKET, SO_TIMESTAMPING, SEND_TIMES)
            transport.sendto(b"probe")
            await until(lambda: len(mailbox.messages) > 100)
            await turns(10)


@on_loop
async def test_time_stamps_wait_for_a_protocol_that_takes_them(loop: Loop) -> None:
    with udp() as peer:
        options = {"remote_addr": peer.getsockname()}
        async with endpoint(loop, Messages(), **options) as (transport, _):
            sock = transport.get_extra_info("socket")
            sock.setsockopt(SOCKET, SO_TIMESTAMPING, SEND_TIMES)
            transport.set_protocol(Mailbox())
            for _ in range(3):
                transport.sendto(b"probe")
            await turns(20)
            taking = Messages()
            transport.set_protocol(taking)
            await until(lambda: len(taking.messages) == 3)


@pytest.mark.parametrize("paused", [False, True])
@on_loop
async def test_a_turn_brings_sixteen_messages_of_the_error_queue_at_most(
    loop: Loop, paused: bool
) -> None:
    found: collections.Counter[int] = collections.Counter()

    class Counting(Messages):
        def message_received(self, *message: Any) -> None:
            super().message_received(*message)
            found[loop.stats()["turns"]] += 1

    async with receiver(loop, Counting()) as (transport, mailbox, peer):
        sock = transport.get_extra_info("socket")
        sock.setsockopt(SOCKET, SO_TIMESTAMPING, SEND_TIMES)
        await turns(3)
        for start in (0, 100):
            if paused:
                transport.pause_reading()
            for number in range(100):
                transport.sendto(b"probe", peer.getsockname())
                if paused and number % 10 == 0:
                    # Each of them is another reason to read.
                    await turns()
            if paused:
                transport.resume_reading()
                transport.pause_reading()
                transport.resume_reading()
            await mailbox.received(start + 100)
        assert send_times(mailbox.messages) == list(range(200))
        assert max(found.values()) <= 16


# ── gro ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", [Mailbox, Messages])
@pytest.mark.parametrize("given", [False, True])
@on_loop
async def test_merged_segments_are_delivered_one_by_one(
    loop: Loop, protocol: type[Mailbox], given: bool
) -> None:
    options: dict[str, Any] = {"gro": True}
    if given:
        sock = socket.socket(type=socket.SOCK_DGRAM)
        sock.bind(LOCAL)
        options |= {"sock": sock, "local_addr": None}
    async with (
        receiver(loop, protocol(), **options) as (transport, mailbox, _),
        endpoint(loop, remote_addr=transport.get_extra_info("sockname")) as (sending, _),
    ):
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_UDP, UDP_GRO) == 1
        wanted = []
        for number in range(MANY):
            data = noise(10_500 + number, number)
            sending.send_segments(data, 1000, None, [tos(4 * number)])
            sending.sendto(b"alone")
            wanted += [*cut(data, 1000), b"alone"]
            await mailbox.received(len(wanted))
        assert mailbox.mail == [(data, sending.get_extra_info("sockname")) for data in wanted]
        if isinstance(mailbox, Messages):
            values = [
                4 * number if each < 11 else 0 for number in range(MANY) for each in range(12)
            ]
            assert seen_tos(mailbox.messages) == values
            assert {one.flags for one in mailbox.messages} == {0}


@on_loop
async def test_each_merged_message_has_a_list_of_its_own(loop: Loop) -> None:
    async with receiver(loop, gro=True) as (transport, mailbox, _):
        address = transport.get_extra_info("sockname")
        async with endpoint(loop, remote_addr=address) as (sending, _):
            sending.send_segments(bytes(500), 100)
            await mailbox.received(5)
            assert len({id(message.ancdata) for message in mailbox.messages}) == 5


@on_loop
async def test_merged_messages_have_lists_of_their_own_after_a_pause(loop: Loop) -> None:
    pausing = Acting(lambda mailbox: mailbox.transport.pause_reading(), 1)
    async with receiver(loop, pausing, gro=True) as (transport, mailbox, _):
        address = transport.get_extra_info("sockname")
        async with endpoint(loop, remote_addr=address) as (sending, _):
            sending.send_segments(bytes(500), 100)
            await mailbox.received(1)
            await nothing_comes(loop)
            assert len(mailbox.messages) == 1
            transport.resume_reading()
            await mailbox.received(5)
            assert len({id(message.ancdata) for message in mailbox.messages}) == 5


@pytest.mark.parametrize(
    "options", [{SO_TIMESTAMPNS: 1, SO_RXQ_OVFL: 1}, {SO_TIMESTAMPING: RECEIVE_TIMES}]
)
@on_loop
async def test_merged_datagrams_are_cut_beside_time_stamps(
    loop: Loop, options: dict[int, int]
) -> None:
    async with endpoint(loop, local_addr=LOCAL, gro=True) as (transport, mailbox):
        sock = transport.get_extra_info("socket")
        for option, value in options.items():
            sock.setsockopt(SOCKET, option, value)
        async with endpoint(loop, remote_addr=sock.getsockname()) as (sending, _):
            sending.send_segments(noise(5000), 1000)
            await until(lambda: sum(map(len, mailbox.data)) == 5000)
            assert mailbox.data == cut(noise(5000), 1000)


FORKING = """
    import asyncio
    import os
    import socket
    import uringloop

    child = None
    received = []

    class Forking(asyncio.DatagramProtocol):
        def datagram_received(self, data, addr):
            global child
            if child == 0:
                os._exit(4)
            received.append(data)
            if len(received) == FORK_AT:
                child = os.fork()

    class Messages(Forking):
        def message_received(self, data, ancdata, flags, addr):
            self.datagram_received(data, addr)

    async def main():
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            globals()[KIND], ("127.0.0.1", 0), gro=True
        )
        address = transport.get_extra_info("sockname")
        sending, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=address
        )
        for start in range(0, 90, 3):
            sending.send_segments(b"%02d%02d%02d" % (start, start + 1, start + 2), 2)
            while len(received) < start + 3:
                await asyncio.sleep(0.001)
        assert received == [b"%02d" % number for number in range(90)]
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


# The ring receives the datagrams from the thirteenth on.
@pytest.mark.parametrize("fork_at", [1, 80])
@pytest.mark.parametrize("kind", ["Forking", "Messages"])
def test_a_child_that_a_merged_datagram_forks_gets_no_other_of_it(kind: str, fork_at: int) -> None:
    ended = run_script(f"    KIND, FORK_AT = {kind!r}, {fork_at}{FORKING}{RUN}\n    run(main)\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3\n", "")


@LEAVING
def test_an_interrupt_loses_no_merged_message(loop: Loop, leaving: type[BaseException]) -> None:
    mailbox = leaving_in(leaving, 3, 4, 11)

    async def exchange() -> None:
        async with (
            receiver(loop, mailbox, gro=True) as (transport, _, _),
            endpoint(loop, remote_addr=transport.get_extra_info("sockname")) as (sending, _),
        ):
            sending.send_segments(noise(1200), 100, None, [tos(4)])
            await mailbox.received(12)

    assert runs(loop, exchange(), leaving) == 3
    assert mailbox.data == cut(noise(1200), 100)
    assert seen_tos(mailbox.messages) == [4] * 12


@on_loop
async def test_gro_is_refused_on_a_unix_socket(loop: Loop, tmp_path: Path) -> None:
    ours, peer = unix_pair(tmp_path)
    path = str(tmp_path / "other")
    with ours, peer:
        async with nothing_left(loop):
            for options in ({"sock": ours}, {"local_addr": path, "family": socket.AF_UNIX}):
                arguments: dict[str, Any] = dict(options)
                with pytest.raises(OSError, match="not supported"):
                    await loop.create_datagram_endpoint(Mailbox, gro=True, **arguments)
        # It is still the program's.
        peer.send(b"x")
        assert ours.recv(1) == b"x"
