"""The measured process: `python -m uringloop.bench.server --loop NAME --mode MODE`.

It listens, prints one line of JSON when it is ready (or the reason if it cannot start), and serves
until SIGTERM, or until the process that started it ends.
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
from collections.abc import Mapping

from . import loops, process
from .echo import SERVERS, Serve
from .settings import HOST, refusal_of


def _say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def listen(path: str | None, port: int) -> socket.socket:
    """Return a non-blocking socket that listens on *path*, or on *port* of the loopback address."""
    sock = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    try:
        if path:
            sock.bind(path)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((HOST, port))
        # If the other socket has SO_REUSEADDR as well, only listen() fails with EADDRINUSE.
        sock.listen()
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


async def serve(start: Serve, listener: socket.socket) -> None:
    """Serve until SIGTERM, then cancel the remaining tasks."""
    loop = asyncio.get_running_loop()
    stopped = loop.create_future()
    # Without a handler SIGTERM ends the process at once, which is fine for the benchmark.
    with contextlib.suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGTERM, stopped.set_result, None)
    # Read before the socket is handed over: some loops detach the descriptor from the object.
    port = listener.getsockname()[1] if listener.family == socket.AF_INET else 0
    await start(listener)
    _say(pid=os.getpid(), port=port)
    await stopped
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def run(name: str, start: Serve, listener: socket.socket) -> None:
    """Create the loop and serve on it."""
    loop = loops.load(name)()
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve(start, listener))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _arguments(argv: list[str] | None, servers: Mapping[str, Serve]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m uringloop.bench.server", description=__doc__)
    parser.add_argument("--loop", required=True, help="a known loop, or module:factory")
    parser.add_argument("--mode", choices=list(servers), default="protocol")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--path", help="listen on this UNIX socket instead")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None, servers: Mapping[str, Serve] = SERVERS) -> int:
    """Serve; the exit status is 0 after SIGTERM and 1 after a line of JSON with `error`."""
    arguments = _arguments(argv, servers)
    process.end_with_parent()
    process.raise_descriptor_limit()
    try:
        listener = listen(arguments.path, arguments.port)
    except OSError as exc:
        status = "address in use" if exc.errno == errno.EADDRINUSE else "failed"
        _say(error=os.strerror(exc.errno or 0), kind=status)
        return 1
    with listener:
        try:
            run(arguments.loop, servers[arguments.mode], listener)
        except Exception as exc:
            _say(**refusal_of(exc).json())
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
