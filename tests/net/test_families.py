"""Sockets of other families than TCP's and UDP's, on each loop with the same results.

A family that the kernel does not have is skipped with the kernel's error.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import socket
import struct
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.datagrams import endpoint, udp
from support.loops import FACTORIES, LoopFactory
from support.protocols import Collector, Echo
from support.roles import (
    PATIENCE,
    Loop,
    abort_and_wait,
    close_server,
    in_thread,
    noise,
    on_loop,
    read_exactly,
    released,
    turns,
    until,
)
from support.sockets import cancelled

import uringloop
from uringloop import sockets

# linux/netlink.h and linux/rtnetlink.h.
NLMSG_DONE, RTM_NEWLINK, RTM_GETLINK = 3, 16, 18
NLM_F_REQUEST_DUMP = 0x301
IFLA_IFNAME = 3
RTMGRP_LINK = 1
NETLINK_USERSOCK = 2
# A message's size, type, flags, number and sender; an attribute's size and type.
MESSAGE = struct.Struct("=IHHII")
ATTRIBUTE = struct.Struct("=HH")
INTERFACE_SIZE = 16
KERNEL = (0, 0)

# linux/if_ether.h and linux/if_arp.h.
ETH_P_IP, ETH_P_OWN = 0x0800, 0x88B5
ARPHRD_LOOPBACK = 772
# linux/in.h and linux/vm_sockets.h.
IPPROTO_MPTCP = 262
VMADDR_CID_LOCAL = 1
SO_VM_SOCKETS_CONNECT_TIMEOUT = 6
VMADDR_PORT_ANY = 0xFFFFFFFF
# A port that no program listens on, most likely.
VSOCK_UNUSED = 47_113

# More than 64 KiB, and more than the memory of the loop for one receive.
LARGE = [70_000, 200_000, 300_000]
# asyncio's endpoint receives no more at once.
ENDPOINT_MAX = 256 * 1024


@contextlib.contextmanager
def skipping(what: str) -> Iterator[None]:
    """Skip the test if the kernel refuses what the block does."""
    try:
        yield
    except OSError as exc:
        pytest.skip(f"{what}: {exc}")


def opened(name: str, kind: int, proto: int = 0) -> socket.socket:
    """Return a non-blocking socket of the family with this name, or skip the test."""
    if not hasattr(socket, name):
        pytest.skip(f"Python's socket module has no {name}")
    with skipping(f"{name}, protocol {proto}" if proto else name):
        sock = socket.socket(getattr(socket, name), kind, proto)
    sock.setblocking(False)
    return sock


# ── netlink ───────────────────────────────────────────────────────────────────────────────


def list_request(number: int) -> bytes:
    """Return a request for all network interfaces."""
    size = MESSAGE.size + INTERFACE_SIZE
    return MESSAGE.pack(size, RTM_GETLINK, NLM_F_REQUEST_DUMP, number, 0) + bytes(INTERFACE_SIZE)


def padded(size: int) -> int:
    return (size + 3) & ~3


def messages_in(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Return the type and the body of each message."""
    while data:
        size, kind, _, _, _ = MESSAGE.unpack_from(data)
        yield kind, data[MESSAGE.size : size]
        data = data[padded(size) :]


def interface_name(body: bytes) -> str:
    rest = body[INTERFACE_SIZE:]
    while rest:
        size, kind = ATTRIBUTE.unpack_from(rest)
        if kind == IFLA_IFNAME:
            return rest[ATTRIBUTE.size : size].rstrip(b"\0").decode()
        rest = rest[padded(size) :]
    raise AssertionError("an interface without a name")


def interfaces(answers: list[bytes]) -> list[str]:
    found = [message for data in answers for message in messages_in(data)]
    return [interface_name(body) for kind, body in found if kind == RTM_NEWLINK]


def is_last(data: bytes) -> bool:
    return any(kind == NLMSG_DONE for kind, _ in messages_in(data))


async def by_bytes(loop: Loop, sock: socket.socket) -> list[bytes]:
    await loop.sock_connect(sock, KERNEL)
    await loop.sock_sendall(sock, list_request(1))
    answers = [await loop.sock_recv(sock, 100_000)]
    while not is_last(answers[-1]):
        answers.append(await loop.sock_recv(sock, 100_000))
    return answers


async def by_addresses(loop: Loop, sock: socket.socket) -> list[bytes]:
    request = list_request(2)
    sent: Any = await loop.sock_sendto(sock, request, KERNEL)
    assert sent == len(request)
    answers: list[bytes] = []
    while not answers or not is_last(answers[-1]):
        data, address = await loop.sock_recvfrom(sock, 100_000)
        assert address == KERNEL
        answers.append(data)
    return answers


async def by_messages(loop: Loop, sock: socket.socket) -> list[bytes]:
    assert await sockets.sendmsg(loop, sock, [list_request(3)], (), 0, KERNEL) == 32
    answers: list[bytes] = []
    while not answers or not is_last(answers[-1]):
        assert await sockets.wait(loop, sock, sockets.READ) == sockets.READ
        data, ancillary, flags, address = await sockets.recvmsg(loop, sock, 100_000)
        assert (ancillary, flags, address) == ([], 0, KERNEL)
        answers.append(data)
    return answers


@pytest.mark.parametrize("ask", [by_bytes, by_addresses, by_messages])
@on_loop
async def test_netlink_lists_the_interfaces(
    each_loop: Loop, ask: Callable[[Loop, socket.socket], Awaitable[list[bytes]]]
) -> None:
    with opened("AF_NETLINK", socket.SOCK_RAW) as sock:
        names = interfaces(await ask(each_loop, sock))
    assert sorted(names) == sorted(name for _, name in socket.if_nameindex())
    assert "lo" in names


@pytest.mark.parametrize("address", [None, KERNEL])
@on_loop
async def test_an_endpoint_lists_the_interfaces(
    each_loop: Loop, address: tuple[int, int] | None
) -> None:
    sock = opened("AF_NETLINK", socket.SOCK_DGRAM)
    async with endpoint(each_loop, sock=sock) as (transport, mailbox):
        assert transport.get_extra_info("sockname") == sock.getsockname()
        assert transport.get_extra_info("peername") == KERNEL
        for number in range(1, 10):
            transport.sendto(list_request(number), address)
            await until(lambda: any(map(is_last, mailbox.data)))
            assert "lo" in interfaces(mailbox.data)
            assert {sender for _, sender in mailbox.mail} == {KERNEL}
            mailbox.mail.clear()


@on_loop
async def test_an_endpoint_subscribes_to_a_group(each_loop: Loop) -> None:
    sock = opened("AF_NETLINK", socket.SOCK_DGRAM)
    sock.bind((0, RTMGRP_LINK))
    async with endpoint(each_loop, sock=sock) as (transport, mailbox):
        number, groups = transport.get_extra_info("sockname")
        assert number != 0
        assert groups == RTMGRP_LINK
        transport.sendto(list_request(1), KERNEL)
        await until(lambda: any(map(is_last, mailbox.data)))


# ── large messages ────────────────────────────────────────────────────────────────────────


def netlink_pair(_: Path) -> tuple[socket.socket, socket.socket]:
    pair = [opened("AF_NETLINK", socket.SOCK_DGRAM, NETLINK_USERSOCK) for _ in range(2)]
    for sock in pair:
        sock.bind(KERNEL)
    for sock, peer in zip(pair, reversed(pair), strict=True):
        sock.connect(peer.getsockname())
    return pair[0], pair[1]


def unix_named_pair(folder: Path) -> tuple[socket.socket, socket.socket]:
    pair = [opened("AF_UNIX", socket.SOCK_DGRAM) for _ in range(2)]
    for number, sock in enumerate(pair):
        sock.bind(str(folder / f"end{number}"))
    for sock, peer in zip(pair, reversed(pair), strict=True):
        sock.connect(peer.getsockname())
    return pair[0], pair[1]


def seqpacket_pair(folder: Path) -> tuple[socket.socket, socket.socket]:
    left = opened("AF_UNIX", socket.SOCK_SEQPACKET)
    left.bind(str(folder / "left"))
    with opened("AF_UNIX", socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "right"))
        listener.listen()
        left.connect(str(folder / "right"))
        right, _ = listener.accept()
    right.setblocking(False)
    return left, right


Pair = Callable[[Path], tuple[socket.socket, socket.socket]]


def with_room(pair: tuple[socket.socket, socket.socket], size: int) -> None:
    """Let the sockets send messages of *size* bytes, or skip the test."""
    for sock in pair:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < size + 4096:
            pytest.skip("net.core.wmem_max is too small")


@pytest.mark.parametrize("size", [1, *LARGE])
@pytest.mark.parametrize("make", [netlink_pair, unix_named_pair, seqpacket_pair])
@on_loop
async def test_a_message_of_any_size_is_whole(
    each_loop: Loop, tmp_path: Path, make: Pair, size: int
) -> None:
    left, right = make(tmp_path)
    data = noise(size)
    room = size + 10
    with left, right:
        with_room((left, right), size)
        # What a plain socket gets is expected of the loop.
        left.send(data)
        expected = right.recvfrom(room)
        assert expected[0] == data
        await each_loop.sock_sendall(left, data)
        assert await each_loop.sock_recvfrom(right, room) == expected
        receiving = each_loop.create_task(each_loop.sock_recv(right, room))
        await turns(3)
        await each_loop.sock_sendall(left, data)
        assert await receiving == data
        buffer = bytearray(room)
        await sockets.sendmsg(each_loop, left, [data[:100], data[100:]])
        assert await each_loop.sock_recv_into(right, buffer) == size
        assert buffer[:size] == data
        await each_loop.sock_sendall(left, data)
        message = await sockets.recvmsg(each_loop, right, room)
        assert (message[0], message[3]) == expected
        # The rest of a message that does not fit is dropped.
        if size > 1:
            await each_loop.sock_sendall(left, data)
            await each_loop.sock_sendall(left, b"next")
            assert await each_loop.sock_recv(right, 10) == data[:10]
            assert await each_loop.sock_recv(right, 10) == b"next"


@pytest.mark.parametrize("make", [netlink_pair, unix_named_pair, seqpacket_pair])
@on_loop
async def test_an_empty_message_is_sent_if_the_kernel_sends_it(
    each_loop: Loop, tmp_path: Path, make: Pair
) -> None:
    left, right = make(tmp_path)
    with left, right:
        try:
            left.send(b"")
        except OSError as exc:
            # Netlink has none.
            with pytest.raises(type(exc), match=f"Errno {exc.errno}"):
                await each_loop.sock_sendall(left, b"")
            return
        assert right.recv(1) == b""
        await each_loop.sock_sendall(left, b"")
        await each_loop.sock_sendall(left, b"next")
        assert await each_loop.sock_recv(right, 10) == b""
        assert await each_loop.sock_recv(right, 10) == b"next"


@pytest.mark.parametrize("size", [size for size in LARGE if size < ENDPOINT_MAX])
@pytest.mark.parametrize("make", [netlink_pair, unix_named_pair])
@on_loop
async def test_an_endpoint_s_large_messages_are_whole(
    each_loop: Loop, tmp_path: Path, make: Pair, size: int
) -> None:
    left, right = make(tmp_path)
    names = left.getsockname(), right.getsockname()
    with left:
        with_room((left, right), size)
        async with endpoint(each_loop, sock=right) as (transport, mailbox):
            assert transport.get_extra_info("peername") == names[0]
            assert transport.get_extra_info("sockname") == names[1]
            for number in range(10):
                left.send(noise(size, number))
                assert (await mailbox.received())[0] == (noise(size, number), names[0])
                mailbox.mail.clear()
                transport.sendto(noise(size, -number))
                assert await each_loop.sock_recv(left, size + 1) == noise(size, -number)


# ── messages in order, by a connection ────────────────────────────────────────────────────


@on_loop
async def test_a_connection_of_messages_keeps_their_bounds(each_loop: Loop, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with opened("AF_UNIX", socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        accepting = each_loop.create_task(each_loop.sock_accept(listener))
        await turns(3)
        client = opened("AF_UNIX", socket.SOCK_SEQPACKET)
        client.bind(str(tmp_path / "client"))
        await each_loop.sock_connect(client, path)
        server, address = await accepting
    assert address == str(tmp_path / "client")
    assert server.type == socket.SOCK_SEQPACKET
    with client, server:
        for data in (b"one", b"two", b"three"):
            await each_loop.sock_sendall(client, data)
        assert await sockets.wait(each_loop, server, sockets.READ) == sockets.READ
        assert await each_loop.sock_recv(server, 100) == b"one"
        assert await each_loop.sock_recvfrom(server, 100) == (b"two", address)
        assert (await sockets.recvmsg(each_loop, server, 100))[0] == b"three"
        waiting = each_loop.create_task(each_loop.sock_recv(server, 100))
        await turns(3)
        await cancelled(waiting)
        client.close()
        assert await each_loop.sock_recv(server, 100) == b""


@on_loop
async def test_a_full_connection_of_messages_makes_a_sender_wait(
    each_loop: Loop, tmp_path: Path
) -> None:
    left, right = seqpacket_pair(tmp_path)

    async def send() -> None:
        for number in range(500):
            await each_loop.sock_sendall(left, noise(1000, number))

    with left, right:
        sending = each_loop.create_task(send())
        await turns(5)
        for number in range(500):
            assert await each_loop.sock_recv(right, 2000) == noise(1000, number)
        await sending


# ── streams ───────────────────────────────────────────────────────────────────────────────

# Family, protocol and the address of a listener.
STREAMS: dict[str, tuple[str, int, Any]] = {
    "MPTCP": ("AF_INET", IPPROTO_MPTCP, ("127.0.0.1", 0)),
    "SCTP": ("AF_INET", socket.IPPROTO_SCTP, ("127.0.0.1", 0)),
    "VSOCK": ("AF_VSOCK", 0, (VMADDR_CID_LOCAL, VMADDR_PORT_ANY)),
    "TIPC": ("AF_TIPC", 0, None),
}
each_stream = pytest.mark.parametrize("name", STREAMS)


def stream_socket(name: str) -> socket.socket:
    family, proto, _ = STREAMS[name]
    return opened(family, socket.SOCK_STREAM, proto)


def listening(name: str) -> socket.socket:
    """Return a listening socket, or skip the test."""
    sock = stream_socket(name)
    try:
        with skipping(name):
            if (address := STREAMS[name][2]) is not None:
                sock.bind(address)
            sock.listen()
            # The kernel may have the family without its loopback.
            with contextlib.closing(stream_socket(name)) as probe:
                probe.settimeout(5)
                probe.connect(sock.getsockname())
                sock.setblocking(True)
                sock.accept()[0].close()
                sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


async def connect(loop: Loop, sock: socket.socket, address: Any) -> None:
    """Connect by the loop, or, where asyncio cannot, by a call and a wait."""
    try:
        await loop.sock_connect(sock, address)
    except socket.gaierror:
        # asyncio passes even a numeric address to getaddrinfo(), which may not know the protocol.
        assert not isinstance(loop, uringloop.Loop)
        sock.connect_ex(address)
        await sockets.wait(loop, sock, sockets.WRITE)
        if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error)) from None


@each_stream
@on_loop
async def test_a_server_echoes_what_a_client_sends(each_loop: Loop, name: str) -> None:
    listener = listening(name)
    address = listener.getsockname()
    echoes: list[Echo] = []

    def make() -> Echo:
        echoes.append(Echo())
        return echoes[-1]

    server = await each_loop.create_server(make, sock=listener)
    assert server.sockets[0].getsockname() == address
    client = stream_socket(name)
    await connect(each_loop, client, address)
    ours = client.getsockname()
    transport, collector = await each_loop.create_connection(
        lambda: Collector(each_loop), sock=client
    )
    sent = b""
    for number in range(12):
        transport.write(piece := noise(10**number % 99_991, number))
        sent += piece
        assert await collector.received(len(sent)) == sent
    assert transport.get_extra_info("sockname") == ours
    assert transport.get_extra_info("peername") == address
    accepted = echoes[0].transport
    assert accepted.get_extra_info("sockname") == address
    assert accepted.get_extra_info("peername") == ours
    for sock in (transport.get_extra_info("socket"), accepted.get_extra_info("socket")):
        assert (sock.family, sock.type, sock.proto) == (
            listener.family,
            listener.type,
            STREAMS[name][1],
        )
        if name == "MPTCP":
            # asyncio sets it for TCP only.
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
    transport.close()
    assert await collector.lost is None
    await released(accepted)
    await close_server(server)


@each_stream
@on_loop
async def test_sock_functions_pass_a_stream(each_loop: Loop, name: str) -> None:
    data = noise(500_000)
    with listening(name) as listener, stream_socket(name) as client:
        accepting = each_loop.create_task(each_loop.sock_accept(listener))
        await turns(3)
        await connect(each_loop, client, listener.getsockname())
        server, address = await accepting
        with server:
            assert address == client.getsockname()
            sending = each_loop.create_task(each_loop.sock_sendall(client, data))
            assert await read_exactly(each_loop, server, len(data)) == data
            await sending
            assert await sockets.wait(each_loop, client, sockets.WRITE) == sockets.WRITE
            await sockets.sendmsg(each_loop, server, [b"ans", b"wer"])
            assert (await sockets.recvmsg(each_loop, client, 100))[0] == b"answer"
            client.close()
            assert await each_loop.sock_recv(server, 100) == b""


@each_stream
@on_loop
async def test_connecting_to_nobody_is_refused(each_loop: Loop, name: str) -> None:
    with listening(name) as listener:
        address = listener.getsockname()
    with stream_socket(name) as client, stream_socket(name) as plain:
        plain.setblocking(True)
        with pytest.raises(OSError, match=r".") as expected:
            plain.connect(address)
        with pytest.raises(type(expected.value)) as found:
            await connect(each_loop, client, address)
        assert found.value.errno == expected.value.errno


def impatient_vsock() -> socket.socket:
    """Return a VSOCK socket that waits for 20 ms for the peer's answer."""
    client = opened("AF_VSOCK", socket.SOCK_STREAM)
    # A VSOCK socket of Python's takes no bytes as the value of an option.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, os.dup(client.fileno())) as same:
        limit = struct.pack("@ll", 0, 20_000)
        same.setsockopt(socket.AF_VSOCK, SO_VM_SOCKETS_CONNECT_TIMEOUT, limit)
    return client


@on_loop
async def test_a_connection_is_not_made_before_the_peer_answers(each_loop: Loop) -> None:
    # While a VSOCK socket waits for the answer, its queue for sending becomes empty, which a poll
    # of the ring reports as room.
    address: Any = (VMADDR_CID_LOCAL, VSOCK_UNUSED)
    with impatient_vsock() as plain:
        plain.setblocking(True)
        # A completion that is left in this thread would interrupt the call.
        with pytest.raises(OSError, match=r"Errno") as expected:
            in_thread(lambda: plain.connect(address))
    for _ in range(5):
        with (
            impatient_vsock() as client,
            pytest.raises(OSError, match=f"Errno {expected.value.errno}"),
        ):
            await each_loop.sock_connect(client, address)


# ── packets, CAN, hashes ──────────────────────────────────────────────────────────────────


def packets_of_lo(kind: int) -> socket.socket:
    """Return a socket that gets the IPv4 packets that come through the loopback interface."""
    sock = opened("AF_PACKET", kind, socket.htons(ETH_P_IP))
    sock.bind(("lo", ETH_P_IP))
    return sock


def from_lo(proto: int) -> tuple[str, int, int, int, bytes]:
    return "lo", proto, 0, ARPHRD_LOOPBACK, bytes(6)


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_RAW])
@on_loop
async def test_a_datagram_is_seen_as_a_packet(each_loop: Loop, kind: int) -> None:
    secret = os.urandom(20)
    with packets_of_lo(kind) as packets, udp() as sender:
        sender.sendto(secret, sender.getsockname())
        data, address = b"", None
        # Other programs use the interface, too.
        while not data.endswith(secret):
            data, address = await each_loop.sock_recvfrom(packets, 100_000)
        assert address == from_lo(ETH_P_IP)
        # The headers of Ethernet, IPv4 and UDP.
        assert len(data) == (14 if kind == socket.SOCK_RAW else 0) + 20 + 8 + 20


@on_loop
async def test_an_endpoint_sends_and_receives_packets(each_loop: Loop) -> None:
    packets = opened("AF_PACKET", socket.SOCK_DGRAM, socket.htons(ETH_P_OWN))
    packets.bind(("lo", ETH_P_OWN))
    name = packets.getsockname()
    async with endpoint(each_loop, sock=packets) as (transport, mailbox):
        assert transport.get_extra_info("sockname") == name
        assert transport.get_extra_info("peername") is None
        for number in range(1, 10):
            transport.sendto(secret := os.urandom(50), ("lo", ETH_P_OWN, 0, 0, bytes(6)))
            # Another run of this test may send, too.
            await mailbox.received(number)
            await until(functools.partial(lambda wanted: wanted in mailbox.data, secret))
            assert {address for _, address in mailbox.mail} == {from_lo(ETH_P_OWN)}


@pytest.fixture
def vcan() -> Iterator[str]:
    """The name of a new virtual CAN interface."""
    opened("AF_CAN", socket.SOCK_RAW, socket.CAN_RAW).close()
    name = f"vcan{os.getpid()}"[:15]
    try:
        for command in (["add", name, "type", "vcan"], ["set", name, "up"]):
            subprocess.run(["ip", "link", *command], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"no virtual CAN interface: {getattr(exc, 'stderr', None) or exc}")
    yield name
    subprocess.run(["ip", "link", "delete", name], check=False)


@on_loop
async def test_frames_pass_on_a_can_bus(each_loop: Loop, vcan: str) -> None:
    frame = struct.pack("=IB3x8s", 0x123, 4, b"data")
    with contextlib.ExitStack() as stack:
        sender, receiver, plain = (
            stack.enter_context(opened("AF_CAN", socket.SOCK_RAW, socket.CAN_RAW)) for _ in range(3)
        )
        for sock in (sender, receiver, plain):
            sock.bind((vcan,))
        for _ in range(10):
            receiving = each_loop.create_task(each_loop.sock_recvfrom(receiver, 100))
            await turns(3)
            await each_loop.sock_sendall(sender, frame)
            # What a plain socket gets is expected of the loop.
            assert await receiving == plain.recvfrom(100)


@on_loop
async def test_the_kernel_computes_a_hash(each_loop: Loop) -> None:
    data = noise(10_000)
    with opened("AF_ALG", socket.SOCK_SEQPACKET) as algorithm:
        with skipping("sha256"):
            algorithm.bind(("hash", "sha256"))
        operation, _ = await each_loop.sock_accept(algorithm)
        with operation:
            for _ in range(3):
                await each_loop.sock_sendall(operation, data)
                assert await each_loop.sock_recv(operation, 100) == hashlib.sha256(data).digest()


# ── what asyncio refuses ──────────────────────────────────────────────────────────────────

Call = Callable[[Loop, socket.socket], Awaitable[Any]]


async def datagram_endpoint(loop: Loop, sock: socket.socket) -> None:
    async with endpoint(loop, sock=sock):
        pass


async def connection(loop: Loop, sock: socket.socket) -> None:
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=sock)
    await abort_and_wait(transport)


async def unix_connection(loop: Loop, sock: socket.socket) -> None:
    await loop.create_unix_connection(asyncio.Protocol, sock=sock)


async def accepted_connection(loop: Loop, sock: socket.socket) -> None:
    transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, sock)
    await abort_and_wait(transport)


async def server_on(loop: Loop, sock: socket.socket) -> None:
    await loop.create_server(asyncio.Protocol, sock=sock)


async def unix_server_on(loop: Loop, sock: socket.socket) -> None:
    await loop.create_unix_server(asyncio.Protocol, sock=sock)


REFUSED = [
    (datagram_endpoint, "AF_INET", socket.SOCK_STREAM, 0),
    (datagram_endpoint, "AF_UNIX", socket.SOCK_STREAM, 0),
    (datagram_endpoint, "AF_VSOCK", socket.SOCK_STREAM, 0),
    (datagram_endpoint, "AF_INET", socket.SOCK_STREAM, IPPROTO_MPTCP),
    *(
        (call, family, kind, 0)
        for call in (connection, accepted_connection, server_on)
        for family, kind in (
            ("AF_INET", socket.SOCK_DGRAM),
            ("AF_UNIX", socket.SOCK_DGRAM),
            ("AF_UNIX", socket.SOCK_SEQPACKET),
            ("AF_VSOCK", socket.SOCK_SEQPACKET),
            ("AF_NETLINK", socket.SOCK_RAW),
            ("AF_PACKET", socket.SOCK_DGRAM),
            ("AF_ALG", socket.SOCK_SEQPACKET),
        )
    ),
    *(
        (call, family, kind, 0)
        for call in (unix_connection, unix_server_on)
        for family, kind in (
            ("AF_INET", socket.SOCK_STREAM),
            ("AF_VSOCK", socket.SOCK_STREAM),
            ("AF_UNIX", socket.SOCK_DGRAM),
            ("AF_UNIX", socket.SOCK_SEQPACKET),
        )
    ),
]


# asyncio refuses some of these since 3.11.5 or before it.
MAYBE_REFUSED = [
    (datagram_endpoint, "AF_UNIX", socket.SOCK_SEQPACKET, 0),
    (datagram_endpoint, "AF_VSOCK", socket.SOCK_SEQPACKET, 0),
    (datagram_endpoint, "AF_NETLINK", socket.SOCK_RAW, 0),
    (datagram_endpoint, "AF_PACKET", socket.SOCK_RAW, 0),
    (datagram_endpoint, "AF_INET", socket.SOCK_RAW, socket.IPPROTO_ICMP),
    (accepted_connection, "AF_UNIX", socket.SOCK_STREAM, 0),
    (connection, "AF_VSOCK", socket.SOCK_STREAM, 0),
]


def outcome(
    loop_factory: LoopFactory, call: Call, family: str, kind: int, proto: int
) -> tuple[type, str]:
    """Return the class and the text of what *call* returns or raises for a new socket."""
    with opened(family, kind, proto) as sock, contextlib.closing(loop_factory()) as loop:
        name = repr(sock)
        try:
            loop.run_until_complete(asyncio.wait_for(call(loop, sock), PATIENCE))
        except (OSError, TypeError, ValueError) as exc:
            # It stays the program's, and open.
            assert sock.fileno() >= 0
            return type(exc), str(exc).replace(name, "the socket")
    return type(None), ""


@pytest.mark.parametrize(("call", "family", "kind", "proto"), [*REFUSED, *MAYBE_REFUSED])
def test_a_socket_of_the_wrong_type_is_refused_as_by_asyncio(
    call: Call, family: str, kind: int, proto: int
) -> None:
    wanted, found = (outcome(made, call, family, kind, proto) for made in FACTORIES.values())
    assert found == wanted
    if (call, family, kind, proto) in REFUSED:
        assert wanted[0] is ValueError
        assert "the socket" in wanted[1]
