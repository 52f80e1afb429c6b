"""A DNS forwarder: `python examples/dns_forwarder.py`, `dig @127.0.0.1 -p 5353 python.org`.

Each query is forwarded under an id of its own, by which its answer is matched; no cache.
"""

import argparse
import asyncio
import contextlib
import secrets
from typing import Any

import uringloop

SECONDS_MAX, WAITING_MAX, HEADER_BYTES = 5.0, 10_000, 12


class Upstream(asyncio.DatagramProtocol):
    """Sends queries to the server, and resolves the futures that wait for its answers."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, asyncio.Future[bytes]] = {}

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        waiting = self.waiting.pop(data[:2], None)
        if waiting is not None and not waiting.done():
            waiting.set_result(data)

    async def ask(self, query: bytes) -> bytes:
        while (number := secrets.token_bytes(2)) in self.waiting:
            pass
        answer = self.waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self.transport.sendto(number + query[2:])
            return query[:2] + bytes(await asyncio.wait_for(answer, SECONDS_MAX))[2:]
        finally:
            self.waiting.pop(number, None)


class Forwarder(asyncio.DatagramProtocol):
    """Receives queries; each is forwarded in a task."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        if len(data) >= HEADER_BYTES and len(self.upstream.waiting) < WAITING_MAX:
            task = asyncio.ensure_future(self.forward(data, address))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def forward(self, query: bytes, address: Any) -> None:
        with contextlib.suppress(TimeoutError):  # The client will retry.
            self.transport.sendto(await self.upstream.ask(query), address)


async def main(port: int, upstream: tuple[str, int]) -> None:
    loop = asyncio.get_running_loop()
    _, asking = await loop.create_datagram_endpoint(Upstream, remote_addr=upstream)
    local = ("127.0.0.1", port)
    transport, _ = await loop.create_datagram_endpoint(lambda: Forwarder(asking), local_addr=local)
    print("listening on {}:{}".format(*transport.get_extra_info("sockname")), flush=True)
    await loop.create_future()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=5353)
    parser.add_argument("--upstream", default="9.9.9.9:53", help="ADDRESS:PORT")
    options = parser.parse_args()
    host, _, number = options.upstream.rpartition(":")
    with contextlib.suppress(KeyboardInterrupt):
        uringloop.run(main(options.port, (host, int(number))))
