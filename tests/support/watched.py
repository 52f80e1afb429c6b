"""Helpers of the tests of the monitor and of top: programs with a monitor, and plain clients."""

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
from uringloop.monitor.snapshots import Snapshot

# ready() prints the line for which a test waits; go() waits for a line from the test.
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

ASLEEP = """
async def main():
    loop = asyncio.get_running_loop()
    loop.call_soon(ready)
    await loop.run_in_executor(None, go)

uringloop.run(main())
"""

# Runs top with warnings, also those about unclosed resources, as errors.
STRICT = ("-Werror", "-Xdev", "-m", "uringloop.top")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
# The user and group ids of a user that owns no files.
NOBODY = 65534


class Program(NamedTuple):
    """A process whose script prints when it is ready, and goes on after a line of input."""

    process: subprocess.Popen[str]
    socket: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """Return the next line that the program writes."""
        return pipe_of(self.process.stdout).readline().rstrip("\n")

    def go(self) -> None:
        """Let the program go on."""
        stdin = pipe_of(self.process.stdin)
        stdin.write("\n")
        stdin.flush()

    def end(self) -> str:
        """Let the program end, and return what it wrote to its standard error."""
        _, errors = self.process.communicate("\n" * 10, timeout=2 * PATIENCE)
        assert self.process.returncode == 0, errors
        return errors


def pipe_of(file: IO[str] | None) -> IO[str]:
    """Return a pipe of a process, which is not None."""
    assert file is not None
    return file


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a program whose monitor, if any, has its socket in *folder*."""
    folder.chmod(0o700)
    inherited = {name: value for name, value in os.environ.items() if name != "URINGLOOP_MONITOR"}
    return {**inherited, "XDG_RUNTIME_DIR": str(folder), **variables}


@contextlib.contextmanager
def program(folder: Path, script: str, **variables: str) -> Iterator[Program]:
    """Run *script* with the monitor on, wait for its line "ready", and kill it at the end."""
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
    """Connect to a monitor with a plain socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        # A connect with a timeout would not wait for room in the backlog.
        sock.connect(str(path))
        sock.settimeout(2 * PATIENCE)
        yield sock


def reply_of(sock: socket.socket) -> bytes:
    """Return the bytes up to the end of a line, or up to EOF."""
    received = b""
    while not received.endswith(b"\n"):
        data = sock.recv(65536)
        if not data:
            break
        received += data
    return received


def snapshot_of(path: Path | str) -> Snapshot:
    """Return one snapshot of the monitor at *path*."""
    with connected(path) as sock:
        sock.sendall(b"\n")
        snapshot: Snapshot = json.loads(reply_of(sock))
    assert "loops" in snapshot, snapshot
    return snapshot


def error_of(sock: socket.socket) -> str:
    """Return the error that a monitor sends before it closes the connection."""
    reply: dict[str, str] = json.loads(reply_of(sock))
    assert sock.recv(1) == b""
    return reply["error"]


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
    """Run top until the end of the block."""
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
    """A folder for sockets: a socket's path has 107 bytes at most, too few for pytest's folders."""
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
