"""Web servers with several workers: `python benchmarks/servers.py [--servers A,B] [--loops A,B]`.

The program starts each server with its usual command with four workers on each loop, and sends
requests in three ways: at rest, one connection after the other; with wrk over 40 kept connections;
and with wrk over a new connection for each request. The table shows requests per second and the
smallest share of a worker, relative to an equal distribution (1.00). The loops take turns in each
round; a figure is the median of the rounds.

With `--reload N` the program counts the requests that are aborted while SIGHUP replaces two workers
N times (8 by default). The load consists of clients that open a connection for each request, and of
clients that keep their connections.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from uringloop.bench import markdown as md
from uringloop.bench.rows import Row, cells_of, median_of
from uringloop.bench.settings import HOST

WORKERS = 4
CLIENTS = 40
# At rest: the number of connections, and the pause after each.
CALLS = 200
PAUSE_S = 0.003
# Limits for the start of all workers, and for the exit of a server.
START_S = 60.0
END_S = 10.0
RELOAD_EVERY_S = 1.2
RELOAD_CLIENTS = 8

LOOPS = ("asyncio", "uvloop", "uringloop", "uringloop-soft")

ASGI = """
import os

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        for _ in range(2):
            message = await receive()
            await send({"type": message["type"] + ".complete"})
        return
    headers = [(b"content-length", b"5"), (b"x-pid", b"%d" % os.getpid())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})
"""

SANIC = """
import os

from sanic import Sanic, response

app = Sanic("several")

@app.get("/")
async def answer(request):
    return response.text("hello", headers={"x-pid": str(os.getpid())})
"""

FASTAPI = """
import fastapi

app = fastapi.FastAPI()

@app.get("/")
async def answer():
    return "hello"
"""

AIOHTTP = """
from aiohttp import web

async def answer(request):
    response = web.StreamResponse()
    response.content_length = 7
    await response.prepare(request)
    await response.write(b'"hello"')
    return response

app = web.Application()
app.add_routes([web.get("/", answer)])
"""

# gunicorn's worker for uvicorn on asyncio's loop; by default uvicorn uses uvloop if installed.
WORKER = """
from uvicorn_worker import UvicornWorker

class Worker(UvicornWorker):
    CONFIG_KWARGS = {"loop": "asyncio", "http": "auto"}
"""

# Script for wrk that counts the responses of each worker.
COUNT = """
local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(arguments)
  answers = {}
end

function response(status, headers, body)
  local pid = headers["x-pid"] or headers["X-Pid"]
  answers[pid] = (answers[pid] or 0) + 1
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    "RESULT {\\"rate\\": %f, \\"errors\\": %d, \\"p99_ms\\": %f, \\"answers\\": [",
    summary.requests / summary.duration * 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(99) / 1000))
  local comma = ""
  for _, thread in ipairs(threads) do
    for _, count in pairs(thread:get("answers")) do
      io.write(comma, count)
      comma = ", "
    end
  end
  io.write("]}\\n")
end
"""


# ── servers ──────────────────────────────────────────────────────────────────────────────────────


def program(name: str) -> str:
    """Return the path of a program in the environment of this Python."""
    return str(Path(sys.executable).parent / name)


def command(server: str, loop: str, port: int) -> list[str]:
    """Return the command with which a user starts *server* with four workers on *loop*."""
    ours = loop.startswith("uringloop")
    takeover = [sys.executable, "-m", "uringloop.as_uvloop"] if ours else []
    bind = f"{HOST}:{port}"
    if server == "uvicorn":
        chosen = "uringloop:new_event_loop" if ours else loop
        words = ["uvicorn", "app:app", "--port", str(port), "--loop", chosen]
        return [program(words[0]), *words[1:], "--workers", str(WORKERS), "--log-level", "error"]
    if server == "gunicorn":
        return [program("gunicorn"), "app:app", *gunicorn_options(loop, WORKERS, bind)]
    if server == "hypercorn":
        words = ["app:app", "-w", str(WORKERS), "-b", bind, "--log-level", "ERROR"]
        return [*takeover, program("hypercorn"), "-k", "uvloop" if ours else loop, *words]
    if server == "sanic":
        words = ["sanic_app:app", "-w", str(WORKERS), "-p", str(port), "--no-access-logs"]
        return [*takeover, program("sanic"), *words, "--no-motd"]
    if server == "granian":
        granian = [program("granian"), "--loop", loop]
        if ours:
            granian = [sys.executable, "-m", "uringloop.workers.granian"]
        words = ["--interface", "asgi", "--workers", str(WORKERS), "--port", str(port)]
        return [*granian, *words, "--no-access-log", "--log-level", "error", "app:app"]
    raise ValueError(f"unknown server: {server}")


SERVERS = ("uvicorn", "gunicorn", "hypercorn", "sanic", "granian")


# Servers whose workers SIGHUP replaces.
RELOADING = ("gunicorn", "aiohttp", "uvicorn")
WAYS = ("new", "kept")


def command_of_reload(server: str, loop: str, port: int) -> list[str]:
    """Return the command that starts *server* with two workers, which SIGHUP replaces."""
    ours = loop.startswith("uringloop")
    if server == "gunicorn":
        options = gunicorn_options(loop, 2, f"{HOST}:{port}")
        return [program("gunicorn"), "fastapi_app:app", *options]
    if server == "aiohttp":
        kinds = {
            "asyncio": "aiohttp.GunicornWebWorker",
            "uvloop": "aiohttp.GunicornUVLoopWebWorker",
        }
        kind = kinds.get(loop, "uringloop.workers.aiohttp.Worker")
        words = ["-w", "2", "-b", f"{HOST}:{port}", "-k", kind, "--log-level", "error"]
        return [program("gunicorn"), "aiohttp_app:app", *words]
    words = ["fastapi_app:app", "--port", str(port), "--workers", "2", "--log-level", "error"]
    if ours:
        return [sys.executable, "-m", "uringloop.workers.uvicorn_server", *words]
    return [program("uvicorn"), *words, "--loop", loop]


def gunicorn_options(loop: str, workers: int, bind: str) -> list[str]:
    kinds = {"asyncio": "asyncio_worker.Worker", "uvloop": "uvicorn_worker.UvicornWorker"}
    kind = kinds.get(loop, "uringloop.workers.uvicorn.Worker")
    return ["-w", str(workers), "-b", bind, "-k", kind, "--log-level", "error"]


def environment(loop: str) -> dict[str, str]:
    variables = {**os.environ, "URINGLOOP_WARN_FALLBACK": "0", "PYTHONPATH": os.curdir}
    variables.pop("PYTHONSAFEPATH", None)
    variables.pop("URINGLOOP_BACKEND", None)
    if loop == "uringloop-soft":
        variables["URINGLOOP_BACKEND"] = "soft"
    elif loop == "asyncio":
        # Sanic uses uvloop if it is installed.
        variables["SANIC_USE_UVLOOP"] = "false"
    return variables


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def answering_pid(port: int) -> str:
    """Send a request on a new connection; return the process that answers."""
    client = http.client.HTTPConnection(HOST, port, timeout=10)
    with contextlib.closing(client):
        client.request("GET", "/", headers={"Connection": "close"})
        response = client.getresponse()
        response.read()
        return str(response.headers["x-pid"])


@contextlib.contextmanager
def running(words: list[str], loop: str, port: int, folder: Path) -> Iterator[int]:
    """Run a server in *folder*; when it answers, yield the id of its main process."""
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment(loop),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            end = time.monotonic() + START_S
            while True:
                try:
                    answering_pid(port)
                    break
                except OSError as exc:
                    if process.poll() is not None or time.monotonic() > end:
                        output.seek(0)
                        raise RuntimeError(f"{words} does not serve:\n{output.read()}") from exc
                    time.sleep(0.05)
            yield process.pid
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and its workers."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# ── measurements ─────────────────────────────────────────────────────────────────────────────────


def share(answers: list[int]) -> float:
    """Return the smallest share of a worker: 1 is equal; 0 means that it answered no request."""
    if len(answers) < WORKERS:
        return 0.0
    return min(answers) * WORKERS / sum(answers)


def workers_seen(port: int) -> int:
    """Return how many workers answer a few requests."""
    return len({answering_pid(port) for _ in range(4 * WORKERS)})


def at_rest(port: int) -> list[int]:
    answers: collections.Counter[str] = collections.Counter()
    for _ in range(CALLS):
        answers[answering_pid(port)] += 1
        time.sleep(PAUSE_S)
    return list(answers.values())


def load(port: int, folder: Path, seconds: float, kept: bool) -> dict[str, Any]:
    """Run wrk and return its results."""
    words = ["wrk", "-t1", f"-c{CLIENTS}", f"-d{seconds:g}s", "-s", str(folder / "count.lua")]
    if not kept:
        words += ["-H", "Connection: close"]
    words.append(f"http://{HOST}:{port}/")
    output = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    for line in output.splitlines():
        if line.startswith("RESULT "):
            report: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return report
    raise RuntimeError(f"wrk: {output}")


def measure(server: str, loop: str, seconds: float) -> dict[str, Any]:
    """Start a server on a loop once and return its figures."""
    port = unused_port()
    with prepared() as folder, running(command(server, loop, port), loop, port, folder):
        # Wait for all workers, not only for the first.
        end = time.monotonic() + START_S
        while workers_seen(port) < WORKERS and time.monotonic() < end:
            time.sleep(0.05)
        rest = at_rest(port)
        kept = load(port, folder, seconds, kept=True)
        fresh = load(port, folder, seconds, kept=False)
    return {"rest": share(rest), "kept": summary(kept), "fresh": summary(fresh)}


def summary(report: dict[str, Any]) -> dict[str, float]:
    return {
        "rate": report["rate"],
        "errors": report["errors"],
        "p99_ms": report["p99_ms"],
        "share": share(report["answers"]),
    }


@contextlib.contextmanager
def prepared() -> Iterator[Path]:
    """Yield a folder with the applications and the script for wrk."""
    with tempfile.TemporaryDirectory(prefix="uringloop-servers-") as name:
        folder = Path(name)
        (folder / "app.py").write_text(ASGI)
        (folder / "sanic_app.py").write_text(SANIC)
        (folder / "fastapi_app.py").write_text(FASTAPI)
        (folder / "aiohttp_app.py").write_text(AIOHTTP)
        (folder / "asyncio_worker.py").write_text(WORKER)
        (folder / "count.lua").write_text(COUNT)
        yield folder


# ── reload ───────────────────────────────────────────────────────────────────────────────────────


class Clients:
    """Threads that send requests, and count answered and aborted requests."""

    def __init__(self, port: int, way: str) -> None:
        self.address = (HOST, port)
        self.requests = self._new if way == "new" else self._kept
        self.counts: collections.Counter[str] = collections.Counter()
        self.lock = threading.Lock()
        self.stopping = False
        self.threads = [threading.Thread(target=self._load) for _ in range(RELOAD_CLIENTS)]

    def _load(self) -> None:
        counts: collections.Counter[str] = collections.Counter()
        with contextlib.closing(http.client.HTTPConnection(*self.address, timeout=10)) as client:
            while not self.stopping:
                counts[self.requests(client)] += 1
        with self.lock:
            self.counts += counts

    def _kept(self, client: http.client.HTTPConnection) -> str:
        """Send a request on the connection of *client*, or on a new one if a response ended it."""
        try:
            client.request("GET", "/")
            answered = client.getresponse().read() == b'"hello"'
        except (OSError, http.client.HTTPException):
            client.close()
            answered = False
        return "answered" if answered else "aborted"

    def _new(self, _: http.client.HTTPConnection) -> str:
        """Send a request on a connection of its own."""
        try:
            with socket.create_connection(self.address, 10) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                response = b""
                while part := sock.recv(4096):
                    response += part
        except OSError:
            return "aborted"
        return "answered" if response.endswith(b'"hello"') else "aborted"


def reload(loop: str, server: str, way: str, reloads: int) -> dict[str, int]:
    """Replace the workers under load; return how many requests were answered and aborted."""
    port = unused_port()
    words = command_of_reload(server, loop, port)
    with prepared() as folder, running(words, loop, port, folder) as pid:
        clients = Clients(port, way)
        for thread in clients.threads:
            thread.start()
        for _ in range(reloads):
            time.sleep(RELOAD_EVERY_S)
            os.kill(pid, signal.SIGHUP)
        time.sleep(RELOAD_EVERY_S)
        clients.stopping = True
        for thread in clients.threads:
            thread.join()
    return {name: clients.counts[name] for name in ("answered", "aborted")}


# ── the report ───────────────────────────────────────────────────────────────────────────────────


# The figures of one loop, one item for each round.
Rounds = list[dict[str, Any]]


def in_rounds(
    name: str, loops: list[str], rounds: int, measure: Callable[[str], dict[str, Any]]
) -> dict[str, Rounds]:
    """Measure the loops in turns; return the rounds of each."""
    row = Row[dict[str, Any]](name, cells=cells_of(loops))
    row.measure(rounds, measure, lambda cell: None)
    return {loop: cell.rounds for loop, cell in row.cells.items()}


def table(found: dict[str, dict[str, Rounds]]) -> list[str]:
    headings = ["Server", "Loop", "Share at rest", "Kept: requests/s", "Share"]
    headings += ["New: requests/s", "Share", "Errors"]
    rows = []
    for server, loops in found.items():
        for loop, runs in loops.items():
            figures = [f"{median_of([run['rest'] for run in runs]).value:.2f}"]
            for way in ("kept", "fresh"):
                figures.append(f"{median_of([run[way]['rate'] for run in runs]).value:,.0f}")
                figures.append(f"{median_of([run[way]['share'] for run in runs]).value:.2f}")
            errors = sum(run[way]["errors"] for run in runs for way in ("kept", "fresh"))
            rows.append([server, loop, *figures, f"{errors:.0f}"])
    return md.table(headings, rows, headings[:2])


def table_of_reloads(found: dict[str, dict[str, Rounds]]) -> list[str]:
    rows = []
    for name, loops in found.items():
        for loop, runs in loops.items():
            aborted = ", ".join(str(run["aborted"]) for run in runs)
            rows.append([name, loop, aborted, f"{sum(run['answered'] for run in runs):,}"])
    headings = ["Server, connections", "Loop", "Aborted in each run", "Answered"]
    return md.table(headings, rows, headings[:2])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--servers", help=f"({','.join(SERVERS)}; reloads: {','.join(RELOADING)})")
    parser.add_argument("--loops", default="uvloop,uringloop", help=f"any of {', '.join(LOOPS)}")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="per load (%(default)s)")
    parser.add_argument("--reload", type=int, nargs="?", const=8, help="count aborted requests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args()
    loops = options.loops.split(",")
    known = RELOADING if options.reload else SERVERS
    servers = options.servers.split(",") if options.servers else known
    if unknown := (set(loops) - set(LOOPS)) | (set(servers) - set(known)):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    found: dict[str, dict[str, Rounds]] = {}
    if options.reload:
        for server in servers:
            for way in WAYS:
                replaced = functools.partial(reload, server=server, way=way, reloads=options.reload)
                found[f"{server}, {way}"] = in_rounds(server, loops, options.rounds, replaced)
        lines = table_of_reloads(found)
    else:
        if shutil.which("wrk") is None:
            parser.error("wrk is not installed")
        for server in servers:
            started = functools.partial(measure, server, seconds=options.seconds)
            found[server] = in_rounds(server, loops, options.rounds, started)
        lines = table(found)
    print("\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
