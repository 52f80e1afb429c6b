"""Programs that use uvloop, run by `python -m uringloop.as_uvloop`, serve on uringloop.

Each is started by its own command, with two worker processes if it has any.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from programs import Process, needs, needs_elsewhere, process, python
from support.roles import PATIENCE, unused_port, wait_until

LOOK = """
import asyncio
import os
import uvloop

def look():
    loop = asyncio.get_running_loop()
    kind = type(loop).__mro__[1]
    assert type(loop) is uvloop.Loop
    return f"{os.getpid()} {kind.__module__}.{kind.__name__}"
"""

ASGI = """
import os
from look import look

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            print(f"{message['type']} of {os.getpid()}\\n", end="", flush=True)
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    body = look().encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""

SANIC = """
import os
import sanic
from look import look

app = sanic.Sanic("Served")

@app.after_server_start
async def started(app):
    print(f"lifespan.startup of {os.getpid()}\\n", end="", flush=True)

@app.get("/")
async def page(request):
    return sanic.response.text(look())
"""

AIOHTTP = """
import os
from aiohttp import web
from look import look

async def started(app):
    print(f"lifespan.startup of {os.getpid()}\\n", end="", flush=True)

async def page(request):
    return web.Response(text=look())

async def make():
    app = web.Application()
    app.on_startup.append(started)
    app.router.add_get("/", page)
    return app
"""


def ask(port: int) -> str:
    """Return the server's answer on a new connection: its process id and its loop."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(client):
        client.request("GET", "/")
        response = client.getresponse()
        assert response.status == 200
        return response.read().decode()


def answers(port: int) -> bool:
    try:
        ask(port)
    except ConnectionError:
        return False
    return True


@contextlib.contextmanager
def serving(
    folder: Path, command: Sequence[str], port: int, workers: int
) -> Iterator[tuple[Process, set[str]]]:
    """Run *command* under as_uvloop, and wait for as_uvloop's line and the start of *workers*."""
    for name, text in {"look": LOOK, "asgi": ASGI, "served": SANIC, "web": AIOHTTP}.items():
        (folder / f"{name}.py").write_text(text)
    # PATH has the commands of this environment, PYTHONPATH the modules above. uvicorn's parent
    # process does not close its socket.
    environment = {
        "PYTHONWARNINGS": "ignore::ResourceWarning",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.getenv("PYTHONPATH")])]),
    }
    started = python("-m", "uringloop.as_uvloop", *command)
    with process(started, environment=environment, cwd=folder) as running:
        running.read_until(r"uringloop.as_uvloop: `import uvloop` gives uringloop \d")
        pids = {running.read_until(r"lifespan\.startup of (\d+)")[1] for _ in range(workers)}
        wait_until(lambda: answers(port))
        yield running, pids


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "command", "workers"),
    [
        ("uvicorn", "uvicorn asgi:app --port {port} --loop uvloop", 1),
        ("uvicorn", "-m uvicorn asgi:app --port {port} --workers 2", 2),
        ("hypercorn", "hypercorn -k uvloop -w 2 -b 127.0.0.1:{port} asgi:app", 2),
        ("granian", "granian --interface asgi --loop uvloop --workers 2 --port {port} asgi:app", 2),
        ("uvicorn_worker", "gunicorn -w 2 -k uvicorn_worker.UvicornWorker {bind} asgi:app", 2),
        ("aiohttp", "gunicorn -w 2 -k aiohttp.GunicornUVLoopWebWorker {bind} web:make", 2),
        ("sanic", "sanic served:app --host 127.0.0.1 --port {port} --workers 2", 2),
        ("sanic", "sanic served:app --host 127.0.0.1 --port {port} --single-process", 1),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.skipif(sys.version_info >= (3, 16), reason="these set policies")
def test_a_server_that_uses_uvloop_serves_on_uringloop(
    package: str, command: str, workers: int, tmp_path: Path
) -> None:
    needs_elsewhere(package)
    port = unused_port()
    words = command.format(port=port, bind=f"-b 127.0.0.1:{port}").split()
    with serving(tmp_path, words, port, workers) as (running, pids):
        for _ in range(20):
            pid, kind = ask(port).split()
            assert (pid in pids, kind) == (True, "uringloop.loop.Loop")
        if package == "sanic" and workers > 1:
            # Sanic loses a signal that arrives while its workers start, on any loop.
            return
        status = running.stop(signal.SIGINT if package == "granian" else signal.SIGTERM)
    # After its shutdown uvicorn raises the signal again.
    assert status in (0, -signal.SIGTERM)
    assert not re.search(r"\[?(ERROR|CRITICAL)\b", running.output), running.output


@pytest.mark.slow
def test_anyio_uses_uringloop_as_uvloop(tmp_path: Path) -> None:
    needs("anyio")
    (tmp_path / "look.py").write_text(LOOK)
    script = tmp_path / "script.py"
    script.write_text(
        "import anyio, look\n"
        "async def main(): print(look.look())\n"
        'anyio.run(main, backend_options={"use_uvloop": True})\n'
    )
    command = python("-m", "uringloop.as_uvloop", str(script))
    with process(command, environment={"PYTHONPATH": str(tmp_path)}) as running:
        assert running.wait() == 0
    assert "uringloop.loop.Loop" in running.output
