"""How soon health over HTTP answers, and what it costs: `python benchmarks/health.py [PART ...]`.

answers: how long /live, /ready and /metrics take while the loop computes in Python, and for
    contrast a check that the loop itself serves.
gil: how long the same requests take while C code keeps the GIL for two seconds, in the process that
    is asked, and in another process that shares the address.
cost: CPU time of an echo while health is on and scraped each second, divided by the CPU time
    without health. Loops of one process take turns, because of two processes that do the same, one
    is up to 6 % slower.
hostile: the effect of 10,000 connections, of slow requests and of 1 GB of heads on the lateness of
    a timer and on the memory of the process. The same connections to a socket that no program
    serves show the effect of the kernel alone.

The server has a processor of its own, which must be idle otherwise.
"""

from __future__ import annotations

import argparse
import array
import asyncio
import contextlib
import ctypes
import http.client
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO

PATHS = ("/live", "/ready", "/metrics")
CONNECTIONS = 10_000
HEAD_BYTES = 1_000_000_000
ECHO_CLIENTS = 20
PAIRS = 50
PHASE_S = 1.0
# Timers that are remembered.
LATENESS_MAX = 200_000


# ── the server ───────────────────────────────────────────────────────────────────────────────


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a health check in the loop."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")
    writer.close()


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def keep_the_gil(seconds: float) -> None:
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def memory_kb() -> int:
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Rss"))


class Lateness:
    """How late a timer that is due each millisecond is."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        # Of a fixed size: the memory of the process is measured.
        self.late_ms = array.array("d", [1.0]) * LATENESS_MAX
        self.count = 0
        self.handle = loop.call_later(0.001, self.run, loop.time() + 0.001)

    def run(self, due: float) -> None:
        self.late_ms[self.count % LATENESS_MAX] = (self.loop.time() - due) * 1000
        self.count += 1
        self.handle = self.loop.call_later(0.001, self.run, self.loop.time() + 0.001)

    def taken(self) -> str:
        late = sorted(self.late_ms[: self.count]) or [0.0]
        self.count = 0
        return f"{statistics.median(late):.4f} {late[int(len(late) * 0.99)]:.4f} {late[-1]:.4f}"


def read_lines(lines: asyncio.Queue[str]) -> None:
    """Read without Python's buffer, which could hold lines that select() does not report."""
    for line in os.read(0, 65536).decode().splitlines() or [""]:
        lines.put_nowait(line)


async def serve(address: str) -> str:
    """Serve, and obey the lines of standard input; return the address of health for a new loop."""
    from uringloop import monitor

    loop = asyncio.get_running_loop()
    echo = await loop.create_server(Echo, "127.0.0.1", 0)
    own = await asyncio.start_server(answer, "127.0.0.1", 0)
    ports = [one.sockets[0].getsockname()[1] for one in (echo, own)]
    monitor.stop_serving()
    served = monitor.serve(address) if address else ""
    print(*ports, served or "", flush=True)
    lateness: Lateness | None = None
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop.add_reader(0, read_lines, lines)
    while line := await lines.get():
        command, _, argument = line.strip().partition(" ")
        if command == "compute":
            compute(float(argument))
        elif command == "gil":
            keep_the_gil(float(argument))
        elif command == "late":
            print(lateness.taken() if lateness else "", flush=True)
            lateness = lateness or Lateness(loop)
        elif command == "memory":
            print(memory_kb(), flush=True)
        elif command == "cpu":
            print(time.process_time(), flush=True)
        elif command == "restart":
            return argument
    sys.exit()


class Server:
    """The process of the server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.read_ports()

    def read_ports(self) -> None:
        first, second, *health = self.line().split()
        self.echo, self.own = int(first), int(second)
        self.health = int(health[0].rpartition(":")[2]) if health else 0

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def tell(self, command: str) -> None:
        stdin: IO[str] | None = self.process.stdin
        assert stdin is not None
        stdin.write(command + "\n")
        stdin.flush()

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.line().strip()

    def restart(self, address: str) -> None:
        """Let a new loop serve, with health at *address* if that is not empty."""
        self.tell(f"restart {address}")
        self.read_ports()


@contextlib.contextmanager
def server(address: str) -> Iterator[Server]:
    command = [sys.executable, __file__, "--serve", address]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
            yield Server(process)
        finally:
            process.kill()


# ── clients ──────────────────────────────────────────────────────────────────────────────────


def get(port: int, path: str) -> tuple[float, int]:
    """Return the milliseconds and the status of an answer."""
    began = time.perf_counter()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as client:
        client.request("GET", path)
        response = client.getresponse()
        response.read()
    return (time.perf_counter() - began) * 1000, response.status


def told(answer: tuple[float, int]) -> str:
    return f"{answer[0]:.1f} ms, {answer[1]}"


def show(name: str, times: list[float], statuses: set[int]) -> None:
    times = sorted(times)
    print(
        f"{name:10} n {len(times)}, median {statistics.median(times):.1f} ms, "
        f"p99 {times[int(len(times) * 0.99)]:.1f}, max {times[-1]:.1f}, {sorted(statuses)}"
    )


def ask_all(port: int, count: int) -> None:
    found: dict[str, list[tuple[float, int]]] = {path: [] for path in PATHS}
    for _ in range(count):
        for path in PATHS:
            found[path].append(get(port, path))
    for path, answers in found.items():
        show(path, [time_ms for time_ms, _ in answers], {status for _, status in answers})


@contextlib.contextmanager
def in_background(work: Callable[[threading.Event], None], count: int = 1) -> Iterator[None]:
    stopping = threading.Event()
    threads = [threading.Thread(target=work, args=(stopping,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    stopping.set()
    for thread in threads:
        thread.join()


# ── parts ────────────────────────────────────────────────────────────────────────────────────


def answers(_: argparse.Namespace) -> None:
    with server("127.0.0.1:0") as one:
        get(one.health, "/metrics")
        one.tell("compute 60")
        time.sleep(2)
        ask_all(one.health, 1000)
        one.process.kill()
    with server("127.0.0.1:0") as one:
        one.tell("compute 30")
        time.sleep(0.1)
        print(f"in the loop {get(one.own, '/')[0]:,.0f} ms")


def gil(_: argparse.Namespace) -> None:
    with server("127.0.0.1:0") as one:
        one.tell("gil 2")
        time.sleep(0.1)
        for path in PATHS:
            print("in the process that is asked:", path, told(get(one.health, path)))
    with server("127.0.0.1:9177") as one, server("127.0.0.1:9177") as other:
        time.sleep(1.5)
        other.tell("gil 2")
        time.sleep(0.1)
        for path in (*PATHS, *PATHS):
            print("in another process:", path, told(get(one.health, path)))


class Pinger(asyncio.Protocol):
    """A client of the echo server: it sends again what it gets, and counts."""

    count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.transport.write(bytes(1000))
        self.received = 0

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        while self.received >= 1000:
            self.received -= 1000
            Pinger.count += 1
            self.transport.write(bytes(1000))


async def ping(port: int) -> None:
    """Let clients echo for a while."""
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Pinger, "127.0.0.1", port) for _ in range(ECHO_CLIENTS)]
    await asyncio.sleep(PHASE_S)
    for transport, _ in made:
        transport.abort()


def phase(one: Server, address: str) -> float:
    """Let clients echo for a while, and return the CPU time of an echo in microseconds.

    Health, if it is on, is scraped once, in the middle.
    """
    import uringloop

    one.restart(address)
    scrape = threading.Timer(PHASE_S / 2, get, [one.health, "/metrics"])
    if address:
        # The first scrape begins the histograms.
        get(one.health, "/metrics")
        scrape.start()
    Pinger.count = 0
    used = float(one.ask("cpu"))
    uringloop.run(ping(one.echo))
    used = float(one.ask("cpu")) - used
    if address:
        scrape.join()
    return used * 1e6 / Pinger.count


def cost(_: argparse.Namespace) -> None:
    with server("") as one:
        pairs = [(phase(one, "127.0.0.1:0"), phase(one, "")) for _ in range(PAIRS)]
        same = [phase(one, "") / phase(one, "") for _ in range(PAIRS)]
    ratios = [with_health / without for with_health, without in pairs]
    median = statistics.median(it[1] for it in pairs)
    print(f"CPU time of an echo without health: median {median:.2f} us")
    show_ratios("with health and a scrape each second, relative to without:", ratios)
    show_ratios("without twice, for the noise:", same)


def show_ratios(name: str, ratios: list[float]) -> None:
    low, middle, high = statistics.quantiles(ratios, n=4)
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    print(
        f"{name} {middle:.4f}, quartiles {low:.3f} to {high:.3f}, "
        f"mean {statistics.mean(ratios):.4f} +- {error:.4f}"
    )


def hostile(_: argparse.Namespace) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (CONNECTIONS + 100, CONNECTIONS + 100))
    with server("127.0.0.1:0") as one:
        for path in PATHS:
            get(one.health, path)
        one.ask("late")
        time.sleep(5)
        print("quiet:", "median, p99, max of a timer's lateness in ms", one.ask("late"))
        attacks = (
            ("nobody", connect_to_nobody),
            ("connections", connect),
            ("slow", send_slowly),
            ("heads", send_heads),
        )
        for name, attack in attacks:
            one.ask("late")
            before = int(one.ask("memory"))
            took = attack(one.health)
            after, late = int(one.ask("memory")), one.ask("late")
            probe = told(get(one.health, "/live"))
            print(f"{name}: {took}; lateness {late}; {after - before} KiB more; then {probe}")
        time.sleep(1)
        one.ask("late")
        time.sleep(5)
        print("quiet again:", one.ask("late"))


def connect_to_nobody(_: int) -> str:
    """Connect to a socket that accepts nothing: the effect of the kernel alone on the loop."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as sock:
        return connect(sock.getsockname()[1], probe=False)


def connect(port: int, *, probe: bool = True) -> str:
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        for _ in range(CONNECTIONS):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        time.sleep(3)
        took = f"{CONNECTIONS:,} in {time.monotonic() - began:.1f} s"
        return f"{took}, a probe took {get(port, '/live')[0]:.1f} ms" if probe else took


def send_slowly(port: int) -> str:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(200)]
        for sock in socks:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        sent = 0
        for byte in b"GET /live HTTP/1.1\r\nX: " + b"x" * 40:
            for sock in socks:
                with contextlib.suppress(OSError):
                    sent += sock.send(bytes([byte]))
            time.sleep(0.1)
        probe = get(port, "/live")
    return f"{sent:,} bytes one by one, a probe took {probe[0]:.1f} ms"


def send_heads(port: int) -> str:
    sent = clients = 0
    began = time.monotonic()
    line = b"X: " + b"x" * 65_000 + b"\r\n"
    while sent < HEAD_BYTES and time.monotonic() - began < 120:
        clients += 1
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(b"GET /live HTTP/1.1\r\n")
            while sent < HEAD_BYTES:
                sent += sock.send(line)
    return f"{sent / 1e6:,.0f} MB of heads by {clients} clients in {time.monotonic() - began:.0f} s"


PARTS = {"answers": answers, "gil": gil, "cost": cost, "hostile": hostile}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)} (all)")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        import uringloop

        address = arguments.serve
        while True:
            address = uringloop.run(serve(address))
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {max(os.sched_getaffinity(0))})
    for name in set(arguments.parts) - set(PARTS):
        parser.error(f"no such part: {name}")
    for name in arguments.parts or PARTS:
        print(f"── {name}")
        PARTS[name](arguments)


if __name__ == "__main__":
    main()
