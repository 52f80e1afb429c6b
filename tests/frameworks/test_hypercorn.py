"""hypercorn on this loop: `python -m uringloop.workers.hypercorn`, with several workers."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs import Connect, connector, needs, process, python, request_concurrently, speak_http

needs("hypercorn")

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent

SERVED = """
import asyncio, os
from application import app as inner

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        loop = type(asyncio.get_running_loop())
        print(f"startup of {os.getpid()} on {loop.__module__}.{loop.__name__}", flush=True)
    await inner(scope, receive, send)
"""

# Starts hypercorn itself; the workers that it spawns import this program.
PROGRAM = """
import hypercorn.run
from hypercorn.config import Config
import uringloop.workers.hypercorn

if __name__ == "__main__":
    config = Config.from_mapping(bind="127.0.0.1:0", workers=2, accesslog=None)
    config.application_path = "served:app"
    raise SystemExit(hypercorn.run.run(config))
"""


@contextmanager
def serving(folder: Path, command: Sequence[str], workers: int) -> Iterator[Connect]:
    """Run *command*, whose workers serve on a free port, and end it gracefully."""
    (folder / "served.py").write_text(SERVED)
    path = os.pathsep.join([str(HERE), str(folder), *filter(None, [os.getenv("PYTHONPATH")])])
    with process(command, environment={"PYTHONPATH": path}, cwd=folder) as running:
        for _ in range(workers):
            port = int(running.read_until(r"Running on http://127\.0\.0\.1:(\d+)")[1])
        yield connector(("127.0.0.1", port))
        assert running.stop(signal.SIGTERM) == 0
    started = re.findall(r"^startup of (\d+) on (\S+)$", running.output, re.MULTILINE)
    assert len({pid for pid, _ in started}) == workers
    assert {loop for _, loop in started} == {"uringloop.loop.Loop"}


@pytest.mark.parametrize("options", [[], ["-k", "asyncio"], ["--workers", "2"]])
def test_the_command_serves_on_this_loop(tmp_path: Path, options: list[str]) -> None:
    command = python("-m", "uringloop.workers.hypercorn", "--bind", "127.0.0.1:0", *options)
    with serving(tmp_path, [*command, "served:app"], 2 if "2" in options else 1) as connect:
        speak_http(connect)
        request_concurrently(connect)


def test_a_program_can_start_hypercorn_on_this_loop(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with serving(tmp_path, python(str(program)), 2) as connect:
        speak_http(connect)
