"""Gives connections to another process: `python examples/hand_over.py`, `nc localhost 7000`.

The loop reads the first line of a connection. Blocking code in another process gets the socket and
the bytes that have arrived, and serves the rest. `--loop asyncio` does the same on another loop.
"""

import argparse
import asyncio
import contextlib
import importlib
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def detach(transport: asyncio.WriteTransport) -> tuple[socket.socket, bytes]:
    """Return a socket of the connection, and the bytes that its reader has not got yet."""
    method: Callable[[], tuple[socket.socket, bytes]] | None = getattr(transport, "detach", None)
    if method is not None:
        return method()
    # asyncio and uvloop receive nothing ahead of the reader.
    sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
    transport.abort()
    return sock, b""


async def main(port: int, channel: socket.socket, sender: ThreadPoolExecutor) -> None:
    async def hand_over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The client may be gone, and its line may be too long.
        with contextlib.closing(writer), contextlib.suppress(OSError, RuntimeError, ValueError):
            line = await reader.readline()
            sock, data = detach(writer.transport)
            # The transport has ended, so read() returns what is left in the reader's buffer.
            sender.submit(send, channel, sock, line + await reader.read() + data)

    server = await asyncio.start_server(hand_over, "127.0.0.1", port)
    print("listening on {}:{}".format(*server.sockets[0].getsockname()), flush=True)
    await server.serve_forever()


def send(channel: socket.socket, sock: socket.socket, data: bytes) -> None:
    with sock:
        socket.send_fds(channel, [b"%8d" % len(data)], [sock.fileno()])
    channel.sendall(data)


def serve_all(channel: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the loop, and this with it.
    while (received := socket.recv_fds(channel, 8, 1))[1]:
        size, fds, _, _ = received
        data = channel.recv(int(size), socket.MSG_WAITALL)
        threading.Thread(target=serve, args=(socket.socket(fileno=fds[0]), data)).start()


def serve(sock: socket.socket, data: bytes) -> None:
    sock.setblocking(True)
    with sock, contextlib.suppress(ConnectionError):
        sock.sendall(b"process %d\n" % os.getpid())
        while data:
            sock.sendall(data.upper())
            data = sock.recv(65536)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=7000)
    parser.add_argument("--loop", default="uringloop", help="asyncio, uringloop or uvloop")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.suppress(KeyboardInterrupt):
        context.Process(target=serve_all, args=(theirs,), daemon=True).start()
        runner = asyncio.Runner(loop_factory=importlib.import_module(options.loop).new_event_loop)
        with runner, ThreadPoolExecutor(1) as sender:
            runner.run(main(options.port, ours, sender))
