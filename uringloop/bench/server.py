"""The measured process: `python -m uringloop.bench.server --loop NAME --mode MODE`.

Listens, prints one line of JSON when it is ready (or the reason if it cannot start), and serves
until SIGTERM or until the process that started it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import sys

from . import loops, process
from .settings import HOST, explain
from .workloads import DATAGRAMS, SERVERS


def _say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def listen(path: str | None, port: int, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Return a non-blocking socket bound to *path*, or to *port* of the loopback address."""
    sock = socket.socket(socket.AF_UNIX if path else socket.AF_INET, kind)
    try:
        if path:
            sock.bind(path)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((HOST, port))
        # If the other socket has SO_REUSEADDR as well, only listen() fails with EADDRINUSE.
        if kind == socket.SOCK_STREAM:
            sock.listen()
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


async def serve(mode: str, listener: socket.socket) -> None:
    """Serve until SIGTERM, then cancel the remaining tasks."""
    loop = asyncio.get_running_loop()
    stopped = loop.create_future()
    # Without a handler SIGTERM ends the process at once, which is fine for the benchmark.
    with contextlib.suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGTERM, stopped.set_result, None)
    # Read before the socket is handed over: some loops detach the descriptor from the object.
    name, family = listener.getsockname(), listener.family
    await SERVERS[mode](listener)
    if family == socket.AF_UNIX:
        _say(pid=os.getpid(), path=name)
    else:
        _say(pid=os.getpid(), host=name[0], port=name[1])
    await stopped
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def run(name: str, mode: str, listener: socket.socket) -> None:
    """Create the loop and serve on it."""
    loop = loops.load(name)()
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve(mode, listener))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m uringloop.bench.server", description=__doc__)
    parser.add_argument("--loop", required=True, help="a known loop, or module:factory")
    parser.add_argument("--mode", choices=list(SERVERS), default="protocol")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--path", help="listen on this UNIX socket instead")
    parser.add_argument("--warm-allocator", action="store_true", help="free one large block first")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Serve; the exit status is 0 after SIGTERM and 1 after a line of JSON with `error`."""
    arguments = _arguments(argv)
    process.end_with_parent()
    process.raise_descriptor_limit()
    if arguments.warm_allocator:
        process.warm_allocator()
    try:
        kind = socket.SOCK_DGRAM if arguments.mode in DATAGRAMS else socket.SOCK_STREAM
        listener = listen(arguments.path, arguments.port, kind)
    except OSError as exc:
        status = "address in use" if exc.errno == errno.EADDRINUSE else "failed"
        _say(error=os.strerror(exc.errno or 0), kind=status)
        return 1
    with listener:
        try:
            run(arguments.loop, arguments.mode, listener)
        except Exception as exc:
            _say(**explain(exc))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
