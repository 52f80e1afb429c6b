"""Datagram transports that send messages and segments."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.datagram_messages import (
    IP,
    IP_PKTINFO,
    LOCAL,
    SO_NO_CHECK,
    SOCKET,
    UDP_LITE,
    Item,
    Message,
    Messages,
    blocking,
    contents,
    cut,
    enable,
    plain_message,
    rights,
    seen_tos,
    tell_all,
    tos,
)
from support.datagrams import (
    Mailbox,
    drained,
    endpoint,
    fill_receiver,
    udp,
    unix_pair,
    unsent,
)
from support.forks import RUN
from support.leaks import open_fds
from support.roles import (
    PATIENCE,
    noise,
    nothing_comes,
    on_loop,
    record_handler_calls,
    released,
    run_script,
    turns,
    until,
)
from support.sockets import pipe_with

from uringloop import Loop
from uringloop._cpython import stdlib

# Seconds after which a send ends that waits in the kernel.
STANDSTILL = 5

# ── sendmsg() ─────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def sender(loop: Loop, kind: str) -> AsyncIterator[tuple[Any, Any, socket.socket]]:
    """Yield an endpoint, an address for its sends, and the socket that receives them.

    The endpoint is "connected" to the socket, or has an address "new" to it, or a "known" one.
    """
    with blocking() as plain:
        where = plain.getsockname()
        options: Any = {"remote_addr": where} if kind == "connected" else {"local_addr": LOCAL}
        async with endpoint(loop, Messages(), **options) as (transport, mailbox):
            if kind == "known":
                plain.sendto(b"hello", transport.get_extra_info("sockname"))
                await mailbox.received()
            yield transport, None if kind == "connected" else where, plain
            assert mailbox.errors == []


each_kind = pytest.mark.parametrize("kind", ["connected", "new", "known"])
NUMBERS = array.array("I", range(5))
BUFFERS: tuple[Any, ...] = (
    [b"one"],
    [b"one", b"two", b"", b"three"],
    (bytearray(b"array"),),
    [memoryview(b"a view"), bytearray(b" and more")],
    [memoryview(NUMBERS), NUMBERS],
    [noise(30_000), noise(35_507)],
    [],
)


@each_kind
@on_loop
async def test_sendmsg_joins_its_buffers(loop: Loop, kind: str) -> None:
    async with sender(loop, kind) as (transport, address, plain):
        for buffers in BUFFERS:
            data = b"".join(map(bytes, buffers))
            transport.sendmsg(buffers, addr=address)
            transport.sendmsg(iter(buffers), iter([tos(3)]), address)
            messages = [plain_message(plain) for _ in range(2)]
            assert [message.data for message in messages] == [data, data]
            assert seen_tos(messages) == [0, 3]
            assert messages[0].addr == transport.get_extra_info("sockname")


@each_kind
@on_loop
async def test_ancillary_data_apply_to_one_datagram(loop: Loop, kind: str) -> None:
    async with sender(loop, kind) as (transport, address, plain):
        port = transport.get_extra_info("sockname")[1]
        # The last one counts. From ten on, they and the source have more than 256 bytes.
        for count in (1, 2, 9, 10, 40):
            host = f"127.0.0.{count + 1}"
            source = (IP, IP_PKTINFO, struct.pack("=i4s4s", 0, socket.inet_aton(host), b""))
            items = [source, *(tos(4 * number) for number in range(count))]
            transport.sendmsg([b"x"], items, address)
            transport.sendmsg([b"x"], [], address)
            messages = [plain_message(plain) for _ in range(2)]
            assert [one.addr for one in messages] == [(host, port), ("127.0.0.1", port)]
            assert seen_tos(messages) == [4 * (count - 1), 0]


@each_kind
@on_loop
async def test_all_methods_that_send_keep_their_order(loop: Loop, kind: str) -> None:
    async with sender(loop, kind) as (transport, address, plain):
        wanted = []
        for number in range(10):
            transport.sendto(b"to %d" % number, address)
            transport.sendmsg([b"msg", b" %d" % number], [tos(number)], address)
            transport.send_segments(b"one.two.end", 4, address)
            wanted += [b"to %d" % number, b"msg %d" % number, b"one.", b"two.", b"end"]
        assert [plain.recv(100) for _ in wanted] == wanted


async def received_later(peer: socket.socket, count: int) -> list[Message]:
    """Receive *count* messages, most of which the loop has yet to send."""
    found: list[Message] = []
    while len(found) < count:
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(plain_message(peer))
        await turns()
    return found


@on_loop
async def test_messages_without_room_are_queued(loop: Loop, tmp_path: Path) -> None:
    header = 8 if stdlib.EMPTY_DATAGRAMS_ARE_SENT else 0
    ours, peer = unix_pair(tmp_path)
    stuffed = fill_receiver(ours)
    async with endpoint(loop, Messages(), sock=ours) as (transport, mailbox):
        with peer:
            transport.set_write_buffer_limits(high=500)
            part, wanted = bytearray(3), []
            for number in range(50):
                assert unsent(transport) == number * (20 + 4 * header)
                part[:] = b"%3d" % number
                transport.sendmsg([b"message", part])
                transport.sendto(b"to " + part)
                transport.send_segments(b"a" + part, 2)
                wanted += [b"message" + part, b"to " + part, *cut(b"a" + part, 2)]
            # The queue has copies.
            part[:] = b"bad"
            assert mailbox.calls == ["connection_made", "pause_writing"]
            found = await received_later(peer, stuffed + len(wanted))
            assert [message.data for message in found[stuffed:]] == wanted
            await until(lambda: mailbox.calls[-1] == "resume_writing")
            assert len(mailbox.calls) == 3
            assert unsent(transport) == 0


@pytest.mark.parametrize(
    ("method", "connected"), [("sendmsg", True), ("sendmsg", False), ("sendto", False)]
)
@on_loop
async def test_a_socket_that_other_code_made_blocking_queues_what_has_no_room(
    loop: Loop, tmp_path: Path, method: str, connected: bool
) -> None:
    own = struct.pack("=3i", os.getpid(), os.getuid(), os.getgid())
    # More than 256 bytes of them.
    credentials = [(SOCKET, socket.SCM_CREDENTIALS, own)] * 20
    ours, peer = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    peer.bind(str(tmp_path / "peer"))
    peer.setblocking(False)
    ours.connect(peer.getsockname())
    ours.setblocking(False)
    stuffed = fill_receiver(ours)
    if not connected:
        ours.close()
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    address = None if connected else peer.getsockname()
    ours.setsockopt(SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", STANDSTILL, 0))
    async with endpoint(loop, Messages(), sock=ours) as (transport, mailbox):
        # As a child process may do that has inherited it.
        os.set_blocking(ours.fileno(), True)
        with peer:
            began = loop.time()
            for number in range(20):
                if method == "sendmsg":
                    transport.sendmsg([b"%d" % number], credentials, address)
                else:
                    transport.sendto(b"%d" % number, address)
            # A poll says that there is room, because there is in this socket.
            await nothing_comes(loop)
            assert unsent(transport) > 0
            assert loop.time() - began < STANDSTILL
            found = await received_later(peer, stuffed + 20)
            assert loop.time() - began < STANDSTILL
            assert [one.data for one in found[stuffed:]] == [b"%d" % each for each in range(20)]
            assert mailbox.errors == []


@on_loop
async def test_an_empty_message_is_not_overtaken(loop: Loop, tmp_path: Path) -> None:
    ours, peer = unix_pair(tmp_path)
    stuffed = fill_receiver(ours)
    async with endpoint(loop, sock=ours) as (transport, _):
        with peer:
            transport.sendmsg([b""])
            assert len(drained(peer)) == stuffed
            transport.sendto(b"later")
            found = await received_later(peer, 2)
            assert [message.data for message in found] == [b"", b"later"]


@pytest.mark.parametrize("connected", [True, False])
@on_loop
async def test_queued_descriptors_may_be_closed(
    loop: Loop, tmp_path: Path, connected: bool
) -> None:
    ours, peer = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    peer.bind(str(tmp_path / "peer"))
    peer.setblocking(False)
    address = None if connected else peer.getsockname()
    if connected:
        ours.connect(peer.getsockname())
    before = open_fds()
    async with endpoint(loop, Messages(), sock=ours) as (transport, _):
        with peer:
            stuffed = 0
            while not unsent(transport):
                transport.sendto(b"stuffing", address)
                stuffed += 1
            for number in range(20):
                fds = [pipe_with(b"%d.%d" % (number, each)) for each in range(3)]
                transport.sendmsg([b"%d" % number], [rights(*fds[:2]), rights(fds[2])], address)
                for fd in fds:
                    os.close(fd)
            fd = pipe_with(b"12345")
            transport.send_segments(b"aabbc", 2, address, [rights(fd)])
            os.close(fd)
            assert len(open_fds() - before) == 63
            found = (await received_later(peer, stuffed + 23))[stuffed:]
            for number, message in enumerate(found[:20]):
                wanted = [b"%d.%d" % (number, each) for each in range(3)]
                assert (message.data, contents(message.ancdata)) == (b"%d" % number, wanted)
            assert [message.data for message in found[20:]] == [b"aa", b"bb", b"c"]
            taken = [contents(message.ancdata, 2) for message in found[20:]]
            assert taken == [[b"12"], [b"34"], [b"5"]]
            assert open_fds() == before


@pytest.mark.parametrize("end", ["abort", "close and abort", "error"])
@on_loop
async def test_descriptors_that_are_never_sent_are_closed(
    loop: Loop, tmp_path: Path, end: str
) -> None:
    ours, peer = unix_pair(tmp_path)
    fill_receiver(ours)
    before = open_fds()
    async with endpoint(loop, Messages(), sock=ours) as (transport, mailbox):
        with peer:
            for _ in range(10):
                transport.sendmsg([b"queued"], [rights(0, 1)])
            assert len(open_fds() - before) == 20
            if end == "error":
                peer.close()
                await mailbox.failed(10)
            if end == "close and abort":
                transport.close()
            if end != "error":
                transport.abort()
                await released(transport)
            assert open_fds() <= before


@pytest.mark.parametrize("queued", [False, True])
@on_loop
async def test_a_closed_descriptor_is_an_error_of_its_message(
    loop: Loop, tmp_path: Path, queued: bool
) -> None:
    ours, peer = unix_pair(tmp_path)
    stuffed = fill_receiver(ours) if queued else 0
    before = open_fds()
    async with endpoint(loop, Messages(), sock=ours) as (transport, mailbox):
        with peer:
            transport.sendto(b"before")
            transport.sendmsg([b"wrong"], [rights(0, 1_000_000)])
            transport.sendto(b"behind")
            found = await received_later(peer, stuffed + 2)
            assert [message.data for message in found[stuffed:]] == [b"before", b"behind"]
            assert [exc.errno for exc in mailbox.errors] == [errno.EBADF]
            assert open_fds() == before


@pytest.mark.parametrize("queued", [False, True])
@on_loop
async def test_an_item_beside_descriptors_is_sent_or_refused(
    loop: Loop, tmp_path: Path, queued: bool
) -> None:
    ours, peer = unix_pair(tmp_path)
    if queued:
        fill_receiver(ours)
    async with endpoint(loop, Messages(), sock=ours) as (transport, mailbox):
        with peer:
            transport.sendto(b"before")
            # The kernel knows no such type.
            transport.sendmsg([b"wrong"], [rights(0), (SOCKET, 999, bytes(4))])
            drained(peer)
            [error] = await mailbox.failed()
            assert error.errno == errno.EINVAL
            assert drained(peer) == ([b"before"] if queued else [])


@pytest.mark.parametrize("queued", [False, True])
@on_loop
async def test_a_part_of_a_descriptor_is_left_out(loop: Loop, tmp_path: Path, queued: bool) -> None:
    ours, peer = unix_pair(tmp_path)
    stuffed = fill_receiver(ours) if queued else 0
    async with endpoint(loop, Messages(), sock=ours) as (transport, _):
        with peer:
            fd = pipe_with(b"whole")
            level, kind, fds = rights(fd)
            # As the kernel does for a message that is sent at once.
            transport.sendmsg([b"x"], [(level, kind, bytes(fds) + bytes(3))])
            os.close(fd)
            message = (await received_later(peer, stuffed + 1))[stuffed]
            assert (message.data, contents(message.ancdata)) == (b"x", [b"whole"])


class Index:
    def __index__(self) -> int:
        return 0


class Failing:
    """Raises an exception of its own when it is iterated over."""

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("mine")
        yield


# Buffers and ancillary data; and whether the text is that of socket.sendmsg(), too.
WRONG: dict[str, tuple[Any, Any, bool]] = {
    "no buffers": (5, (), True),
    "None": (None, (), True),
    # From 3.14 on socket.sendmsg() replaces the text of any TypeError.
    "buffers that fail": (Failing(), (), sys.version_info < (3, 14)),
    "a text as buffer": (["x"], (), False),
    "bytes as buffers": (b"x", (), False),
    "a view with gaps": ([memoryview(b"a-b-")[::2]], (), False),
    "no ancillary data": ([b"x"], 5, True),
    "ancillary None": ([b"x"], None, True),
    "ancillary data that fail": ([b"x"], Failing(), sys.version_info < (3, 14)),
    "a number as item": ([b"x"], [5], True),
    "an iterator as item": ([b"x"], [iter((0, 1, b""))], True),
    "a set as item": ([b"x"], [{0, 1, bytes(4)}], True),
    "bytes as item": ([b"x"], [b"abc"], True),
    "two in an item": ([b"x"], [(0, 1)], True),
    "four in an item": ([b"x"], [(0, 1, b"", 2)], True),
    "a text as level": ([b"x"], [("x", 1, b"")], False),
    "a fraction as level": ([b"x"], [(0.5, 1, bytes(4))], False),
    "a fraction as type": ([b"x"], [(0, 1.5, bytes(4))], False),
    "a large level": ([b"x"], [(1 << 40, 1, b"")], False),
    "a large type": ([b"x"], [(0, -1 << 40, b"")], False),
    "a text as data": ([b"x"], [(0, 1, "x")], False),
    "data with gaps": ([b"x"], [(0, 1, memoryview(bytes(8))[::2])], False),
}


@pytest.mark.parametrize("name", WRONG)
@on_loop
async def test_wrong_arguments_raise_what_socket_sendmsg_raises(loop: Loop, name: str) -> None:
    *arguments, same_text = WRONG[name]
    with udp() as peer, udp() as plain:
        plain.connect(peer.getsockname())
        with pytest.raises((TypeError, OverflowError, BufferError)) as wanted:
            plain.sendmsg(*arguments)
        async with endpoint(loop, remote_addr=peer.getsockname()) as (transport, mailbox):
            with pytest.raises(wanted.type) as found:
                transport.sendmsg(*arguments)
            assert str(found.value) == str(wanted.value) or not same_text
            assert not transport.is_closing()
            transport.sendto(b"still open")
            assert drained(peer, 1) == [b"still open"]
            assert mailbox.errors == []


@on_loop
async def test_any_index_is_a_level_and_a_type(loop: Loop) -> None:
    async with sender(loop, "connected") as (transport, _, plain):
        transport.sendmsg([b"x"], [[Index(), True, bytearray(b"\x04\0\0\0")]])
        assert seen_tos([plain_message(plain)]) == [4]


@pytest.mark.parametrize(
    "item", [(IP, socket.IP_TOS, b"xx"), (IP, 999, bytes(4)), (IP, 1, bytes(1 << 20))]
)
@on_loop
async def test_refusals_of_the_kernel_go_to_error_received(loop: Loop, item: Item) -> None:
    with udp() as peer:
        with pytest.raises(OSError, match=r"Invalid argument|No buffer space") as wanted:
            peer.sendmsg([b"x"], [item], 0, peer.getsockname())
        async with endpoint(loop, remote_addr=peer.getsockname()) as (transport, mailbox):
            transport.sendmsg([b"x"], [item])
            assert [exc.errno for exc in mailbox.errors] == [wanted.value.errno]
            transport.sendmsg([b"good"], [tos(4)])
            assert drained(peer, 1) == [b"good"]


def send(transport: Any, method: str, address: Any = None) -> None:
    """Send "ab" by one of the two new methods."""
    if method == "sendmsg":
        transport.sendmsg([b"a", b"b"], [tos(4)], address)
    else:
        transport.send_segments(b"ab", 2, address, [tos(4)])


each_method = pytest.mark.parametrize("method", ["sendmsg", "send_segments"])


@each_method
@on_loop
async def test_addresses_are_those_of_sendto(loop: Loop, method: str) -> None:
    handler_calls = record_handler_calls(loop)
    with udp() as peer:
        where = peer.getsockname()
        async with endpoint(loop, remote_addr=where) as (transport, _):
            with pytest.raises(ValueError, match=r"^Invalid address: must be None or "):
                send(transport, method, ("127.0.0.1", 9))
            send(transport, method, where)
        async with endpoint(loop, local_addr=LOCAL) as (transport, mailbox):
            send(transport, method, ("localhost", where[1]))
            assert drained(peer, 2) == [b"ab", b"ab"]
            send(transport, method, "text")
            await until(lambda: mailbox.lost != [])
            assert isinstance(mailbox.lost[0], TypeError)
    assert [call["exception"] for call in handler_calls] == mailbox.lost
    handler_calls.clear()


UNADDRESSED: dict[str, Callable[[Any], None]] = {
    "a message": lambda transport: transport.sendmsg([b"x"]),
    "an empty message": lambda transport: transport.sendmsg([]),
    "ancillary data": lambda transport: transport.sendmsg([b"x"], [tos(4)]),
    "segments": lambda transport: transport.send_segments(b"abc", 2),
    "one segment": lambda transport: transport.send_segments(b"x", 2),
    "segments with ancillary data": lambda transport: transport.send_segments(
        b"abc", 2, None, [tos(4)]
    ),
}


@pytest.mark.parametrize("name", UNADDRESSED)
@on_loop
async def test_a_message_without_an_address_goes_to_error_received(loop: Loop, name: str) -> None:
    async with endpoint(loop, Messages(), local_addr=LOCAL) as (transport, mailbox):
        UNADDRESSED[name](transport)
        assert [exc.errno for exc in mailbox.errors] == [errno.EDESTADDRREQ]
        await turns(3)
        assert not transport.is_closing()
        with udp() as peer:
            transport.sendmsg([b"still open"], (), peer.getsockname())
            assert drained(peer, 1) == [b"still open"]


@each_method
@on_loop
async def test_messages_after_closing_are_dropped_and_logged(
    loop: Loop, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    with udp() as peer:
        async with endpoint(loop, remote_addr=peer.getsockname()) as (transport, mailbox):
            transport.close()
            for _ in range(4):
                send(transport, method)
            assert caplog.text == ""
            send(transport, method)
            assert "socket.send() raised exception." in caplog.text
            await released(transport)
            send(transport, method)
            assert drained(peer) == []
            assert mailbox.errors == []


class Lying:
    """Says that it has three items, and has none."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        raise IndexError


class Meddling(tuple[Any, ...]):
    """An address that changes the ancillary data when it is compared."""

    ancdata: list[Any]

    def __ne__(self, other: object) -> bool:
        self.ancdata[:] = [None]
        return super().__ne__(other)

    __hash__ = tuple.__hash__


@on_loop
async def test_ancillary_data_that_change_meanwhile_are_sent_as_they_were(loop: Loop) -> None:
    with udp() as peer:
        options = {"remote_addr": peer.getsockname()}
        async with endpoint(loop, Messages(), **options) as (transport, _):
            with pytest.raises(TypeError):
                transport.sendmsg([b"wrong"], [Lying()])
            address = Meddling(peer.getsockname())
            address.ancdata = [tos(4)]
            transport.sendmsg([b"right"], address.ancdata, address)
            assert await received_later(peer, 1)
            assert address.ancdata == [None]


# ── send_segments() ───────────────────────────────────────────────────────────────────────

SIZES = "3000/1000 2500/1000 999/1000 1000/1000 1/1 5/1 0/10 640/10 641/10 3005/10 65507/1400 "
SIZES += "120000/1400 150000/40000 131015/65507 100/70000"


async def check_segments(
    transport: Any, plain: socket.socket, data: Any, size: int, address: Any
) -> None:
    """Check that *plain* gets the segments of *data* in order, each with its ancillary data."""
    for count in (0, 1, 12):
        transport.send_segments(data, size, address, [tos(4 * each) for each in range(count)])
        transport.sendto(b"the end", address)
        wanted = [*cut(bytes(data), size), b"the end"]
        messages = [plain_message(plain) for _ in wanted]
        assert [message.data for message in messages] == wanted
        assert seen_tos(messages) == [4 * max(count - 1, 0)] * (len(wanted) - 1) + [0]


@each_kind
@pytest.mark.parametrize("sizes", SIZES.split())
@on_loop
async def test_segments_arrive_in_order(loop: Loop, kind: str, sizes: str) -> None:
    total, size = map(int, sizes.split("/"))
    async with sender(loop, kind) as (transport, address, plain):
        await check_segments(transport, plain, noise(total), size, address)


@pytest.mark.parametrize("data", [bytearray(7), memoryview(NUMBERS), memoryview(b"g-a-p-s-")[::2]])
@on_loop
async def test_any_bytes_like_object_is_cut(loop: Loop, data: Any) -> None:
    async with sender(loop, "new") as (transport, address, plain):
        await check_segments(transport, plain, data, 3, address)


def uncut(kind: str) -> socket.socket:
    """Return a socket whose messages the kernel does not cut."""
    try:
        sock = socket.socket(type=socket.SOCK_DGRAM, proto=UDP_LITE if kind == "UDP-Lite" else 0)
    except OSError:
        pytest.skip("this kernel has no UDP-Lite")
    if kind == "no checksums":
        enable(sock, SOCKET, SO_NO_CHECK)
    sock.bind(LOCAL)
    return sock


each_uncut = pytest.mark.parametrize("kind", ["no checksums", "UDP-Lite"])


@each_uncut
@on_loop
async def test_segments_arrive_where_the_kernel_cuts_nothing(loop: Loop, kind: str) -> None:
    with uncut(kind) as plain:
        tell_all(plain)
        plain.settimeout(PATIENCE)
        async with endpoint(loop, sock=uncut(kind)) as (transport, mailbox):
            for total, size in ((3000, 1000), (2500, 1000), (100, 1), (0, 5), (90_000, 40_000)):
                where = plain.getsockname()
                await check_segments(transport, plain, noise(total), size, where)
            assert mailbox.errors == []


@on_loop
async def test_queued_segments_that_the_kernel_does_not_cut_arrive_in_order(
    loop: Loop, tmp_path: Path
) -> None:
    header = 8 if stdlib.EMPTY_DATAGRAMS_ARE_SENT else 0
    full, reader = unix_pair(tmp_path)
    fill_receiver(full)
    with blocking() as plain, uncut("no checksums") as sock, full, reader:
        sock.connect(plain.getsockname())
        async with endpoint(loop, Messages(), sock=socket.socket(fileno=os.dup(sock.fileno()))) as (
            transport,
            mailbox,
        ):
            fd = transport.get_extra_info("socket").fileno()
            # UDP on loopback is never full: a UNIX socket takes the place of the one that is.
            os.dup2(full.fileno(), fd, inheritable=False)
            transport.send_segments(b"aabbccd", 2, None, [tos(4)])
            transport.sendto(b"behind")
            assert unsent(transport) == 13 + 2 * header
            os.dup2(sock.fileno(), fd, inheritable=False)
            drained(reader)
            await until(lambda: unsent(transport) == 0)
            messages = [plain_message(plain) for _ in range(5)]
            assert [message.data for message in messages] == [b"aa", b"bb", b"cc", b"d", b"behind"]
            assert seen_tos(messages) == [4, 4, 4, 4, 0]
            assert mailbox.errors == []


@each_uncut
@on_loop
async def test_an_abort_in_error_received_ends_segments(loop: Loop, kind: str) -> None:
    class Aborting(Mailbox):
        def error_received(self, exc: Exception) -> None:
            super().error_received(exc)
            self.transport.abort()

    ours = uncut(kind)
    with uncut(kind) as peer:
        ours.connect(peer.getsockname())
    async with endpoint(loop, Aborting(), sock=ours) as (transport, mailbox):
        # The first segment brings an error, which the send of the second one returns.
        transport.send_segments(bytes(20), 2)
        await released(transport)
        assert [type(exc) for exc in mailbox.errors] == [ConnectionRefusedError]


@pytest.mark.parametrize("queued", [False, True])
@on_loop
async def test_an_error_of_an_earlier_datagram_costs_no_segment(
    loop: Loop, tmp_path: Path, queued: bool
) -> None:
    full, reader = unix_pair(tmp_path)
    fill_receiver(full)
    with udp() as gone:
        where = gone.getsockname()
    async with endpoint(loop, Messages(), remote_addr=where) as (transport, mailbox):
        # No receive takes the error.
        transport.pause_reading()
        await turns(3)
        fd = transport.get_extra_info("socket").fileno()
        transport.sendto(b"lost")
        poll = select.poll()
        poll.register(fd, 0)
        assert poll.poll(PATIENCE * 1000) == [(fd, select.POLLERR)]
        # The kernel may cut less than all of it at once.
        wanted = [b"%04d" % number for number in range(1000)]
        with udp(*where) as peer, full, reader, socket.socket(fileno=os.dup(fd)) as sock:
            peer.setsockopt(SOCKET, socket.SO_RCVBUF, 1 << 20)
            if queued:
                # UDP on loopback is never full: a UNIX socket takes the place of the one that is.
                os.dup2(full.fileno(), fd, inheritable=False)
            transport.send_segments(b"".join(wanted), 4)
            if queued:
                assert unsent(transport) > 0
                os.dup2(sock.fileno(), fd, inheritable=False)
                drained(reader)
                await until(lambda: unsent(transport) == 0)
            assert drained(peer, len(wanted)) == wanted
            assert [exc.errno for exc in mailbox.errors] == [errno.ECONNREFUSED]


FORKING = """
    import asyncio
    import os
    import select
    import socket
    import uringloop

    child = None

    class Forking(asyncio.DatagramProtocol):
        def error_received(self, exc):
            global child
            child = os.fork()

    def bound(address):
        sock = socket.socket(type=socket.SOCK_DGRAM)
        sock.bind(address)
        return sock

    async def main():
        gone = bound(("127.0.0.1", 0))
        address = gone.getsockname()
        gone.close()
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            Forking, remote_addr=address
        )
        transport.sendto(b"lost")
        poll = select.poll()
        poll.register(transport.get_extra_info("socket"), 0)
        assert poll.poll(10_000)
        peer = bound(address)
        peer.settimeout(10)
        wanted = [b"%03d" % number for number in range(100)]
        try:
            transport.send_segments(b"".join(wanted), 3)
        except RuntimeError:
            # The child uses an inherited loop.
            os._exit(3)
        if child == 0:
            os._exit(4)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert [peer.recv(100) for _ in wanted] == wanted
        transport.sendto(b"the end")
        print(peer.recv(100).decode(), status)
"""


def test_a_child_that_error_received_forks_sends_no_segment() -> None:
    ended = run_script(f"{FORKING}{RUN}\n    run(main)\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the end 3\n", "")


WRONG_SEGMENTS: dict[type[Exception], tuple[Any, ...]] = {
    ValueError: ((b"xx", 0), (b"xx", -1)),
    OverflowError: ((b"xx", 1 << 64),),
    TypeError: ((b"xx", "x"), (b"xx", 1.5), ("xx", 1), (b"xx", 1, None, 5), (b"xx", 1, None, [5])),
}


@pytest.mark.parametrize("error", WRONG_SEGMENTS)
@on_loop
async def test_wrong_segments_are_refused(loop: Loop, error: type[Exception]) -> None:
    async with sender(loop, "connected") as (transport, _, plain):
        for arguments in WRONG_SEGMENTS[error]:
            with pytest.raises(error):
                transport.send_segments(*arguments)
            assert not transport.is_closing()
            transport.sendto(b"still open")
            assert plain.recv(100) == b"still open"


@on_loop
async def test_a_segment_longer_than_a_packet_is_an_error(loop: Loop) -> None:
    async with sender(loop, "new") as (transport, address, plain):
        transport.send_segments(bytes(70_001), 70_000, address)
        assert plain.recv(100) == bytes(1)
        errors = transport.get_protocol().errors
        assert [exc.errno for exc in errors] == [errno.EMSGSIZE]
        errors.clear()
