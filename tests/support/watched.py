"""What the tests of the monitor and of top share: programs that are watched, and plain clients."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from support.roles import PATIENCE
from uringloop import monitor
from uringloop._monitor.server import Told

# It is told to go on by a line of its standard input, and has told that it is there by one.
PRELUDE = """
import asyncio, os, sys, threading, time
import uringloop

def ready(text="ready"):
    print(text, flush=True)

def go():
    return sys.stdin.readline()
"""


BLOCKED = """
def blocked():
    ready()
    go()

loop = uringloop.new_event_loop()
loop.call_soon(blocked)
loop.call_later(3600, print)
loop.call_soon(loop.stop)
loop.run_forever()
loop.close()
"""

# What is not closed, and a warning, would be an error.
STRICT = ("-Werror", "-Xdev", "-m", "uringloop.top")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
# Of the users that own nothing.
NOBODY = 65534


class Program(NamedTuple):
    """A process whose script says when it is ready, and does what follows when it is told to."""

    process: subprocess.Popen[str]
    socket: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """Return the next line that the program writes."""
        return there(self.process.stdout).readline().rstrip("\n")

    def go(self) -> None:
        """Have the program go on."""
        stdin = there(self.process.stdin)
        stdin.write("\n")
        stdin.flush()

    def end(self) -> str:
        """Let the program end, and return what it wrote to its standard error."""
        _, errors = self.process.communicate("\n" * 10, timeout=2 * PATIENCE)
        assert self.process.returncode == 0, errors
        return errors


def there(file: IO[str] | None) -> IO[str]:
    """Return one of the pipes of a process that has it."""
    assert file is not None
    return file


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return the variables of a program that has its socket in *folder*, if it has one."""
    folder.chmod(0o700)
    inherited = {name: value for name, value in os.environ.items() if name != "URINGLOOP_MONITOR"}
    return {**inherited, "XDG_RUNTIME_DIR": str(folder), **variables}


@contextlib.contextmanager
def program(folder: Path, script: str, **variables: str) -> Iterator[Program]:
    """Run *script* with the monitor on, from its first line "ready" on; kill it in the end."""
    variables = {"URINGLOOP_MONITOR": "1", **variables}
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder, **variables),
    )
    with process:
        try:
            started = Program(process, folder / f"uringloop-{process.pid}.sock")
            line = started.line()
            assert line == "ready", (line, process.communicate(timeout=PATIENCE))
            yield started
        finally:
            process.kill()


@contextlib.contextmanager
def connected(path: Path | str) -> Iterator[socket.socket]:
    """Connect to a monitor as anybody could."""
    with socket.socket(socket.AF_UNIX) as sock:
        # With a timeout it would not wait for its place in the queue.
        sock.connect(str(path))
        sock.settimeout(2 * PATIENCE)
        yield sock


def reply_of(sock: socket.socket) -> bytes:
    """Return what comes until the end of a line, or until the end."""
    received = b""
    while not received.endswith(b"\n"):
        data = sock.recv(65536)
        if not data:
            break
        received += data
    return received


def told_by(path: Path | str) -> Told:
    """Return one answer of the monitor at *path*."""
    with connected(path) as sock:
        sock.sendall(b"\n")
        told: Told = json.loads(reply_of(sock))
    assert "loops" in told, told
    return told


def error_of(sock: socket.socket) -> str:
    """Return why a monitor closes the connection."""
    told: dict[str, str] = json.loads(reply_of(sock))
    assert sock.recv(1) == b""
    return told["error"]


def run_top(folder: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *STRICT, *map(str, arguments)],
        env=environment(folder, **variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextlib.contextmanager
def following(folder: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run top until the block ends."""
    with subprocess.Popen(
        [sys.executable, *STRICT, *map(str, arguments)],
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for sockets: the path of one is 107 bytes at most, and those of pytest are long."""
    with tempfile.TemporaryDirectory(prefix="uringloop-test-") as name:
        yield Path(name)


@pytest.fixture
def monitored(place: Path) -> Iterator[Path]:
    """The socket of this process's own monitor."""
    path = place / "own.sock"
    assert monitor.start(path) == str(path)
    yield path
    monitor.stop()
    assert not path.exists()
    assert not [one for one in threading.enumerate() if one.name == "uringloop-monitor"]
