"""A server that balances its cores by itself: `python examples/balancer.py`, `nc localhost 7000`.

One loop for each core. The first accepts all connections and gives each to the loop with the
fewest: for connections that last long. SO_REUSEPORT (many_threads.py) distributes less evenly.
"""

import argparse
import asyncio
import contextlib
import functools
import socket
import threading

import uringloop


class Worker:
    """The connections of one thread. Each counter is written by one thread only."""

    def __init__(self, loop: uringloop.Loop) -> None:
        self.loop = loop
        self.given = 0  # by the thread that accepts
        self.ended = 0  # by this thread
        self.open: set[asyncio.Transport] = set()


class Line(asyncio.Protocol):
    """Greets with the name of its thread, and sends back what it receives."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.worker.open.add(transport)
        transport.write(f"{threading.current_thread().name}\n".encode())

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.worker.open.discard(self.transport)
        self.worker.ended += 1


async def accept(loop: uringloop.Loop, listener: socket.socket, workers: list[Worker]) -> None:
    while True:
        sock, _ = await loop.sock_accept(listener)
        worker = min(workers, key=lambda one: one.given - one.ended)
        worker.given += 1
        try:
            worker.loop.adopt(sock, functools.partial(Line, worker))
        except RuntimeError:
            sock.close()  # The program ends, and that loop is closed already.


async def main(listener: socket.socket, workers: list[Worker]) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, uringloop.Loop)
    worker = Worker(loop)
    workers.append(worker)
    try:
        await (accept(loop, listener, workers) if workers[0] is worker else asyncio.Event().wait())
    finally:
        for transport in worker.open:
            transport.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=7000)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", options.port), backlog=1024) as sock:
        sock.setblocking(False)
        print("listening on {}:{}".format(*sock.getsockname()), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            uringloop.run_threads(functools.partial(main, sock, []), options.threads)
