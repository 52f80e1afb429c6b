"""The tasks of the simple loads, for protocols that the load generator does not speak.

They use blocking sockets: all send, then all receive, and every byte is checked. On the server's
core a blocking load runs while the server waits. The server is judged by its CPU time, which does
not include the load's. A load runs in a process of its own, see `task`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from uringloop.bench import counters, process
from uringloop.bench.loadgen import LoadGenerator
from uringloop.bench.settings import BenchError

from .workloads.transfer import NUMBER_BYTES, PATTERN, PATTERN_BYTES

# Seconds without an answer after which the server has failed.
_TIMEOUT = 20.0

# Data that one call of a transfer sends or receives: whole patterns.
_CHUNK = PATTERN * 1024

# IP_BIND_ADDRESS_NO_PORT of linux/in.h: connect chooses the port, unique for the address pair only.
_BIND_ADDRESS_NO_PORT = 24

# Source addresses that `connect` uses in turn: the ports of one address are soon in TIME_WAIT.
_SOURCES = 200

# Connections that are opened and closed before idle ones are measured, so that the server has
# allocated its tables.
_WARM_CONNECTIONS = 200


@dataclass(frozen=True)
class Task:
    """The task of a load; *duration* is in seconds, *total* in bytes."""

    load: str
    host: str
    port: int
    server_pid: int
    clients: int
    size: int
    warm_up: float
    duration: float
    total: int

    @property
    def address(self) -> tuple[str, int]:
        """The server's address."""
        return self.host, self.port


@dataclass(frozen=True)
class Reading:
    """The cost of the operations, and the growth of the server's memory."""

    operations: float
    elapsed_ns: int
    server_cpu_ns: int
    rss_growth_bytes: int = 0


def _message(size: int, number: int) -> bytes:
    """Return bytes that differ from connection to connection."""
    return (PATTERN[number % PATTERN_BYTES :] + PATTERN * (size // PATTERN_BYTES + 1))[:size]


def _receive(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(size)
    while data and len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            break
        data += more
    return data


def _exchange(sockets: list[socket.socket], messages: list[bytes]) -> int:
    """Send on all sockets, receive on all, and check the echoes."""
    for sock, message in zip(sockets, messages, strict=True):
        sock.sendall(message)
    for number, (sock, message) in enumerate(zip(sockets, messages, strict=True)):
        if _receive(sock, len(message)) != message:
            raise BenchError(f"the echo differs from what was sent (connection {number})")
    return len(sockets)


def _timed(task: Task, operate: Callable[[], float], seconds: float) -> Reading:
    """Repeat *operate* for *seconds*, at least once; it returns how many operations it did."""
    operations = 0.0
    cpu_ns = counters.cpu_ns(task.server_pid)
    begin_ns = now_ns = time.perf_counter_ns()
    end_ns = begin_ns + round(seconds * 1e9)
    while now_ns < end_ns or not operations:
        operations += operate()
        now_ns = time.perf_counter_ns()
    return Reading(operations, now_ns - begin_ns, counters.cpu_ns(task.server_pid) - cpu_ns)


def _measured(task: Task, operate: Callable[[], float]) -> Reading:
    _timed(task, operate, task.warm_up)
    return _timed(task, operate, task.duration)


# ── echoes ───────────────────────────────────────────────────────────────────────────────────


def _echo(task: Task, sockets: list[socket.socket]) -> Reading:
    messages = [_message(task.size, number) for number in range(len(sockets))]
    try:
        return _measured(task, lambda: _exchange(sockets, messages))
    finally:
        for sock in sockets:
            sock.close()


def datagrams(task: Task) -> Reading:
    """Echo datagrams, one for each client at a time. A lost datagram would stall the load."""
    sockets = []
    for _ in range(task.clients):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.settimeout(_TIMEOUT)
        sock.connect(task.address)
        sockets.append(sock)
    return _echo(task, sockets)


def _plain(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, _TIMEOUT)


def _client_context() -> ssl.SSLContext:
    """Return a context that accepts every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _secured(address: tuple[str, int]) -> socket.socket:
    """Connect over TLS."""
    plain = _plain(address)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _client_context().wrap_socket(plain)


def tls(task: Task) -> Reading:
    """Echo over TLS."""
    return _echo(task, [_secured(task.address) for _ in range(task.clients)])


# ── connections ──────────────────────────────────────────────────────────────────────────────


def _connected(address: tuple[str, int], number: int) -> socket.socket:
    """Connect; the source address depends on *number*."""
    sock = socket.socket()
    sock.settimeout(_TIMEOUT)
    sock.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
    sock.bind((f"127.0.0.{number % _SOURCES + 2}", 0))
    sock.connect(address)
    return sock


def connect(task: Task) -> Reading:
    """Connect, echo once and close, with all clients at the same time."""
    messages = [_message(task.size, number) for number in range(task.clients)]
    batches = 0

    def batch() -> int:
        nonlocal batches
        batches += 1
        sockets = [_connected(task.address, batches) for _ in range(task.clients)]
        try:
            return _exchange(sockets, messages)
        finally:
            for sock in sockets:
                sock.close()

    return _measured(task, batch)


def _handshakes(task: Task, *, resuming: bool) -> Reading:
    """Connect over TLS, echo once and close, one connection after the other."""
    context = _client_context()
    message = _message(task.size, 0)
    session: ssl.SSLSession | None = None
    number = 0

    def one() -> int:
        nonlocal session, number
        number += 1
        plain = _connected(task.address, number)
        with context.wrap_socket(plain, session=session) as sock:
            _exchange([sock], [message])
            if sock.session_reused != (session is not None):
                raise BenchError("the server has not resumed a session")
            if resuming:
                # After the echo: a server of TLS 1.3 sends it behind the handshake.
                session = sock.session
        return 1

    return _measured(task, one)


def full_handshakes(task: Task) -> Reading:
    """Connect over TLS without a session."""
    return _handshakes(task, resuming=False)


def resumed_handshakes(task: Task) -> Reading:
    """Connect over TLS with the session of the previous connection."""
    return _handshakes(task, resuming=True)


# ── one way; an operation is a mebibyte ──────────────────────────────────────────────────────


def _send(sock: socket.socket, total: int) -> None:
    left = total
    while left:
        chunk = _CHUNK if left >= len(_CHUNK) else _CHUNK[:left]
        sock.sendall(chunk)
        left -= len(chunk)


def _check(received: int, total: int) -> float:
    """Return *total* in MiB; raise BenchError if other than *total* bytes have come."""
    if received != total:
        raise BenchError(f"{received} of {total} bytes came")
    return total / 2**20


def _upload(address: tuple[str, int], total: int) -> float:
    """Send *total* bytes; the server answers with the number that it has received."""
    with _plain(address) as sock:
        _send(sock, total)
        sock.shutdown(socket.SHUT_WR)
        received = int.from_bytes(_receive(sock, NUMBER_BYTES), "big")
    return _check(received, total)


def _upload_tls(address: tuple[str, int], total: int) -> float:
    """Agree on *total* bytes, and send them."""
    with _secured(address) as sock:
        announced = total.to_bytes(NUMBER_BYTES, "big")
        sock.sendall(announced)
        if _receive(sock, NUMBER_BYTES) != announced:
            raise BenchError("the server has not agreed")
        _send(sock, total)
        received = int.from_bytes(_receive(sock, NUMBER_BYTES), "big")
    return _check(received, total)


def _receive_all(sock: socket.socket, total: int) -> float:
    """Ask for *total* bytes and check them."""
    expected = memoryview(_CHUNK + PATTERN)
    buffer = memoryview(bytearray(len(_CHUNK)))
    sock.sendall(total.to_bytes(NUMBER_BYTES, "big"))
    received = 0
    while count := sock.recv_into(buffer):
        phase = received % PATTERN_BYTES
        # As bytes objects: memoryviews are compared item by item.
        if bytes(buffer[:count]) != bytes(expected[phase : phase + count]):
            raise BenchError(f"other data than expected (after {received} bytes)")
        received += count
    return _check(received, total)


def _download(address: tuple[str, int], total: int) -> float:
    with _plain(address) as sock:
        return _receive_all(sock, total)


def _download_tls(address: tuple[str, int], total: int) -> float:
    with _secured(address) as sock:
        return _receive_all(sock, total)


def _transfer(task: Task, carry: Callable[[tuple[str, int], int], float]) -> Reading:
    # Warm-up: a part of the transfer lets the buffers of kernel and server reach their sizes.
    carry(task.address, task.total // 16)
    return _timed(task, lambda: carry(task.address, task.total), 0)


def upload(task: Task) -> Reading:
    """Send through one connection."""
    return _transfer(task, _upload)


def download(task: Task) -> Reading:
    """Receive through one connection."""
    return _transfer(task, _download)


def upload_tls(task: Task) -> Reading:
    """Send through one connection over TLS."""
    return _transfer(task, _upload_tls)


def download_tls(task: Task) -> Reading:
    """Receive through one connection over TLS."""
    return _transfer(task, _download_tls)


# ── memory ───────────────────────────────────────────────────────────────────────────────────


class Closable(Protocol):
    """Connections that close() closes."""

    def close(self) -> None: ...


def _grown(task: Task, connections: Callable[[int], Closable]) -> Reading:
    """Open connections that have echoed once and then stay; measure the server's growth."""
    connections(_WARM_CONNECTIONS).close()
    before = counters.rss_bytes(task.server_pid)
    cpu_ns, begin_ns = counters.cpu_ns(task.server_pid), time.perf_counter_ns()
    opened = connections(task.clients)
    elapsed_ns = time.perf_counter_ns() - begin_ns
    cpu_ns = counters.cpu_ns(task.server_pid) - cpu_ns
    growth = counters.rss_bytes(task.server_pid) - before
    opened.close()
    return Reading(task.clients, elapsed_ns, cpu_ns, growth)


def idle(task: Task) -> Reading:
    """Measure the memory of connections that do nothing."""

    def connections(count: int) -> LoadGenerator:
        generator = LoadGenerator(task.address, count, task.size)
        generator.connect()
        if (failure := generator.first_failure()) is not None:
            raise BenchError(failure)
        return generator

    return _grown(task, connections)


def idle_tls(task: Task) -> Reading:
    """Measure the memory of connections over TLS that do nothing."""
    message = _message(task.size, 0)

    def connections(count: int) -> contextlib.ExitStack:
        with contextlib.ExitStack() as opened:
            sockets = [opened.enter_context(_secured(task.address)) for _ in range(count)]
            _exchange(sockets, [message] * count)
            return opened.pop_all()

    return _grown(task, connections)


LOADS: dict[str, Callable[[Task], Reading]] = {
    "connect": connect,
    "datagrams": datagrams,
    "tls": tls,
    "upload": upload,
    "download": download,
    "idle": idle,
    "tls-full": full_handshakes,
    "tls-resumed": resumed_handshakes,
    "tls-upload": upload_tls,
    "tls-download": download_tls,
    "tls-idle": idle_tls,
}


def run(task: Task) -> Reading:
    """Run the load."""
    process.raise_descriptor_limit()
    return LOADS[task.load](task)
