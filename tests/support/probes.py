"""Helpers of the tests of health: a plain client, what is served, loops, and forged siblings."""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import uringloop
from support.roles import PATIENCE, running_in_thread
from support.watched import ASLEEP, Program, program
from uringloop import monitor
from uringloop.monitor import health

LOCAL = "127.0.0.1:0"
# Longer than any test.
LONG_S = 1000.0


# ── clients ──────────────────────────────────────────────────────────────────────────────────


class Reply(NamedTuple):
    """An answer; *status* is 0 if there is none, or none with a head."""

    status: int
    headers: dict[str, str]
    body: str


def connected(address: str) -> socket.socket:
    """Connect a plain socket to an address as serve() returns it."""
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        where: str | tuple[str, int] = address.removeprefix("unix:")
    else:
        host, _, port = address.rpartition(":")
        sock = socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET)
        where = (host.strip("[]"), int(port))
    sock.settimeout(2 * PATIENCE)
    try:
        sock.connect(where)
    except OSError:
        sock.close()
        raise
    return sock


def rest_of(sock: socket.socket) -> bytes:
    """Return what is received up to EOF."""
    received = b""
    while data := sock.recv(65536):
        received += data
    return received


def raw(address: str, request: bytes) -> bytes:
    """Send the bytes of a request, and return those of the answer."""
    with connected(address) as sock:
        sock.sendall(request)
        return rest_of(sock)


def reply_of(received: bytes) -> Reply:
    head, _, body = received.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    status = int(line.split()[1]) if line.startswith("HTTP/") else 0
    return Reply(status, dict(field.split(": ", 1) for field in fields), body.decode())


def ask(address: str, path: str, method: str = "GET") -> Reply:
    return reply_of(raw(address, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()))


def status_of(address: str, path: str) -> int:
    """Return the status of a page; 0 if nothing listens."""
    try:
        return ask(address, path).status
    except (ConnectionRefusedError, FileNotFoundError):
        return 0


def has(address: str, path: str, part: str) -> bool:
    """Return whether the page has *part*; no if nothing listens."""
    try:
        return part in ask(address, path).body
    except (ConnectionRefusedError, FileNotFoundError):
        return False


def is_served(address: str) -> bool:
    return status_of(address, "/live") == 200


# ── what is served ───────────────────────────────────────────────────────────────────────────


def serve(
    address: str = LOCAL,
    *,
    dead_after: float = LONG_S,
    ready_after: float = LONG_S,
    stacks: bool = False,
) -> str:
    """Serve with limits that are not reached; the address is a text, for it must not fail."""
    found = monitor.serve(address, dead_after=dead_after, ready_after=ready_after, stacks=stacks)
    assert found is not None
    return found


def server() -> health.Health:
    """Return the server of this process."""
    assert health.SWITCH.server is not None
    return health.SWITCH.server


def health_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "uringloop-health"]


@contextlib.contextmanager
def loop_named(name: str) -> Iterator[uringloop.Loop]:
    """Run a loop in a thread of that name."""
    loop = uringloop.new_event_loop()
    try:
        with running_in_thread(loop) as thread:
            thread.name = name
            yield loop
    finally:
        loop.close()


@contextlib.contextmanager
def blocked_loop(name: str = "worker") -> Iterator[uringloop.Loop]:
    """Run a loop in a thread, in which a task blocks until the end of the block."""
    entered, release = threading.Event(), threading.Lock()
    release.acquire()

    async def stuck() -> None:
        entered.set()
        # Not an event: the innermost frame of Python would be the standard library's.
        assert release.acquire(timeout=3 * PATIENCE)

    with loop_named(name) as loop:
        start = functools.partial(loop.create_task, stuck(), name="the culprit")
        loop.call_soon_threadsafe(start)
        try:
            assert entered.wait(PATIENCE)
            yield loop
        finally:
            release.release()


@contextlib.contextmanager
def process_at(folder: Path, address: str, script: str = ASLEEP) -> Iterator[Program]:
    """Run *script* in a process with health at *address*, and no monitor."""
    with program(folder, script, URINGLOOP_MONITOR="", URINGLOOP_HEALTH=address) as watched:
        yield watched


def families_of(text: str) -> dict[str, list[str]]:
    """Return the labels of all samples by metric, and check that each metric stands once."""
    families: dict[str, list[str]] = {}
    name = ""
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert name not in families
            families[name] = []
        elif line.startswith("# TYPE "):
            assert line.split()[2] == name
            assert families[name] == []
        else:
            sample = re.fullmatch(rf"{name}(?:_bucket|_sum|_count)?\{{(.*)\}} (\S+)", line)
            assert sample, line
            float(sample[2])
            families[name].append(sample[1])
    return families


# ── siblings ─────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def forger(name: str, answer: bytes) -> Iterator[list[bytes]]:
    """Listen at the abstract *name*, and give *answer* to each question, which is recorded."""
    questions: list[bytes] = []

    def work() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                with sock, contextlib.suppress(OSError):
                    questions.append(sock.recv(4096))
                    sock.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield questions
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


OK = b"HTTP/1.0 200 OK\r\n\r\n"
