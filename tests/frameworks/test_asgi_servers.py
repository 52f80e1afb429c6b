"""hypercorn and gunicorn serve the application of application.py; FastAPI by uvicorn's command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from application import LARGE, app
from programs import (
    HERE,
    Address,
    Certificate,
    Process,
    check_http,
    connector,
    needs,
    needs_elsewhere,
    process,
    program,
    python,
    quiet,
    request_concurrently,
    speak_http,
)
from support.roles import PATIENCE, Loop

pytestmark = quiet


# ── hypercorn ─────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def serving_with_hypercorn(**settings: Any) -> AsyncIterator[Address]:
    """Serve on a free port on the running loop, and shut down gracefully."""
    needs("hypercorn")
    serve = needs("hypercorn.asyncio").serve
    config = needs("hypercorn.config").Config.from_mapping(
        bind=["127.0.0.1:0"], errorlog=None, include_date_header=False, **settings
    )
    # The sockets are created here, to know the port, and used by serve().
    sockets = config.create_sockets()
    config.create_sockets = lambda: sockets
    listener = (sockets.secure_sockets or sockets.insecure_sockets)[0]
    # Clients that connect before hypercorn listens wait in the backlog.
    listener.listen()
    ended = asyncio.Event()
    # The task group ends the block if the server fails.
    with contextlib.closing(listener):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(serve(app, config, shutdown_trigger=ended.wait))
            try:
                yield listener.getsockname()
            finally:
                ended.set()
                await asyncio.wait([task], timeout=PATIENCE)


@pytest.mark.slow
@program
async def test_hypercorn_serves_bodies_of_every_kind(each_loop: Loop) -> None:
    async with serving_with_hypercorn() as address:
        await check_http(address)


@pytest.mark.slow
@program
async def test_hypercorn_serves_over_tls(each_loop: Loop, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    files = {"certfile": str(certificate.chain), "keyfile": str(certificate.key)}
    async with serving_with_hypercorn(**files) as address:
        await check_http(address, certificate.client())


def speak_http2(address: Address) -> None:
    """Request many pages concurrently on one connection."""
    httpx = needs("httpx")
    needs("h2")

    async def main() -> None:
        limits = httpx.Limits(max_connections=1)
        async with httpx.AsyncClient(http1=False, http2=True, limits=limits) as client:
            url = "http://{}:{}".format(*address)
            for path, body in (("/small", b"hello"), ("/large", LARGE)):
                answers = await asyncio.gather(*(client.get(url + path) for _ in range(20)))
                assert {answer.http_version for answer in answers} == {"HTTP/2"}
                assert {answer.content for answer in answers} == {body}
            echoed = await client.post(url + "/echo", content=LARGE)
            assert echoed.content == LARGE

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(main())


@pytest.mark.slow
@program
async def test_hypercorn_serves_http_2(each_loop: Loop) -> None:
    async with serving_with_hypercorn() as address:
        await asyncio.to_thread(speak_http2, address)


HYPERCORN = """
import asyncio
import uringloop
from application import app
from hypercorn.asyncio import serve
from hypercorn.config import Config

async def told(scope, receive, send):
    if scope["type"] == "lifespan":
        print("loop:", type(asyncio.get_running_loop()).__module__)
    await app(scope, receive, send)

uringloop.run(serve(told, Config.from_mapping(bind="127.0.0.1:0")))
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_hypercorn_program_runs_with_uringloop_run(end: signal.Signals) -> None:
    needs_elsewhere("hypercorn")
    path = os.pathsep.join([str(HERE), *filter(None, [os.getenv("PYTHONPATH")])])
    with process(python("-c", HYPERCORN), environment={"PYTHONPATH": path}) as running:
        running.read_until("loop: uringloop.loop$")
        port = int(running.read_until(r"Running on http://127\.0\.0\.1:(\d+)")[1])
        speak_http(connector(("127.0.0.1", port)))
        assert running.stop(end) == 0


# ── FastAPI ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_uvicorn_command_serves_fastapi() -> None:
    needs_elsewhere("fastapi")
    needs_elsewhere("uvicorn")
    command = python("-m", "uvicorn", "fastapi_application:api", "--app-dir", str(HERE))
    with process([*command, "--port", "0", "--loop", "uringloop:new_event_loop"]) as running:
        port = int(running.read_until(r"running on http://127\.0\.0\.1:(\d+)")[1])
        with contextlib.closing(connector(("127.0.0.1", port))()) as client:
            order = json.dumps({"name": "tea", "count": 2})
            client.request("POST", "/orders", order, {"Content-Type": "application/json"})
            answer = json.loads(client.getresponse().read())
        assert answer == {"name": "tea", "count": 3, "loop": "uringloop.loop"}
        assert running.stop(signal.SIGTERM) in (-signal.SIGTERM, 0)
        assert "Finished server process" in running.output


# ── gunicorn ──────────────────────────────────────────────────────────────────────────────────

WORKER = """
from uvicorn_worker import UvicornWorker

class Worker(UvicornWorker):
    CONFIG_KWARGS = {"loop": "uringloop:new_event_loop", "http": "httptools", "lifespan": "on"}
"""


def read_starts(running: Process, count: int) -> None:
    """Read the output until *count* workers have started: before, a worker ends without a word."""
    while running.output.count("Application startup complete") < count:
        running.read_until("Application startup complete")


@pytest.mark.slow
def test_gunicorn_replaces_a_killed_worker_and_shuts_down_gracefully(tmp_path: Path) -> None:
    needs_elsewhere("gunicorn")
    needs_elsewhere("uvicorn_worker")
    (tmp_path / "worker.py").write_text(WORKER)
    command = python("-m", "gunicorn", "application:app", "-k", "worker.Worker", "-w", "2")
    command += ["--bind", "127.0.0.1:0", "--pythonpath", f"{HERE},{tmp_path}"]
    command += ["--worker-tmp-dir", str(tmp_path)]
    # gunicorn puts its control socket into XDG_RUNTIME_DIR, and imports from its working folder.
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with process(command, environment=runtime, cwd=tmp_path) as running:
        port = int(running.read_until(r"Listening at: http://127\.0\.0\.1:(\d+)")[1])
        workers = [int(running.read_until(r"Booting worker with pid: (\d+)")[1]) for _ in range(2)]
        read_starts(running, 2)
        connect = connector(("127.0.0.1", port))
        speak_http(connect)
        request_concurrently(connect)
        os.kill(workers[0], signal.SIGKILL)
        workers[0] = int(running.read_until(r"Booting worker with pid: (\d+)")[1])
        read_starts(running, 3)
        speak_http(connect)
        request_concurrently(connect)
        assert running.stop(signal.SIGTERM) == 0
        shut_down = re.findall(r"Finished server process \[(\d+)\]", running.output)
        assert sorted(map(int, shut_down)) == sorted(workers)
