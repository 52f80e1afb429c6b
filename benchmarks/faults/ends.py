"""Faults: a process with a loop exits, is killed, or calls exec(); each function is a fault."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

from .common import LOCALHOST, Factory, Fault, judged

CLIENTS = 20

SERVER = """
import asyncio, os, signal, sys
from uringloop.bench import loops
loop = loops.load({loop!r})()
class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)
async def main():
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop.add_signal_handler(signal.SIGUSR1, os.execv, "/bin/sleep", ["sleep", "30"])
    await server.serve_forever()
loop.run_until_complete(main())
"""


def exit_with_everything_open(factory: Factory) -> str:
    """The interpreter exits with open connections, timers and tasks."""
    script = f"""
import asyncio
from uringloop.bench import loops
loop = loops.load({os.environ["FAULTS_LOOP"]!r})()
asyncio.set_event_loop(loop)
async def main():
    global kept
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    client = await asyncio.open_connection(*server.sockets[0].getsockname())
    client[1].write(bytes(1000000))
    loop.call_later(1000, print)
    kept = server, client, asyncio.ensure_future(client[0].read())
    await asyncio.sleep(0.01)
loop.run_until_complete(main())
"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    took = (time.monotonic() - began) * 1e3
    return f"{judged(done.returncode == 0, f'status {done.returncode}')}, {took:.0f} ms"


def _end_of_a_server(end: int) -> str:
    """Send the signal *end* to a busy server; report its clients' disconnects and its port."""
    script = SERVER.format(loop=os.environ["FAULTS_LOOP"])
    server = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert server.stdout is not None
    address = (LOCALHOST, int(server.stdout.readline()))
    disconnected: list[None] = []

    def use() -> None:
        with socket.create_connection(address, timeout=10) as sock:
            with contextlib.suppress(ConnectionError):
                while True:
                    sock.sendall(bytes(10_000))
                    if not sock.recv(65536):
                        break
            # Not a count: without a GIL one thread's `+= 1` may undo another's.
            disconnected.append(None)

    clients = [threading.Thread(target=use) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    time.sleep(0.3)
    began = time.monotonic()
    server.send_signal(end)
    for client in clients:
        client.join(15)
    took = (time.monotonic() - began) * 1e3
    is_free = False
    while not is_free and time.monotonic() - began < 10:
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen()
            is_free = True
    freed = (time.monotonic() - began) * 1e3
    server.kill()
    server.wait()
    outcome = judged(
        len(disconnected) == CLIENTS,
        f"{len(disconnected)} of {CLIENTS} clients disconnected within {took:.0f} ms",
    )
    return f"{outcome}, {judged(is_free, f'port free after {freed:.0f} ms')}"


def killed_while_busy(factory: Factory) -> str:
    """SIGKILL to a server with 20 busy clients."""
    return _end_of_a_server(signal.SIGKILL)


def becomes_another_program(factory: Factory) -> str:
    """`exec()` in a callback of a server with 20 busy clients."""
    return _end_of_a_server(signal.SIGUSR1)


FAULTS: tuple[Fault, ...] = (
    exit_with_everything_open,
    killed_while_busy,
    becomes_another_program,
)
