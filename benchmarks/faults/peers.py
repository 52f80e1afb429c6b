"""Faults of peers, connections and descriptors; each function runs one on a new loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from parity.probes import tls_contexts

from uringloop.bench.counters import rss_bytes

from .common import (
    LOCALHOST,
    MB,
    Counted,
    Counts,
    Factory,
    Fault,
    echoes,
    fds_left,
    judged,
    open_fds,
    reset,
    serving,
    wait_for,
)


def reset_before_accept(factory: Factory) -> str:
    """200 clients reset their connections before the server accepts them."""
    counts = Counts()
    fds = open_fds()
    with serving(factory, counts) as address:
        for _ in range(200):
            reset(socket.create_connection(address))
        took = echoes(address)
        wait_for(lambda: counts.lost == counts.made)
    return f"next echo {took:.1f} ms, {fds_left(fds)}"


def reset_mid_send(factory: Factory) -> str:
    """50 peers reset their connections while the server sends 8 MB to each."""

    class Generous(Counted):
        def data_received(self, data: bytes) -> None:
            self.transport.write(bytes(8 * MB))

    counts = Counts()
    fds = open_fds()
    with serving(factory, counts, Generous) as address:
        for _ in range(50):
            sock = socket.create_connection(address)
            sock.sendall(b"more")
            sock.recv(100_000)
            reset(sock)
        took = wait_for(lambda: counts.lost == 50)
    return f"{counts.lost} ended within {took:.0f} ms, {fds_left(fds)}"


def reset_mid_receive(factory: Factory) -> str:
    """50 peers send 100 KB each, and then reset their connections."""

    class Silent(Counted):
        def data_received(self, data: bytes) -> None:
            self.counts.received += len(data)

    counts = Counts()
    fds = open_fds()
    with serving(factory, counts, Silent) as address:
        for _ in range(50):
            sock = socket.create_connection(address)
            sock.sendall(bytes(100_000))
            reset(sock)
        took = wait_for(lambda: counts.lost == 50)
    outcome = judged(counts.errors == 50, f"{counts.errors} ended with an exception")
    return f"{outcome} within {took:.0f} ms, {fds_left(fds)}"


def single_bytes(factory: Factory) -> str:
    """100 KB received as single bytes."""
    counts = Counts()
    total = 100_000
    with serving(factory, counts) as address, socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = os.urandom(total)
        got = bytearray()

        def read() -> None:
            while len(got) < total:
                got.extend(sock.recv(65536))

        reader = threading.Thread(target=read)
        reader.start()
        used = time.process_time()
        for index in range(total):
            sock.send(data[index : index + 1])
        reader.join(60)
        used = time.process_time() - used
    wrong = sum(a != b for a, b in zip(data, got, strict=False)) + total - len(got)
    return judged(wrong == 0, f"{wrong} bytes lost or wrong")


def never_reads(factory: Factory) -> str:
    """A peer never reads while the server writes 200 MB with `drain()`: growth of the server's
    memory.
    """
    loop = factory()
    grown = 0

    async def main() -> None:
        nonlocal grown

        async def serve(reader: Any, writer: Any) -> None:
            with contextlib.suppress(ConnectionError):
                for _ in range(200):
                    writer.write(bytes(MB))
                    await writer.drain()

        server = await asyncio.start_server(serve, LOCALHOST, 0)
        before = rss_bytes(os.getpid())
        with socket.create_connection(server.sockets[0].getsockname()):
            await asyncio.sleep(1)
            grown = rss_bytes(os.getpid()) - before
        server.close()

    loop.run_until_complete(main())
    return judged(grown < 20 * MB, f"{grown / MB:.1f} MB")


def out_of_band(factory: Factory) -> str:
    """Urgent data between other bytes."""
    counts = Counts()
    with serving(factory, counts) as address, socket.create_connection(address) as sock:
        sock.sendall(b"a" * 1000)
        sock.send(b"!", socket.MSG_OOB)
        sock.sendall(b"b" * 1000)
        wait_for(lambda: counts.received >= 2000)
        time.sleep(0.05)
        outcome = judged(counts.received == 2000, f"{counts.received} bytes of 2000 in band")
        return f"{outcome}, next echo {echoes(address):.1f} ms"


def tls_garbage(factory: Factory) -> str:
    """Garbage instead of TLS from 100 clients."""
    counts = Counts()
    server, client = tls_contexts()
    fds = open_fds()
    with serving(factory, counts, ssl=server) as address:
        for _ in range(100):
            with socket.create_connection(address) as sock:
                sock.sendall(os.urandom(500))
        began = time.monotonic()
        with (
            socket.create_connection(address, timeout=20) as sock,
            client.wrap_socket(sock, server_hostname="localhost") as secured,
        ):
            secured.sendall(b"well?")
            assert secured.recv(100) == b"well?"
        took = (time.monotonic() - began) * 1e3
        time.sleep(0.1)
    return f"next echo {took:.1f} ms, {fds_left(fds)}"


def tls_truncated(factory: Factory) -> str:
    """Disconnects of 50 TLS peers in the middle of a record."""
    counts = Counts()
    server, client = tls_contexts()
    fds = open_fds()
    with serving(factory, counts, ssl=server) as address:
        for _ in range(50):
            sock = socket.create_connection(address)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            secured = client.wrap_bio(incoming, outgoing, server_hostname="localhost")
            while True:
                try:
                    secured.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    sock.sendall(outgoing.read())
                    incoming.write(sock.recv(65536))
            sock.sendall(outgoing.read())
            secured.write(bytes(10_000))
            sock.sendall(outgoing.read()[:5000])
            sock.close()
        took = wait_for(lambda: counts.lost == counts.made == 50)
    return f"{counts.lost} ended within {took:.0f} ms, {fds_left(fds)}"


def send_a_byte(silent: list[socket.socket]) -> None:
    """Send a byte over each socket that is connected by now, and remove it from the list.

    With SYN cookies, a server whose backlog was full has no state of a connection until the client
    sends data.
    """
    for sock in list(silent):
        with contextlib.suppress(BlockingIOError):
            sock.send(b"x")
            silent.remove(sock)


def all_made(counts: Counts, silent: list[socket.socket], count: int) -> bool:
    send_a_byte(silent)
    return counts.made == count


def beyond_the_backlog(factory: Factory) -> str:
    """200 clients connect at once to a socket with a backlog of 10, so the kernel makes some of
    them retry: clients accepted within 3 s.
    """
    counts = Counts()
    with serving(factory, counts, backlog=10) as address:
        socks = []
        for _ in range(200):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(address)
            socks.append(sock)
        silent = list(socks)
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: all_made(counts, silent, 200), 3)
        accepted, took = counts.made, echoes(address)
        for sock in socks:
            sock.close()
        wait_for(lambda: counts.lost == counts.made)
    return f"{judged(accepted > 10, f'{accepted} accepted')}, next echo {took:.1f} ms"


def beyond_the_descriptors(factory: Factory) -> str:
    """300 clients connect to a server that has descriptors for 100, and later for all."""
    counts = Counts()
    # Create the clients' sockets before the limit is set: they need descriptors, too.
    socks = [socket.socket() for _ in range(300)]
    for sock in socks:
        sock.setblocking(False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_fds() + 100, hard))
    with serving(factory, counts) as address:
        for sock in socks:
            sock.connect_ex(address)
        silent = list(socks)
        time.sleep(0.5)
        send_a_byte(silent)
        made = counts.made
        used = time.process_time()
        time.sleep(1)
        used = time.process_time() - used
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        took = wait_for(lambda: all_made(counts, silent, 300))
        for sock in socks:
            sock.close()
        wait_for(lambda: counts.lost == 300)
    spun = judged(used < 0.2, f"{used * 100:.0f} % of a core meanwhile")
    reported = judged(counts.reported < 20, f"{counts.reported} errors")
    return f"{made} served, {spun}, {reported}, all served after {took:.0f} ms"


def closed_behind(factory: Factory) -> str:
    """Other code closes a transport's descriptor, and the number is reused at once."""
    counts = Counts()
    transports: list[Any] = []

    class Kept(Counted):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transports.append(transport)

    with serving(factory, counts, Kept) as address, socket.create_connection(address) as sock:
        sock.sendall(b"hello")
        assert sock.recv(100) == b"hello"
        fd = transports[0].get_extra_info("socket").fileno()
        os.close(fd)
        # The kernel gives the lowest free number to the next file: another socket.
        other, far = socket.socketpair()
        assert other.detach() == fd
        far.sendall(b"not yours")
        time.sleep(0.1)
        stolen = counts.received - len(b"hello")
        took = echoes(address)
        with contextlib.suppress(OSError):
            os.close(fd)
        far.close()
    outcome = judged(stolen == 0, f"{stolen} bytes taken from the other file")
    return f"{outcome}, next echo {took:.1f} ms"


def closed_while_watched(factory: Factory) -> str:
    """A descriptor watched by `add_reader` is closed, and another readable file reuses the
    number.
    """
    loop = factory()
    calls = 0

    def readable() -> None:
        nonlocal calls
        calls += 1

    async def main() -> float:
        ours, theirs = socket.socketpair()
        loop.add_reader(ours.fileno(), readable)
        await asyncio.sleep(0.01)
        fd = ours.detach()
        os.close(fd)
        # The socket pair below gets the lowest free numbers, *fd* among them.
        theirs.close()
        other, far = socket.socketpair()
        assert fd in (other.fileno(), far.fileno())
        other.send(b"x")
        far.send(b"x")
        began = time.process_time()
        await asyncio.sleep(0.2)
        spun = (time.process_time() - began) / 0.2
        other.close()
        far.close()
        loop.remove_reader(fd)
        return spun

    spun = loop.run_until_complete(main())
    loop.close()
    outcome = judged(calls == 0, f"{calls} calls for the other file")
    return f"{outcome}, {judged(spun < 0.2, f'{spun:.0%} of a core')}".replace("%", " %")


def bound_again(factory: Factory) -> str:
    """A listening socket is watched, removed, closed and bound again in one turn, 100 times."""
    loop = factory()
    bound = 0

    async def main() -> None:
        nonlocal bound
        for _ in range(100):
            listener = socket.create_server((LOCALHOST, 0))
            address = listener.getsockname()
            loop.add_reader(listener, print)
            await asyncio.sleep(0)
            loop.remove_reader(listener)
            listener.close()
            with contextlib.suppress(OSError), socket.socket() as again:
                again.bind(address)
                bound += 1

    loop.run_until_complete(main())
    loop.close()
    return judged(bound == 100, f"bound {bound} of 100 times")


def settle(counts: Counts) -> None:
    """Wait until the server's connections have ended, and their descriptors are closed."""
    wait_for(lambda: counts.lost == counts.made)
    # A descriptor may be closed a turn after connection_lost().
    time.sleep(0.05)


def many_connections(factory: Factory) -> str:
    """50,000 connections are made one after the other, each with an echo: time, and growth of
    memory.
    """
    counts = Counts()
    with serving(factory, counts) as address:
        for _ in range(500):
            echoes(address)
        settle(counts)
        gc.collect()
        before, fds = rss_bytes(os.getpid()), open_fds()
        began = time.monotonic()
        for _ in range(50_000):
            sock = socket.create_connection(address)
            sock.send(b"x")
            assert sock.recv(10) == b"x"
            reset(sock)
        took = time.monotonic() - began
        settle(counts)
        gc.collect()
        grown = (rss_bytes(os.getpid()) - before) // 1024
        return f"{took:.0f} s, {judged(grown < 4096, f'grows by {grown} KiB')}, {fds_left(fds)}"


class Datagrams(asyncio.DatagramProtocol):
    """Counts datagrams, and echoes those that are not empty."""

    def __init__(self) -> None:
        self.empty = self.full = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        if data:
            self.full += 1
            self.transport.sendto(data, address)
        else:
            self.empty += 1


def _beside_datagrams(factory: Factory, trouble: Callable[[Any, Any], None]) -> Datagrams:
    """Call *trouble* 200 times after each of two echoes of an endpoint, then echo once more."""
    loop: asyncio.AbstractEventLoop = factory()
    socks = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for sock in socks:
        sock.bind((LOCALHOST, 0))
        sock.settimeout(5)
    peer, gone = socks
    nobody = gone.getsockname()
    gone.close()

    async def main() -> Datagrams:
        transport, protocol = await loop.create_datagram_endpoint(
            Datagrams, local_addr=(LOCALHOST, 0)
        )
        address = transport.get_extra_info("sockname")
        for _ in range(2):
            peer.sendto(b"well?", address)
            assert await loop.run_in_executor(None, peer.recv, 100) == b"well?"
            for _ in range(200):
                trouble(
                    lambda: transport.sendto(b"is there anybody?", nobody),
                    lambda: peer.sendto(b"", address),
                )
                await asyncio.sleep(0)
        peer.sendto(b"the last", address)
        assert await loop.run_in_executor(None, peer.recv, 100) == b"the last"
        transport.close()
        assert isinstance(protocol, Datagrams)
        return protocol

    with peer:
        return loop.run_until_complete(main())


def datagrams_to_nobody(factory: Factory) -> str:
    """400 datagrams are sent to an unused port between echoes."""
    found = _beside_datagrams(factory, lambda send, receive: send())
    return judged(found.full == 3, f"{found.full} of 3 echoes")


def empty_datagrams(factory: Factory) -> str:
    """400 empty datagrams arrive between echoes."""
    found = _beside_datagrams(factory, lambda send, receive: receive())
    return judged(
        (found.empty, found.full) == (400, 3), f"{found.empty} received, {found.full} of 3 echoes"
    )


FAULTS: tuple[Fault, ...] = (
    reset_before_accept,
    reset_mid_send,
    reset_mid_receive,
    single_bytes,
    never_reads,
    out_of_band,
    tls_garbage,
    tls_truncated,
    beyond_the_backlog,
    beyond_the_descriptors,
    closed_behind,
    closed_while_watched,
    bound_again,
    many_connections,
    datagrams_to_nobody,
    empty_datagrams,
)
