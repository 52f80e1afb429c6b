"""A program that uses a loop from end to end, for a package that is the core alone (test_core.py).

The argument is a ring, "io_uring" or "soft". The program needs Python, the package and the test
certificates.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import sys
import tempfile
from pathlib import Path

import uringloop

CERTIFICATES = Path(__file__).parents[1] / "certificates"
# More than a socket's buffer holds, so that both sides wait for each other.
MESSAGE = bytes(range(256)) * 4096
# A loop that hangs ends the program after so many seconds.
PATIENCE_S = 30


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a message to an echo server, and check the answer."""
    writer.write(MESSAGE)
    assert await reader.readexactly(len(MESSAGE)) == MESSAGE
    writer.close()
    await writer.wait_closed()


async def echo_by_tcp() -> None:
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        await ask(*await asyncio.open_connection(*server.sockets[0].getsockname()))


async def echo_by_tls() -> None:
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(CERTIFICATES / "server.pem")
    theirs = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=ours) as server:
        host, port = server.sockets[0].getsockname()
        connection = asyncio.open_connection(host, port, ssl=theirs, server_hostname="localhost")
        await ask(*await connection)


async def echo_by_unix_socket(folder: Path) -> None:
    path = str(folder / "socket")
    async with await asyncio.start_unix_server(serve, path):
        await ask(*await asyncio.open_unix_connection(path))


class Answering(asyncio.DatagramProtocol):
    transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.transport.sendto(data, addr)


async def echo_by_udp() -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Answering, ("127.0.0.1", 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, transport.get_extra_info("sockname"))
        await loop.sock_sendall(sock, b"datagram")
        assert await loop.sock_recv(sock, 100) == b"datagram"
    transport.close()


async def send_file(folder: Path) -> None:
    path = folder / "file"
    path.write_bytes(MESSAGE)
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    with left, right, path.open("rb") as file:
        left.setblocking(False)
        _, writer = await asyncio.open_connection(sock=right)
        sending = asyncio.ensure_future(loop.sendfile(writer.transport, file))
        received = b""
        while len(received) < len(MESSAGE):
            received += await loop.sock_recv(left, 1 << 20)
        assert (received, await sending) == (MESSAGE, len(MESSAGE))
        writer.close()
        await writer.wait_closed()


async def run_child() -> None:
    child = await asyncio.create_subprocess_exec(
        "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await child.communicate(MESSAGE)
    assert (output, child.returncode) == (MESSAGE, 0)


async def schedule() -> None:
    loop = asyncio.get_running_loop()
    called: list[str] = []
    loop.call_later(0.002, called.append, "timer")
    loop.call_soon(called.append, "soon")
    loop.call_soon_threadsafe(called.append, "thread")
    await asyncio.sleep(0.005)
    assert called == ["soon", "thread", "timer"]
    assert await asyncio.to_thread(len, MESSAGE) == len(MESSAGE)
    arrived = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, arrived.set)
    signal.raise_signal(signal.SIGUSR1)
    await arrived.wait()
    loop.remove_signal_handler(signal.SIGUSR1)


async def watch() -> None:
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    with left, right:
        readable = asyncio.Event()
        loop.add_reader(left, readable.set)
        right.send(b"x")
        await readable.wait()
        loop.remove_reader(left)


async def main(folder: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await echo_by_tcp()
        await echo_by_tls()
        await echo_by_unix_socket(folder)
        await echo_by_udp()
        await send_file(folder)
        await run_child()
        await schedule()
        await watch()
        assert await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80)


if __name__ == "__main__":
    loop = uringloop.Loop(backend=sys.argv[1])  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as made, asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(Path(made)))
        assert loop.stats()["turns"] > 0
        assert loop.backend == sys.argv[1]
