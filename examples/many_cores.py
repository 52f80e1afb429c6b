"""A server on every core: `python examples/many_cores.py`, `curl http://127.0.0.1:8000/`.

One process with one loop for each core; the kernel distributes the connections (SO_REUSEPORT). A
process that dies is replaced. `uvicorn --workers 4 --loop uringloop:new_event_loop` does the same.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import signal

import uringloop

RESTART_SECONDS = 1.0


class Hello(asyncio.Protocol):
    """Answers each request head; minimal HTTP, sufficient for benchmarks."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.kept = b""

    def data_received(self, data: bytes) -> None:
        *requests, self.kept = (self.kept + data).split(b"\r\n\r\n")
        body = b"process %d\n" % os.getpid()
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        self.transport.write(answer * len(requests))


def serve(host: str, port: int) -> None:
    """Serve in this process until SIGTERM."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Hello, host, port, reuse_port=True, backlog=1024)
        end = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, end.set)
        loop.add_signal_handler(signal.SIGINT, end.set)
        print(f"process {os.getpid()} listening on {host}:{port}", flush=True)
        async with server:
            await end.wait()

    uringloop.run(main())


async def supervise(host: str, port: int, count: int) -> None:
    """Keep *count* processes running until this process ends."""
    # New interpreters instead of forks: a loop does not survive a fork.
    context = multiprocessing.get_context("spawn")

    async def keep_one() -> None:
        while True:
            process = context.Process(target=serve, args=(host, port))
            process.start()
            try:
                await asyncio.to_thread(process.join)
            finally:
                process.terminate()
            await asyncio.sleep(RESTART_SECONDS)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(keep_one())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uringloop.run(supervise(options.host, options.port, options.processes))
