"""A server on every core, in one process: `python examples/many_threads.py`.

Then `curl http://127.0.0.1:8000/`. One thread with one loop for each core; the kernel distributes
the connections (SO_REUSEPORT). Threads use many cores on a free-threaded Python. On others, and to
replace what dies, see many_cores.py.
"""

import argparse
import asyncio
import contextlib
import functools
import threading

import uringloop


class Hello(asyncio.Protocol):
    """Answers each request head; minimal HTTP, sufficient for benchmarks."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.kept = b""

    def data_received(self, data: bytes) -> None:
        *requests, self.kept = (self.kept + data).split(b"\r\n\r\n")
        body = f"{threading.current_thread().name}\n".encode()
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        self.transport.write(answer * len(requests))


async def main(host: str, port: int) -> None:
    """Serve in this thread until run_threads() cancels it: at Ctrl-C, SIGTERM or a failure."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Hello, host, port, reuse_port=True, backlog=1024)
    assert isinstance(server, uringloop.Server)
    print(f"{threading.current_thread().name} listening on {host}:{port}", flush=True)
    async with server:
        try:
            await asyncio.Event().wait()
        finally:
            server.close_clients()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uringloop.run_threads(functools.partial(main, options.host, options.port), options.threads)
