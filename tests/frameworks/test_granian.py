"""granian serves the application: by its command and by a program, with forked and spawned workers.

granian handles connections in Rust, without the loop; the loop runs the application.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from application import LARGE
from programs import (
    HERE,
    Connect,
    connector,
    needs,
    needs_elsewhere,
    process,
    python,
    request_concurrently,
    speak_http,
)
from support.roles import in_thread, listens, unused_port, wait_until

from uringloop._cpython import gil

needs_elsewhere("granian")

# The application of the other servers' tests, which also prints the loop that it runs on.
SERVED = """
import asyncio
import os
import application

def tell(what):
    loop = type(asyncio.get_running_loop())
    print(f"{what} of {os.getpid()} on {loop.__module__}.{loop.__name__}\\n", end="")

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        tell("startup")
    await application.app(scope, receive, send)
    if scope["type"] == "lifespan":
        tell("shutdown")
"""

PROGRAM = """
import multiprocessing
import sys
import granian
import uringloop.workers.granian

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    granian.Granian(
        "served:app", port=int(sys.argv[2]), interface="asgi", loop=sys.argv[3], workers=2
    ).serve()
"""


@contextmanager
def serving(folder: Path, command: Sequence[str], port: int) -> Iterator[Connect]:
    """Run *command*, which has two workers that serve on *port*, and end it gracefully."""
    (folder / "served.py").write_text(SERVED)
    path = os.pathsep.join([str(HERE), str(folder), *filter(None, [os.getenv("PYTHONPATH")])])
    with process(command, environment={"PYTHONPATH": path}, cwd=folder) as running:
        # Two lines for each worker: its start, and the startup of its application.
        for _ in range(4):
            running.read_until(r"Started worker-\d|startup of \d+")
        # The workers print that before they listen.
        wait_until(lambda: listens(port))
        yield connector(("127.0.0.1", port))
        assert running.stop(signal.SIGTERM) == 0
    events = re.findall(r"^(\w+) of (\d+) on (\S+)$", running.output, re.MULTILINE)
    pids = [pid for what, pid, _ in events if what == "startup"]
    assert len(pids) == 2
    # Without a GIL granian's workers are threads of one process.
    assert len(set(pids)) == (1 if gil.free_threaded() else 2)
    loop = "uringloop.loop.Loop"
    assert sorted(events) == sorted((w, pid, loop) for w in ("startup", "shutdown") for pid in pids)


# The loop must be registered in spawned interpreters, too; since 3.14 fork is not the default.
each_method = pytest.mark.parametrize("method", ["fork", "spawn"])


@pytest.mark.slow
@each_method
def test_the_command_serves_bodies_of_every_kind(tmp_path: Path, method: str) -> None:
    early = tmp_path / "sitecustomize.py"
    early.write_text(f"import multiprocessing; multiprocessing.set_start_method({method!r})")
    port = unused_port()
    command = python("-m", "uringloop.workers.granian", "--interface", "asgi", "served:app")
    with serving(tmp_path, [*command, "--port", str(port), "--workers", "2"], port) as connect:
        speak_http(connect)
        request_concurrently(connect)


@pytest.mark.slow
def test_the_command_serves_websockets(tmp_path: Path) -> None:
    client = needs("websockets.sync.client")
    port = unused_port()
    command = python("-m", "uringloop.workers.granian", "--interface", "asgi", "served:app")

    def talk() -> None:
        with client.connect(f"ws://127.0.0.1:{port}/", max_size=None) as connection:
            for message in ("", "text", b"", b"\x00\xff", "é" * 70_000, LARGE):
                connection.send(message)
                assert connection.recv() == message

    with serving(tmp_path, [*command, "--port", str(port), "--workers", "2"], port):
        in_thread(talk)


@pytest.mark.slow
@each_method
@pytest.mark.parametrize("loop", ["auto", "uringloop"])
def test_a_program_can_choose_the_loop_by_name(tmp_path: Path, method: str, loop: str) -> None:
    port = unused_port()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = python(str(program), method, str(port), loop)
    with serving(tmp_path, command, port) as connect:
        speak_http(connect)
