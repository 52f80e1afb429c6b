"""Hostile and unlucky peers: each function tries one on a new loop, and returns what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from parity_probes import tls_contexts

from uringloop.bench.counters import rss_bytes

Factory = Callable[[], Any]
Fault = Callable[[Factory], str]

LOCALHOST = "127.0.0.1"
MB = 1 << 20


# ── what they share ──────────────────────────────────────────────────────────────────────────


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def reset(sock: socket.socket) -> None:
    """Close a connection by a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Ends:
    """How the connections of a server have ended, and what its exception handler was told."""

    def __init__(self) -> None:
        self.made = self.lost = self.errors = self.complaints = 0
        self.received = 0

    def handler(self, loop: Any, context: dict[str, Any]) -> None:
        self.complaints += 1


class Counted(asyncio.Protocol):
    """Echoes, or does what a subclass does."""

    transport: Any

    def __init__(self, ends: Ends) -> None:
        self.ends = ends

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.ends.made += 1

    def data_received(self, data: bytes) -> None:
        self.ends.received += len(data)
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.lost += 1
        self.ends.errors += exc is not None


@contextlib.contextmanager
def serving(
    factory: Factory, ends: Ends, protocol: type[Counted] = Counted, **options: Any
) -> Iterator[tuple[str, int]]:
    """Have a loop serve in a thread of its own."""
    loop = factory()
    loop.set_exception_handler(ends.handler)
    server = loop.run_until_complete(
        loop.create_server(lambda: protocol(ends), LOCALHOST, 0, **options)
    )
    address = server.sockets[0].getsockname()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.call_later, 0.05, loop.stop)
        thread.join(30)
        if thread.is_alive():
            raise TimeoutError("the loop does not stop")
        loop.close()


def wait_for(true: Callable[[], bool], seconds: float = 20) -> float:
    """Return how many milliseconds it took until something was true."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.0005)
    return (time.monotonic() - began) * 1e3


def echoes(address: tuple[str, int], data: bytes = b"well?") -> float:
    """Return how many milliseconds an echo took, with the connection for it."""
    began = time.monotonic()
    with socket.create_connection(address, timeout=20) as sock:
        sock.sendall(data)
        got = b""
        while len(got) < len(data):
            got += sock.recv(65536) or (_ for _ in ()).throw(EOFError)
    assert got == data
    return (time.monotonic() - began) * 1e3


# ── the faults ───────────────────────────────────────────────────────────────────────────────


def reset_before_accept(factory: Factory) -> str:
    """200 clients reset before they are accepted."""
    ends = Ends()
    fds = open_fds()
    with serving(factory, ends) as address:
        for _ in range(200):
            reset(socket.create_connection(address))
        took = echoes(address)
        wait_for(lambda: ends.lost == ends.made)
    return f"next echo {took:.1f} ms, {open_fds() - fds} fds left"


def reset_mid_send(factory: Factory) -> str:
    """50 peers reset while 8 MB are being sent to each."""

    class Generous(Counted):
        def data_received(self, data: bytes) -> None:
            self.transport.write(bytes(8 * MB))

    ends = Ends()
    fds = open_fds()
    with serving(factory, ends, Generous) as address:
        for _ in range(50):
            sock = socket.create_connection(address)
            sock.sendall(b"more")
            sock.recv(100_000)
            reset(sock)
        took = wait_for(lambda: ends.lost == 50)
    return f"{ends.lost} ended within {took:.0f} ms, {open_fds() - fds} fds left"


def reset_mid_receive(factory: Factory) -> str:
    """50 peers reset behind 100 KB that they have sent."""

    class Silent(Counted):
        def data_received(self, data: bytes) -> None:
            self.ends.received += len(data)

    ends = Ends()
    fds = open_fds()
    with serving(factory, ends, Silent) as address:
        for _ in range(50):
            sock = socket.create_connection(address)
            sock.sendall(bytes(100_000))
            reset(sock)
        took = wait_for(lambda: ends.lost == 50)
    return f"{ends.errors} told of the reset within {took:.0f} ms, {open_fds() - fds} fds left"


def single_bytes(factory: Factory) -> str:
    """100 KB arrive as single bytes."""
    ends = Ends()
    total = 100_000
    with serving(factory, ends) as address, socket.create_connection(address) as sock:
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
    return f"{wrong} bytes lost or wrong"


def never_reads(factory: Factory) -> str:
    """A peer that never reads, and a server that writes 200 MB with drain()."""
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
    return f"{grown / MB:.1f} MB more"


def out_of_band(factory: Factory) -> str:
    """Urgent data between other bytes."""
    ends = Ends()
    with serving(factory, ends) as address, socket.create_connection(address) as sock:
        sock.sendall(b"a" * 1000)
        sock.send(b"!", socket.MSG_OOB)
        sock.sendall(b"b" * 1000)
        wait_for(lambda: ends.received >= 2000)
        time.sleep(0.05)
        took = echoes(address)
    return f"{ends.received} bytes of 2000 in band, next echo {took:.1f} ms"


def tls_garbage(factory: Factory) -> str:
    """100 clients that send garbage instead of TLS."""
    ends = Ends()
    server, client = tls_contexts()
    fds = open_fds()
    with serving(factory, ends, ssl=server) as address:
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
    return f"next echo {took:.1f} ms, {open_fds() - fds} fds left"


def tls_truncated(factory: Factory) -> str:
    """A TLS peer hangs up in the middle of a record, 50 times."""
    ends = Ends()
    server, client = tls_contexts()
    fds = open_fds()
    with serving(factory, ends, ssl=server) as address:
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
        took = wait_for(lambda: ends.lost == ends.made == 50)
    return f"{ends.lost} ended within {took:.0f} ms, {open_fds() - fds} fds left"


def beyond_the_backlog(factory: Factory) -> str:
    """200 clients at once, a backlog of 10."""
    ends = Ends()
    with serving(factory, ends, backlog=10) as address:
        began = time.monotonic()
        socks = []
        for _ in range(200):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(address)
            socks.append(sock)
        wait_for(lambda: ends.made == 200, 60)
        took = time.monotonic() - began
        for sock in socks:
            sock.close()
        wait_for(lambda: ends.lost == 200)
    return f"all accepted in {took:.1f} s"


def beyond_the_descriptors(factory: Factory) -> str:
    """300 clients, and descriptors for 100: how long until the rest is served."""
    ends = Ends()
    # The clients are made first: they need descriptors, too.
    socks = [socket.socket() for _ in range(300)]
    for sock in socks:
        sock.setblocking(False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_fds() + 100, hard))
    with serving(factory, ends) as address:
        for sock in socks:
            sock.connect_ex(address)
        time.sleep(0.5)
        made = ends.made
        used = time.process_time()
        time.sleep(1)
        used = time.process_time() - used
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        took = wait_for(lambda: ends.made == 300)
        for sock in socks:
            sock.close()
        wait_for(lambda: ends.lost == 300)
    return (
        f"{made} served, {used * 100:.0f} % of a core while short, "
        f"{ends.complaints} complaints, all served after {took:.0f} ms"
    )


def closed_behind(factory: Factory) -> str:
    """A transport's descriptor is closed by somebody else, and its number used at once."""
    ends = Ends()
    transports: list[Any] = []

    class Kept(Counted):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transports.append(transport)

    with serving(factory, ends, Kept) as address, socket.create_connection(address) as sock:
        sock.sendall(b"hello")
        assert sock.recv(100) == b"hello"
        fd = transports[0].get_extra_info("socket").fileno()
        os.close(fd)
        # The number belongs to another connection now: the lowest that is free.
        other, far = socket.socketpair()
        assert other.detach() == fd
        far.sendall(b"not yours")
        time.sleep(0.1)
        stolen = ends.received - len(b"hello")
        took = echoes(address)
        with contextlib.suppress(OSError):
            os.close(fd)
        far.close()
    return f"{stolen} bytes taken from the other file, next echo {took:.1f} ms"


def many_connections(factory: Factory) -> str:
    """50,000 connections, one after the other, each with an echo."""
    ends = Ends()
    with serving(factory, ends) as address:
        for _ in range(500):
            echoes(address)
        gc.collect()
        before, fds = rss_bytes(os.getpid()), open_fds()
        began = time.monotonic()
        for _ in range(50_000):
            sock = socket.create_connection(address)
            sock.send(b"x")
            assert sock.recv(10) == b"x"
            reset(sock)
        took = time.monotonic() - began
        wait_for(lambda: ends.lost == ends.made)
        gc.collect()
        grown, left = (rss_bytes(os.getpid()) - before) // 1024, open_fds() - fds
    return f"{took:.0f} s, {grown} KB more, {left} fds left"


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
    many_connections,
)
