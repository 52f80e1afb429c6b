"""The cost of messages, segments and limits of servers: `python benchmarks/sockets.py [PART ...]`.

messages: processor time of an echo of 64 bytes with datagram endpoints and with sock_recvmsg(),
    with and without the ECN bits of each datagram, 16 datagrams at a time.
segments: the sender's processor time for each of forty datagrams of 1,400 bytes by sendto(), by
    send_segments(), and with UDP_SEGMENT set on the socket.
limit: requests per second and the largest number of connections under wrk with 1,000 clients, of
    a server with max_connections=100 and of one with asyncio.Semaphore(100) in the handler, for
    a handler that sleeps and one that does not.

The alternatives take turns. The server has one processor of its own, and the clients have another.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import uringloop
from uringloop.bench.settings import HOST

UDP_SEGMENT, UDP_GRO = 103, 104
ECN = (socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", 1))
AT_ONCE = 16
SLOT_S = 0.08
ROUNDS = 60
PIECES, PIECE_BYTES, SENDS = 40, 1400, 50
LIMIT = 100
CLIENTS = 1000
WRK_S = 4
LIMIT_ROUNDS = 5
# The seconds that a handler sleeps.
SLEEPS = (0.0, 0.005, 0.05)


# ── messages ─────────────────────────────────────────────────────────────────────────────────


class Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.transport.sendto(data, addr)


class Received(Datagrams):
    def message_received(self, data: bytes, ancdata: list[Any], flags: int, addr: Any) -> None:
        self.transport.sendto(data, addr)


class Messages(Datagrams):
    def message_received(self, data: bytes, ancdata: list[Any], flags: int, addr: Any) -> None:
        self.transport.sendmsg([data], [ECN], addr)


async def recvfrom(loop: Any, sock: socket.socket) -> None:
    while True:
        data, address = await loop.sock_recvfrom(sock, 2048)
        await loop.sock_sendto(sock, data, address)


async def recvmsg(loop: Any, sock: socket.socket) -> None:
    while True:
        data, _, _, address = await loop.sock_recvmsg(sock, 2048, 64)
        await loop.sock_sendto(sock, data, address)


# Each with the one that it is compared with.
ENDPOINTS: dict[str, tuple[Any, str]] = {
    "datagram_received, sendto": (Datagrams, "datagram_received, sendto"),
    "message_received, sendto": (Received, "datagram_received, sendto"),
    "message_received, sendmsg": (Messages, "datagram_received, sendto"),
    "sock_recvfrom": (recvfrom, "sock_recvfrom"),
    "sock_recvmsg": (recvmsg, "sock_recvfrom"),
}


async def echo_datagrams() -> None:
    """Serve all endpoints, and print their ports."""
    loop = asyncio.get_running_loop()
    ports, tasks = [], []
    for echo, base in ENDPOINTS.values():
        sock = socket.socket(type=socket.SOCK_DGRAM)
        sock.bind((HOST, 0))
        sock.setblocking(False)
        if echo is not ENDPOINTS[base][0]:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        ports.append(sock.getsockname()[1])
        if isinstance(echo, type):
            await loop.create_datagram_endpoint(echo, sock=sock)
        else:
            tasks.append(loop.create_task(echo(loop, sock)))
    print(json.dumps(ports), flush=True)
    await asyncio.gather(*tasks)


def processor_time(pid: int) -> float:
    """Return the processor time of a process with one thread, in microseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1000


def slot(pid: int, client: socket.socket, port: int) -> float:
    """Echo for a while; return the server's processor time for each datagram."""
    began, count = processor_time(pid), 0
    end = time.perf_counter() + SLOT_S
    while time.perf_counter() < end:
        for _ in range(AT_ONCE):
            client.sendto(bytes(64), (HOST, port))
        for _ in range(AT_ONCE):
            client.recv(2048)
        count += AT_ONCE
    return (processor_time(pid) - began) / count


def compare_messages() -> None:
    with served("echo") as (process, output), socket.socket(type=socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        ports = dict(zip(ENDPOINTS, json.loads(output.readline()), strict=True))
        times: dict[str, list[float]] = {name: [] for name in ports}
        for _ in range(ROUNDS + 1):
            for name, port in ports.items():
                times[name].append(slot(process.pid, client, port))
    for name, (_, base) in ENDPOINTS.items():
        # The first round warms up.
        pairs = zip(times[name][1:], times[base][1:], strict=True)
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        print(f"{name}: {statistics.median(times[name][1:]):.2f} us, {ratio:.3f} of {base}")


# ── segments ─────────────────────────────────────────────────────────────────────────────────


async def compare_segments() -> None:
    loop = asyncio.get_running_loop()
    data = bytes(PIECE_BYTES) * PIECES
    pieces = [bytes(PIECE_BYTES)] * PIECES
    with socket.socket(type=socket.SOCK_DGRAM) as receiver:
        receiver.bind((HOST, 0))
        receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        transports: list[Any] = []
        for _ in range(3):
            transport, _ = await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=receiver.getsockname()
            )
            transports.append(transport)
        plain, cutting, raw = transports
        raw.get_extra_info("socket").setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, PIECE_BYTES)
        ways: dict[str, Callable[[], object]] = {
            "sendto for each": lambda: [plain.sendto(piece) for piece in pieces],
            "send_segments": lambda: cutting.send_segments(data, PIECE_BYTES),
            "UDP_SEGMENT on the socket": lambda: raw.sendto(data),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, send in ways.items():
                times[name].append(time_of(send, receiver, len(data)))
        for transport in transports:
            transport.close()
    for name, found in times.items():
        print(f"{name}: {statistics.median(found):.3f} us for each datagram")


def time_of(send: Callable[[], object], receiver: socket.socket, size: int) -> float:
    """Return the processor time of a send for each datagram, in microseconds."""
    total = 0
    for _ in range(SENDS):
        began = time.process_time_ns()
        send()
        total += time.process_time_ns() - began
        left = size
        while left:
            left -= len(receiver.recv(65536))
    return total / SENDS / PIECES / 1000


# ── limit ────────────────────────────────────────────────────────────────────────────────────


class Web(asyncio.Protocol):
    """Answers one request on each connection."""

    present = most = 0

    def __init__(self, sleep: float, limit: contextlib.AbstractAsyncContextManager[Any]) -> None:
        self.sleep, self.limit = sleep, limit
        self.request = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        Web.present += 1
        Web.most = max(Web.most, Web.present)

    def connection_lost(self, exc: Exception | None) -> None:
        Web.present -= 1

    def data_received(self, data: bytes) -> None:
        self.request += data
        if self.request.endswith(b"\r\n\r\n"):
            self.task = asyncio.ensure_future(self.answer())

    async def answer(self) -> None:
        async with self.limit:
            if self.sleep:
                await asyncio.sleep(self.sleep)
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        self.transport.close()


async def serve_web(by: str, sleep: float) -> None:
    """Serve with a server limit, or with a semaphore, until a line comes."""
    loop = asyncio.get_running_loop()
    limit: Any = contextlib.nullcontext() if by == "max_connections" else asyncio.Semaphore(LIMIT)
    options: Any = {"max_connections": LIMIT} if by == "max_connections" else {}
    server = await loop.create_server(
        lambda: Web(sleep, limit), HOST, 0, backlog=2 * CLIENTS, **options
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    print(Web.most, flush=True)


def under_wrk(by: str, sleep: float) -> tuple[float, int, str]:
    """Return the requests per second, the most connections, and wrk's errors."""
    with served("web", by, str(sleep)) as (process, output):
        address = f"http://{HOST}:{output.readline().strip()}/"
        words = ["wrk", "-t1", f"-c{CLIENTS}", f"-d{WRK_S}", address]
        found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        most = int(output.readline())
    rate = re.search(r"Requests/sec: +([\d.]+)", found)
    errors = re.search(r"(connect \d+, read \d+, write \d+), timeout", found)
    assert rate is not None
    return float(rate[1]), most, errors[1] if errors else "no errors"


def compare_limits() -> None:
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed")
    for sleep in SLEEPS:
        ratios = []
        for _ in range(LIMIT_ROUNDS):
            limited, most, errors = under_wrk("max_connections", sleep)
            by_semaphore, most_waiting, _ = under_wrk("semaphore", sleep)
            ratios.append(limited / by_semaphore)
            print(
                f"  {limited:,.0f} requests/s with at most {most} connections, {errors};"
                f" {by_semaphore:,.0f} with {most_waiting}"
            )
        print(f"sleep of {sleep} s: {statistics.median(ratios):.2f} of the semaphore's rate")


# ── the parts ────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def served(*words: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Run this program as a server on a processor of its own."""
    command = [sys.executable, __file__, "--serve", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout
        finally:
            process.kill()


def serve(what: str, *words: str) -> None:
    os.sched_setaffinity(0, {0})
    if what == "echo":
        uringloop.run(echo_datagrams())
    else:
        uringloop.run(serve_web(words[0], float(words[1])))


PARTS: dict[str, Callable[[], None]] = {
    "messages": compare_messages,
    "segments": lambda: uringloop.run(compare_segments()),
    "limit": compare_limits,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)} (all)")
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for part in options.parts or PARTS:
        print(f"{part}:", flush=True)
        PARTS[part]()


if __name__ == "__main__":
    main()
