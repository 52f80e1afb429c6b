"""Descriptors on UNIX streams: fds_received() gets them, before data_received() gets the bytes.

The kernel passes descriptors on with the first byte of their message. It may glue bytes that came
before to that message, but ends a receive behind it: descriptors come in order, each no later than
its bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support.datagram_messages import rights
from support.forks import RUN
from support.interrupts import LEAVING, leave_in, runs
from support.leaks import open_fds
from support.loops import on_io_uring
from support.nesting import nestable_loop
from support.protocols import Collector
from support.roles import (
    PATIENCE,
    abort_and_wait,
    kernel_version,
    noise,
    nothing_comes,
    nothing_left,
    on_loop,
    record_handler_calls,
    run_script,
    stream,
    turns,
    until,
)
from support.sockets import content, pipe_with, unix_pair
from support.software_ring import room_for

import uringloop
from uringloop import sockets
from uringloop.streams import StreamReaderProtocol

Loop = asyncio.AbstractEventLoop

# linux/net.h: the most descriptors of one message (SCM_MAX_FD).
FDS_MAX = 253
# asm-generic/socket.h: a descriptor of the sender's process comes with each message.
SO_PASSPIDFD = 76
MEGABYTE = 1 << 20
# More messages than a connection receives by polls at its beginning.
MANY = 12
# Seconds after which a receive ends that waits in the kernel.
STANDSTILL = 5


class Taker(Collector):
    """Record what the passed pipes hold, and behind how many bytes they came."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.passed: list[list[bytes]] = []
        self.offsets: list[int] = []

    def fds_received(self, fds: list[int]) -> None:
        self.calls.append("fds_received")
        self.offsets.append(len(self.data))
        self.passed.append([content(fd) for fd in fds])


class Acting(Taker):
    """Do something after the first descriptors."""

    def __init__(self, loop: Loop, act: Callable[[asyncio.Transport], object]) -> None:
        super().__init__(loop)
        self.act = act

    def fds_received(self, fds: list[int]) -> None:
        super().fds_received(fds)
        if len(self.passed) == 1:
            self.act(self.transport)


class Counter(Collector):
    """Count the open descriptors of each message, and close them."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.counts: list[int] = []

    def fds_received(self, fds: list[int]) -> None:
        self.counts.append(len(set(fds) & open_fds()))
        for fd in fds:
            os.close(fd)


def send(peer: socket.socket, data: bytes, *contents: bytes) -> None:
    """Send *data* with the ends of pipes that hold *contents*."""
    fds = [pipe_with(held) for held in contents]
    try:
        assert peer.sendmsg([data], [rights(*fds)] if fds else []) == len(data)
    finally:
        for fd in fds:
            os.close(fd)


async def send_large(loop: Loop, peer: socket.socket, data: bytes, held: bytes) -> None:
    """Send *data*, more than the socket holds, with the end of a pipe unless *held* is empty."""
    sent = 0
    if held:
        fd = pipe_with(held)
        try:
            sent = await sockets.send_fds(loop, peer, [data], [fd])
        finally:
            os.close(fd)
    await loop.sock_sendall(peer, data[sent:])


def pass_writer(peer: socket.socket, data: bytes = b"x") -> int:
    """Send the writing end of a pipe, its last, and return the reading end."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    peer.sendmsg([data], [rights(writer)])
    os.close(writer)
    return reader


async def writer_closed(reader: int) -> None:
    """Wait until the pipe has no writing end, here or on the way, and close the reading end."""

    def at_end() -> bool:
        try:
            return os.read(reader, 1) == b""
        except BlockingIOError:
            return False

    try:
        await until(at_end)
    finally:
        os.close(reader)


@contextlib.asynccontextmanager
async def connection(
    loop: Loop, protocol: asyncio.BaseProtocol
) -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    """Connect *protocol* to a plain UNIX socket."""
    ours, peer = unix_pair()
    with peer:
        transport, _ = await loop.create_unix_connection(lambda: protocol, sock=ours)
        try:
            yield transport, peer
        finally:
            await abort_and_wait(transport)


# ── with their bytes, in order ────────────────────────────────────────────────────────────


@on_loop
async def test_the_first_message_brings_its_descriptors(loop: uringloop.Loop) -> None:
    ours, peer = unix_pair()
    with peer:
        send(peer, b"early", b"one", b"two")
        taker = Taker(loop)
        transport, _ = await loop.create_unix_connection(lambda: taker, sock=ours)
        assert await taker.received(5) == b"early"
        assert taker.passed == [[b"one", b"two"]]
        assert taker.calls == ["connection_made", "fds_received", "data_received"]
        await abort_and_wait(transport)


@on_loop
async def test_each_of_many_messages_brings_its_own_descriptors(loop: uringloop.Loop) -> None:
    taker = Taker(loop)
    async with nothing_left(loop), connection(loop, taker) as (_, peer):
        offsets: list[int] = []
        wanted: list[list[bytes]] = []
        sent = b""
        for number in range(100):
            offsets.append(len(sent))
            wanted.append([b"%d.%d" % (number, index) for index in range(1 + number % 3)])
            send(peer, data := noise(1 + number, number), *wanted[-1])
            sent += data
            # Some messages meet others in the socket.
            await turns(0 if number % 20 else 3)
        assert await taker.received(len(sent)) == sent
        assert taker.passed == wanted
        assert taker.offsets == offsets


@pytest.mark.parametrize("count", [1, 2, 252, FDS_MAX])
@on_loop
async def test_a_message_brings_all_its_descriptors(loop: uringloop.Loop, count: int) -> None:
    counter = Counter(loop)
    async with nothing_left(loop), connection(loop, counter) as (_, peer):
        peer.sendmsg([b"ab"], [rights(*[peer.fileno()] * count)])
        peer.sendmsg([b"cd"], [rights(*[peer.fileno()] * count)])
        assert await counter.received(4) == b"abcd"
    assert counter.counts == [count, count]


@on_loop
async def test_the_sender_s_credentials_leave_room_for_all_descriptors(
    loop: uringloop.Loop,
) -> None:
    counter = Counter(loop)
    async with connection(loop, counter) as (transport, peer):
        # The kernel puts the credentials of the sender before the descriptors.
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        peer.sendmsg([b"x"], [rights(*[peer.fileno()] * FDS_MAX)])
        await counter.received(1)
    assert counter.counts == [FDS_MAX]


MIXTURES: dict[str, list[tuple[int, bool]]] = {
    "before": [(MEGABYTE, False), (1, True)],
    "between": [(1, True), (MEGABYTE, False), (1, True)],
    "behind": [(1, True), (MEGABYTE, False)],
    "with": [(MEGABYTE, True), (MEGABYTE, True), (10, True)],
    "small and large": [(10 ** (number % 6), number % 3 > 0) for number in range(60)],
}


@pytest.mark.parametrize("mixture", MIXTURES)
@on_loop
async def test_large_data_does_not_part_descriptors_from_their_bytes(
    loop: uringloop.Loop, mixture: str
) -> None:
    taker = Taker(loop)
    messages = [
        (noise(size, number), b"%d" % number if has_pipe else b"")
        for number, (size, has_pipe) in enumerate(MIXTURES[mixture])
    ]
    async with nothing_left(loop), connection(loop, taker) as (_, peer):
        starts: list[int] = []
        sent = 0
        for data, held in messages:
            if held:
                starts.append(sent)
            await send_large(loop, peer, data, held)
            sent += len(data)
        assert await taker.received(sent) == b"".join(data for data, _ in messages)
    assert taker.passed == [[held] for _, held in messages if held]
    # Never later than the bytes, and not before the last descriptors' first byte.
    for last, offset, start in zip([-1, *starts], taker.offsets, starts, strict=False):
        assert last < offset <= start


@pytest.mark.skipif(kernel_version() < (6, 5), reason="SO_PASSPIDFD is of Linux 6.5")
@on_loop
async def test_descriptors_of_the_sender_s_process_are_not_left_open(loop: uringloop.Loop) -> None:
    taker = Taker(loop)
    async with connection(loop, taker) as (transport, peer):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, SO_PASSPIDFD, 1)
        before = open_fds()
        send(peer, b"x", b"passed")
        send(peer, b"y")
        await taker.received(2)
        assert open_fds() == before
    assert taker.passed == [[b"passed"]]


@pytest.mark.skipif(kernel_version() < (6, 5), reason="SO_PASSPIDFD is of Linux 6.5")
@on_loop
async def test_nothing_is_lost_if_the_sender_s_process_can_have_no_descriptor(
    loop: uringloop.Loop,
) -> None:
    taker = Taker(loop)
    async with connection(loop, taker) as (transport, peer):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, SO_PASSPIDFD, 1)
        before = open_fds()
        for number in range(MANY):
            peer.send(b"x")
            with room_for(0):
                await taker.received(2 * number + 1)
            send(peer, b"y", b"%d" % number)
            # The only one is for the pipe.
            with room_for(1):
                await taker.received(2 * number + 2)
            assert open_fds() == before
    assert bytes(taker.data) == b"xy" * MANY
    assert taker.passed == [[b"%d" % number] for number in range(MANY)]


@on_loop
async def test_a_socket_that_other_code_made_blocking_does_not_stop_the_loop(
    loop: uringloop.Loop,
) -> None:
    acting = Acting(loop, lambda transport: transport.pause_reading())
    async with connection(loop, acting) as (transport, peer):
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", STANDSTILL, 0))
        # As a child process may do that has inherited it.
        os.set_blocking(sock.fileno(), True)
        began = loop.time()
        send(peer, b"x", b"0")
        await until(lambda: acting.passed == [[b"0"]])
        # Nothing is in the socket now.
        transport.resume_reading()
        await acting.received(1)
        await nothing_comes(loop)
        assert loop.time() - began < STANDSTILL
        for number in range(1, MANY):
            send(peer, b"x", b"%d" % number)
            await acting.received(number + 1)
    assert acting.passed == [[b"%d" % number] for number in range(MANY)]


@on_loop
async def test_descriptors_for_which_there_is_no_room_are_reported(loop: uringloop.Loop) -> None:
    handler_calls = record_handler_calls(loop)
    taker = Taker(loop)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with connection(loop, taker) as (transport, peer):
        send(peer, b"x", b"1", b"2", b"3")
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
        try:
            assert await taker.received(1) == b"x"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert taker.passed == [[b"1"]]
        assert not transport.is_closing()
    [call] = handler_calls
    assert call["message"] == "descriptors were lost"
    assert isinstance(call["exception"], OSError)
    assert call["exception"].errno == errno.EMFILE
    handler_calls.clear()


@on_loop
async def test_descriptors_are_not_inherited_by_children(loop: uringloop.Loop) -> None:
    inheritable: list[bool] = []

    class Asking(Taker):
        def fds_received(self, fds: list[int]) -> None:
            inheritable.extend(os.get_inheritable(fd) for fd in fds)
            super().fds_received(fds)

    asking = Asking(loop)
    async with connection(loop, asking) as (_, peer):
        send(peer, b"x", b"one", b"two")
        await asking.received(1)
    assert inheritable == [False, False]


# ── pausing and closing ───────────────────────────────────────────────────────────────────


@on_loop
async def test_nothing_is_received_while_reading_is_paused(loop: uringloop.Loop) -> None:
    taker = Taker(loop)
    async with nothing_left(loop), connection(loop, taker) as (transport, peer):
        send(peer, b"x", b"first")
        await taker.received(1)
        transport.pause_reading()
        for number in range(MANY):
            send(peer, b"%02d" % number, b"%d" % number)
        before = open_fds()
        await nothing_comes(loop)
        assert open_fds() == before
        assert len(taker.passed) == 1
        transport.resume_reading()
        await taker.received(1 + 2 * MANY)
    assert bytes(taker.data) == b"x" + b"".join(b"%02d" % number for number in range(MANY))
    assert taker.passed == [[b"first"], *[[b"%d" % number] for number in range(MANY)]]
    assert taker.offsets == [0, *range(1, 1 + 2 * MANY, 2)]


@pytest.mark.parametrize("callback", ["fds_received", "data_received"])
@on_loop
async def test_many_pauses_keep_the_order(loop: uringloop.Loop, callback: str) -> None:
    class Pausing(Taker):
        def pause_in(self, name: str) -> None:
            if name == callback:
                self.transport.pause_reading()
                loop.call_soon(self.transport.resume_reading)

        def fds_received(self, fds: list[int]) -> None:
            super().fds_received(fds)
            self.pause_in("fds_received")

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.pause_in("data_received")

    pausing = Pausing(loop)
    async with connection(loop, pausing) as (_, peer):
        for number in range(MANY):
            send(peer, b"%02d" % number, b"%d" % number)
        await pausing.received(2 * MANY)
    assert bytes(pausing.data) == b"".join(b"%02d" % number for number in range(MANY))
    assert pausing.passed == [[b"%d" % number] for number in range(MANY)]
    assert pausing.offsets == list(range(0, 2 * MANY, 2))


@on_loop
async def test_a_pause_in_fds_received_holds_the_bytes_back(loop: uringloop.Loop) -> None:
    acting = Acting(loop, lambda transport: transport.pause_reading())
    async with connection(loop, acting) as (transport, peer):
        send(peer, b"one", b"1")
        send(peer, b"two", b"2")
        await until(lambda: acting.passed == [[b"1"]])
        await nothing_comes(loop)
        assert acting.calls == ["connection_made", "fds_received"]
        transport.resume_reading()
        assert await acting.received(6) == b"onetwo"
    assert acting.passed == [[b"1"], [b"2"]]
    assert acting.offsets == [0, 3]


@pytest.mark.parametrize("end", ["close", "abort"])
@on_loop
async def test_closing_in_fds_received_ends_reading(loop: uringloop.Loop, end: str) -> None:
    acting = Acting(loop, lambda transport: getattr(transport, end)())
    async with nothing_left(loop), connection(loop, acting) as (_, peer):
        send(peer, b"one", b"1")
        reader = pass_writer(peer)
        assert await acting.lost is None
        await writer_closed(reader)
    assert acting.calls == ["connection_made", "fds_received", "connection_lost"]


@on_loop
async def test_aborting_closes_descriptors_that_are_still_in_the_socket(
    loop: uringloop.Loop,
) -> None:
    taker = Taker(loop)
    async with nothing_left(loop), connection(loop, taker) as (transport, peer):
        transport.pause_reading()
        readers = [pass_writer(peer) for _ in range(3)]
        transport.abort()
        assert await taker.lost is None
        for reader in readers:
            await writer_closed(reader)
    assert taker.calls == ["connection_made", "connection_lost"]


@on_loop
async def test_a_detached_socket_keeps_unread_descriptors(loop: uringloop.Loop) -> None:
    acting = Acting(loop, lambda transport: transport.pause_reading())
    async with nothing_left(loop), connection(loop, acting) as (transport, peer):
        send(peer, b"one", b"1")
        send(peer, b"two", b"2")
        await until(lambda: acting.passed == [[b"1"]])
        sock, unread = transport.detach()  # type: ignore[attr-defined]
        with sock:
            assert unread == b"one"
            data, fds, _, _ = await loop.sock_recv_fds(sock, 100, 5)
            assert (data, [content(fd) for fd in fds]) == (b"two", [b"2"])
        assert await acting.lost is None
    assert acting.calls == ["connection_made", "fds_received", "connection_lost"]


@pytest.fixture
def nestable() -> Iterator[uringloop.Loop]:
    """A new nestable loop, checked for leaks afterwards."""
    yield from nestable_loop()


def test_a_run_nested_in_fds_received_keeps_the_order(nestable: uringloop.Loop) -> None:
    class Nesting(Taker):
        def fds_received(self, fds: list[int]) -> None:
            super().fds_received(fds)
            if len(self.passed) == 1:
                nestable.run_until_complete(nothing_comes(nestable))

    async def main() -> None:
        nesting = Nesting(nestable)
        async with connection(nestable, nesting) as (_, peer):
            for number in range(3):
                send(peer, b"%d" % number, b"%d" % number)
            assert await nesting.received(3) == b"012"
        assert nesting.passed == [[b"0"], [b"1"], [b"2"]]

    nestable.run_until_complete(asyncio.wait_for(main(), PATIENCE))


FORKING = """
    import asyncio
    import os
    import socket
    import uringloop

    child = None
    data = bytearray()

    class Forking(asyncio.Protocol):
        def fds_received(self, fds):
            global child
            child = os.fork()

        def data_received(self, received):
            if child == 0:
                os._exit(4)
            data.extend(received)

    async def main():
        ours, peer = socket.socketpair()
        await asyncio.get_running_loop().create_unix_connection(Forking, sock=ours)
        socket.send_fds(peer, [b"bytes"], [0])
        while not data:
            await asyncio.sleep(0.001)
        print(data.decode(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_that_fds_received_forks_gets_no_bytes() -> None:
    ended = run_script(f"{FORKING}{RUN}\n    run(main)\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "bytes 3\n", "")


# ── errors and the end ────────────────────────────────────────────────────────────────────


@on_loop
async def test_an_error_in_fds_received_loses_the_connection(loop: uringloop.Loop) -> None:
    handler_calls = record_handler_calls(loop)
    error = ValueError("fds_received")
    kept: list[int] = []

    class Failing(Collector):
        def fds_received(self, fds: list[int]) -> None:
            kept.extend(fds)
            raise error

    failing = Failing(loop)
    async with nothing_left(loop), connection(loop, failing) as (transport, peer):
        send(peer, b"one", b"kept")
        reader = pass_writer(peer)
        assert await failing.lost is error
        await writer_closed(reader)
        (call,) = handler_calls
        assert call["message"] == "Fatal error: protocol.fds_received() call failed."
        assert call["exception"] is error
        assert call["transport"] is transport
        assert call["protocol"] is failing
        assert [content(fd) for fd in kept] == [b"kept"]
    assert failing.calls == ["connection_made", "connection_lost"]


@LEAVING
def test_leaving_the_loop_in_fds_received_loses_nothing(
    loop: uringloop.Loop, leaving: type[BaseException]
) -> None:
    async def main() -> None:
        taker = Taker(loop)
        leave_in(taker, "fds_received", leaving)
        async with nothing_left(loop), connection(loop, taker) as (_, peer):
            send(peer, b"one", b"1")
            send(peer, b"two", b"2")
            peer.shutdown(socket.SHUT_WR)
            assert await taker.lost is None
        assert bytes(taker.data) == b"onetwo"
        assert taker.passed == [[b"1"], [b"2"]]
        assert taker.offsets == [0, 3]

    assert runs(loop, main(), leaving) == 1


@on_loop
async def test_the_end_comes_behind_descriptors(loop: uringloop.Loop) -> None:
    for count in range(30):
        taker = Taker(loop)
        async with connection(loop, taker) as (_, peer):
            await turns(count % 3)
            for number in range(count):
                send(peer, b"x", b"%d" % number)
            peer.close()
            assert await taker.lost is None
        assert taker.passed == [[b"%d" % number] for number in range(count)]
        assert bytes(taker.data) == b"x" * count
        assert taker.calls[-2:] == ["eof_received", "connection_lost"]


@on_loop
async def test_a_reset_comes_behind_descriptors(loop: uringloop.Loop) -> None:
    for count in range(30):
        taker = Taker(loop)
        async with connection(loop, taker) as (transport, peer):
            # A UNIX peer that closes with unread bytes resets the connection.
            transport.write(b"unread")
            await turns(1 + count % 3)
            for number in range(count):
                send(peer, b"x", b"%d" % number)
            peer.close()
            assert isinstance(await taker.lost, ConnectionResetError)
        assert taker.passed == [[b"%d" % number] for number in range(count)]
        assert bytes(taker.data) == b"x" * count
        assert "eof_received" not in taker.calls


# ── kinds of protocols ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("room", [1, 4, 100_000])
@on_loop
async def test_a_buffered_protocol_gets_descriptors_before_its_buffer_is_filled(
    loop: uringloop.Loop, room: int
) -> None:
    class Buffered(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer = bytearray(room)
            self.data = bytearray()
            self.passed: list[tuple[int, list[bytes]]] = []

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.data += self.buffer[:nbytes]
            transport.pause_reading()
            loop.call_soon(transport.resume_reading)

        def fds_received(self, fds: list[int]) -> None:
            self.passed.append((len(self.data), [content(fd) for fd in fds]))

    buffered = Buffered()
    async with connection(loop, buffered) as (transport, peer):
        send(peer, b"0123456789", b"1")
        send(peer, b"abc", b"2")
        await until(lambda: len(buffered.data) == 13)
    assert buffered.data == b"0123456789abc"
    assert buffered.passed == [(0, [b"1"]), (10, [b"2"])]


@pytest.mark.parametrize("base", [asyncio.StreamReaderProtocol, StreamReaderProtocol])
@on_loop
async def test_a_stream_gets_descriptors_before_its_reader_gets_bytes(
    loop: uringloop.Loop, base: type[asyncio.StreamReaderProtocol]
) -> None:
    reader = asyncio.StreamReader(loop=loop)
    passed: list[list[bytes]] = []

    class Passing(base):  # type: ignore[valid-type, misc]
        def fds_received(self, fds: list[int]) -> None:
            passed.append([content(fd) for fd in fds])

    async with connection(loop, Passing(reader, loop=loop)) as (_, peer):
        for number in range(MANY):
            send(peer, b"%d\n" % number, b"%d" % number)
            assert await reader.readline() == b"%d\n" % number
            assert passed == [[b"%d" % number]]
            passed.clear()


@on_loop
async def test_a_mock_object_is_not_taken_for_a_protocol_with_fds_received(
    loop: uringloop.Loop,
) -> None:
    protocol = mock.MagicMock()
    async with nothing_left(loop), connection(loop, protocol) as (_, peer):
        reader = pass_writer(peer)
        await writer_closed(reader)
        await until(lambda: protocol.data_received.called)
    protocol.data_received.assert_called_once_with(b"x")
    protocol.fds_received.assert_not_called()


@on_loop
async def test_a_compiled_fds_received_is_called(loop: uringloop.Loop) -> None:
    taken: set[int] = set()

    class Compiled(Collector):
        # Has no signature that Python could look at.
        fds_received = taken.update

    collector = Compiled(loop)
    async with connection(loop, collector) as (_, peer):
        send(peer, b"x", b"1", b"2")
        await collector.received(1)
    assert {content(fd) for fd in taken} == {b"1", b"2"}


class Unreadable:
    """A method of which Python cannot tell the arguments."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.passed: list[list[bytes]] = []

    @property
    def __signature__(self) -> Any:
        raise self.error

    def __call__(self, fds: list[int]) -> None:
        self.passed.append([content(fd) for fd in fds])


# On 3.14 the first is raised for a name that is imported for type checkers only.
@pytest.mark.parametrize("error", [NameError("fds"), TypeError("fds"), LookupError("fds")])
@on_loop
async def test_an_fds_received_with_arguments_that_nobody_can_tell_is_called(
    loop: uringloop.Loop, error: Exception
) -> None:
    class Own(Collector):
        fds_received = Unreadable(error)

    own = Own(loop)
    async with nothing_left(loop), connection(loop, own) as (_, peer):
        for number in range(MANY):
            send(peer, b"x", b"%d" % number)
            await own.received(number + 1)
    assert own.fds_received.passed == [[b"%d" % number] for number in range(MANY)]


@pytest.mark.parametrize("count", [1, MANY])
@on_loop
async def test_another_protocol_s_descriptors_are_closed_by_the_kernel(
    each_loop: Loop, count: int
) -> None:
    collector = Collector(each_loop)
    async with connection(each_loop, collector) as (_, peer):
        for number in range(count):
            before = open_fds()
            reader = pass_writer(peer)
            await collector.received(number + 1)
            await writer_closed(reader)
            assert open_fds() == before
    assert bytes(collector.data) == b"x" * count


@on_loop
async def test_a_tcp_connection_has_no_descriptors(loop: uringloop.Loop) -> None:
    taker = Taker(loop)
    async with stream(loop, taker) as (_, peer):
        for number in range(MANY):
            peer.send(b"x")
            await taker.received(number + 1)
    assert taker.passed == []


# ── ways to a connection ──────────────────────────────────────────────────────────────────


async def by_client(loop: Loop, taker: Taker, path: str) -> socket.socket:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        await loop.create_unix_connection(lambda: taker, path)
        return listener.accept()[0]


async def by_server(loop: Loop, taker: Taker, path: str) -> socket.socket:
    server = await loop.create_unix_server(lambda: taker, path)
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    await taker.made
    server.close()
    return peer


async def by_pair(loop: Loop, taker: Taker, _: str) -> socket.socket:
    ours, peer = unix_pair()
    await loop.create_unix_connection(lambda: taker, sock=ours)
    return peer


async def by_connection(loop: Loop, taker: Taker, _: str) -> socket.socket:
    ours, peer = unix_pair()
    await loop.create_connection(lambda: taker, sock=ours)
    return peer


async def by_accepted(loop: Loop, taker: Taker, _: str) -> socket.socket:
    ours, peer = unix_pair()
    await loop.connect_accepted_socket(lambda: taker, ours)
    return peer


Way = Callable[[Loop, Taker, str], Awaitable[socket.socket]]


@pytest.mark.parametrize("way", [by_client, by_server, by_pair, by_connection, by_accepted])
@on_loop
async def test_each_way_to_a_connection_brings_descriptors(
    loop: uringloop.Loop, tmp_path: Path, way: Way
) -> None:
    taker = Taker(loop)
    with await way(loop, taker, str(tmp_path / "socket")) as peer:
        for number in range(MANY):
            send(peer, b"x", b"%d" % number)
            await taker.received(number + 1)
    assert await taker.lost is None
    assert taker.passed == [[b"%d" % number] for number in range(MANY)]


# ── another protocol ──────────────────────────────────────────────────────────────────────


async def receive_some(collector: Collector, peer: socket.socket, count: int, size: int) -> None:
    """Send *count* messages without descriptors, and wait for each."""
    for number in range(1, count + 1):
        peer.send(bytes(size))
        await collector.received(number * size)


before_the_switch = pytest.mark.parametrize(
    ("count", "size"), [(0, 1), (1, 1), (MANY, 1), (MANY, 50_000)]
)


@before_the_switch
@on_loop
async def test_a_protocol_with_fds_received_may_follow_one_without(
    loop: uringloop.Loop, count: int, size: int
) -> None:
    for _ in range(10):
        first, taker = Collector(loop), Taker(loop)
        taker.calls.append("set_protocol")
        async with nothing_left(loop), connection(loop, first) as (transport, peer):
            await receive_some(first, peer, count, size)
            transport.set_protocol(taker)
            for number in range(MANY):
                send(peer, b"x", b"%d" % number)
            assert await taker.received(MANY) == b"x" * MANY
        assert taker.passed == [[b"%d" % number] for number in range(MANY)]
        assert taker.offsets == list(range(MANY))
        assert len(first.data) == count * size


@before_the_switch
@on_loop
async def test_a_protocol_without_fds_received_may_follow_one_with_it(
    loop: uringloop.Loop, count: int, size: int
) -> None:
    taker, heir = Taker(loop), Collector(loop)
    heir.calls.append("set_protocol")
    async with nothing_left(loop), connection(loop, taker) as (transport, peer):
        await receive_some(taker, peer, count, size)
        send(peer, b"x", b"taken")
        await taker.received(count * size + 1)
        transport.set_protocol(heir)
        for number in range(MANY):
            reader = pass_writer(peer, bytes(size))
            await heir.received((number + 1) * size)
            await writer_closed(reader)
        transport.set_protocol(taker)
        send(peer, b"y", b"again")
        await taker.received(count * size + 2)
    assert taker.passed == [[b"taken"], [b"again"]]


@on_io_uring
@on_loop
async def test_the_ring_receives_again_after_a_protocol_with_fds_received(
    loop: uringloop.Loop,
) -> None:
    armed: list[int] = []
    for switches in (0, 1, 3):
        collector = Collector(loop)
        collector.calls.append("set_protocol")
        async with connection(loop, collector) as (transport, peer):
            for _ in range(switches):
                transport.set_protocol(Taker(loop))
                await turns(3)
                transport.set_protocol(collector)
            await receive_some(collector, peer, MANY, 1)
            before = loop.stats()["rearms"]
            for number in range(50):
                peer.send(b"x")
                await collector.received(MANY + number + 1)
            armed.append(loop.stats()["rearms"] - before)
    assert armed == [0, 0, 0]


@pytest.mark.parametrize(("count", "size"), [(1, 1), (MANY, 50_000)])
@on_loop
async def test_a_switch_in_data_received_keeps_the_descriptors_in_the_socket(
    loop: uringloop.Loop, count: int, size: int
) -> None:
    class Switching(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if data.endswith(b"!"):
                self.transport.set_protocol(taker)

    # Polls receive: a receive by the ring might take all messages before the first is delivered.
    first, taker = Switching(loop), Taker(loop)
    taker.calls.append("set_protocol")
    async with connection(loop, first) as (_, peer):
        await receive_some(first, peer, count, size)
        # Descriptors part each message from the next.
        send(peer, b"the last!", b"closed")
        send(peer, b"one", b"1")
        send(peer, b"two", b"2")
        await until(lambda: len(first.data) + len(taker.data) == count * size + 15)
    assert bytes(taker.data) == b"onetwo"
    assert taker.passed == [[b"1"], [b"2"]]
