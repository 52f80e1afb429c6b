"""gunicorn with the workers of `uringloop.workers`: reload, shutdown, inherited loops, output.

The applications print the startup and the shutdown of each worker, and its loop.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from programs import HERE, Address, Process, connector, needs_elsewhere, process, python
from support import seccomp
from support.roles import TIME_LIMIT, listens, run_script, unused_port, wait_until

# Each line is one write, since two processes write to the same pipe. A request lasts as long as the
# connection to the port in its path. A request that is sent in parts would not do: aiohttp reads no
# more of a request during its shutdown.
COMMON = """
import asyncio
import os

def tell(what):
    loop = type(asyncio.get_running_loop())
    print(f"{what} of {os.getpid()} on {loop.__module__}.{loop.__name__}\\n", end="")

async def answer_later(path):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(path[1:]))
    await reader.read()
    writer.close()
    await writer.wait_closed()
    return str(os.getpid()).encode()
"""

ANSWER = 'await answer_later(scope["path"])'

UVICORN = f"""{COMMON}
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        for what in ("startup", "shutdown"):
            message = await receive()
            tell(what)
            await send({{"type": message["type"] + ".complete"}})
        return
    body = {ANSWER}
    await send({{"type": "http.response.start", "status": 200}})
    await send({{"type": "http.response.body", "body": body}})
"""

AIOHTTP = f"""{COMMON}
from aiohttp import web

async def answer(request):
    return web.Response(body=await answer_later(request.path))

async def startup(app):
    tell("startup")

async def cleanup(app):
    tell("shutdown")

app = web.Application()
app.add_routes([web.get("/{{port}}", answer)])
app.on_startup.append(startup)
app.on_cleanup.append(cleanup)
"""

# Deprecations of loops and policies; gunicorn's own deprecated calls, as of threads, do not count.
DEPRECATED = re.compile(r"DeprecationWarning: .*(loop|[Pp]olic)")


class Kind(NamedTuple):
    """A class of workers, the packages that it needs, and an application for it."""

    name: str
    packages: tuple[str, ...]
    application: str


KINDS = [
    Kind("uvicorn", ("gunicorn", "uvicorn_worker"), UVICORN),
    Kind("aiohttp", ("gunicorn", "aiohttp"), AIOHTTP),
]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])


class Server:
    """gunicorn with two workers; `workers` are the process ids of those that run."""

    def __init__(self, running: Process) -> None:
        self.running = running
        port = running.read_until(r"Listening at: http://127\.0\.0\.1:(\d+)")[1]
        self.address: Address = ("127.0.0.1", int(port))
        self.workers: set[int] = set()
        self.read_changes(2)

    def read_changes(self, count: int) -> None:
        """Read the output until *count* workers have started or shut down."""
        for _ in range(count):
            event = self.running.read_until(r"(startup|shutdown) of (\d+) on (\S+)")
            assert event[3] == "uringloop.loop.Loop"
            change = self.workers.add if event[1] == "startup" else self.workers.remove
            change(int(event[2]))

    @contextlib.contextmanager
    def request(self) -> Iterator[Callable[[], int]]:
        """Start a request; yield a function that ends it and returns the worker's process id."""
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            contextlib.closing(connector(self.address)()) as client,
        ):
            listener.settimeout(TIME_LIMIT)
            client.request("GET", f"/{listener.getsockname()[1]}")
            lasting = listener.accept()[0]

            def end() -> int:
                lasting.close()
                answer = client.getresponse()
                assert answer.status == 200
                return int(answer.read())

            with lasting:
                yield end


@contextlib.contextmanager
def gunicorn(
    kind: Kind, folder: Path, *options: str, under: Sequence[str] = (), **variables: str
) -> Iterator[Process]:
    """Run gunicorn for the application in *folder*, and check all of the output at the end.

    *under* is a command that executes the command after it.
    """
    for package in kind.packages:
        needs_elsewhere(package)
    command = python("-m", "gunicorn", "served:app", "-k", f"uringloop.workers.{kind.name}.Worker")
    command += ["-w", "2", "--bind", "127.0.0.1:0", "--pythonpath", f"{HERE},{folder}"]
    command += ["--worker-tmp-dir", str(folder), *options]
    environment = {
        # gunicorn puts its control socket there.
        "XDG_RUNTIME_DIR": str(folder),
        "PYTHONWARNINGS": "default::ResourceWarning,default::DeprecationWarning",
        **variables,
    }
    with process([*under, *command], environment=environment, cwd=folder) as running:
        yield running
    assert not DEPRECATED.search(running.output), running.output


@contextlib.contextmanager
def serving(kind: Kind, folder: Path, *options: str, **others: Any) -> Iterator[Server]:
    """Do the same, and wait until it serves."""
    with gunicorn(kind, folder, *options, **others) as running:
        yield Server(running)


@pytest.mark.slow
@each_kind
def test_a_reload_replaces_workers_without_ending_requests(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(kind.application)
    with serving(kind, tmp_path) as server:
        before = set(server.workers)
        with server.request() as end:
            server.running.running.send_signal(signal.SIGHUP)
            # Both new workers start, and the idle one of the old workers shuts down.
            server.read_changes(3)
            assert len(server.workers - before) == 2
            (busy,) = before & server.workers
            assert end() == busy
        server.read_changes(1)
        assert server.workers.isdisjoint(before)
        with server.request() as end:
            assert end() in server.workers
        assert server.running.stop(signal.SIGTERM) == 0


@pytest.mark.slow
@each_kind
def test_shutdown_waits_for_requests(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(kind.application)
    with serving(kind, tmp_path) as server:
        with server.request() as end:
            server.running.running.send_signal(signal.SIGTERM)
            server.read_changes(1)
            (busy,) = server.workers
            assert end() == busy
        server.read_changes(1)
        assert server.running.wait() == 0
        assert server.workers == set()


@pytest.mark.slow
@each_kind
def test_worker_connections_limit_the_clients_of_each_worker(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(kind.application)
    with serving(kind, tmp_path, "--worker-connections", "1") as server:
        with (
            server.request() as first,
            socket.create_server(("127.0.0.1", 0)) as listener,
            contextlib.closing(connector(server.address)()) as third,
        ):
            with server.request() as second:
                third.request("GET", f"/{listener.getsockname()[1]}")
                listener.settimeout(0.5)
                with pytest.raises(TimeoutError):
                    listener.accept()
                assert {first(), second()} == server.workers
            # The client of the second has closed its connection.
            listener.settimeout(TIME_LIMIT)
            listener.accept()[0].close()
            assert third.getresponse().status == 200
        assert server.running.stop(signal.SIGTERM) == 0


@pytest.mark.slow
@each_kind
def test_no_worker_connections_are_no_limit(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(kind.application)
    with serving(kind, tmp_path, "--worker-connections", "0") as server:
        with contextlib.ExitStack() as stack:
            ends = [stack.enter_context(server.request()) for _ in range(6)]
            assert {end() for end in ends} <= server.workers
        assert server.running.stop(signal.SIGTERM) == 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--workers", "2"], ["--reload"]], ids=" ".join)
def test_uvicorns_command_answers_a_last_request(options: list[str], tmp_path: Path) -> None:
    needs_elsewhere("uvicorn")
    (tmp_path / "served.py").write_text(UVICORN.replace(ANSWER, 'repr(scope["path"]).encode()'))
    port = unused_port()
    command = python("-m", "uringloop.workers.uvicorn_server", "served:app", "--port", str(port))
    command += ["--app-dir", str(tmp_path), *options]
    # uvicorn's main process does not close its socket.
    with process(command, environment={"PYTHONWARNINGS": ""}, cwd=tmp_path) as running:
        running.read_until("Application startup complete")
        # It does not listen yet.
        wait_until(lambda: listens(port))
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as client:
            end = None
            for number in range(1000):
                client.request("GET", f"/{number}")
                response = client.getresponse()
                assert response.read() == b"'/%d'" % number
                if end := response.headers["connection"]:
                    break
                if number == 0:
                    running.running.send_signal(signal.SIGTERM)
                time.sleep(0.01)
            assert end == "close"
        running.wait()


ENDING_AIOHTTP = """
    import asyncio
    import uringloop
    from aiohttp import web
    from uringloop.workers.aiohttp import Runner

    async def answer(request):
        started.set()
        await over.wait()
        return web.Response(status=204)

    async def main():
        global started, over
        started, over = asyncio.Event(), asyncio.Event()
        app = web.Application()
        app.add_routes([web.get("/", answer)])
        runner = Runner(app, keepalive_timeout=75)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        reader, writer = await asyncio.open_connection(*runner.addresses[0])
        writer.write(b"GET / HTTP/1.1\\r\\nHost: here\\r\\n\\r\\n")
        await started.wait()
        ending = asyncio.create_task(runner.cleanup())
        await asyncio.sleep(0)
        over.set()
        print((await reader.read()).decode().lower())
        writer.close()
        await ending

    uringloop.run(main())
"""


@pytest.mark.slow
def test_aiohttp_tells_the_client_of_a_request_in_progress_of_the_end() -> None:
    for package in ("gunicorn", "aiohttp"):
        needs_elsewhere(package)
    ended = run_script(ENDING_AIOHTTP)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("http/1.1 204")
    assert ended.stdout.splitlines().count("connection: close") == 1


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("module", ["asyncio", "uringloop"])
def test_a_loop_from_before_the_fork_is_replaced(kind: Kind, module: str, tmp_path: Path) -> None:
    made = (
        f"import atexit, {module}\n"
        f"inherited = {module}.new_event_loop()\n"
        "asyncio.set_event_loop(inherited)\n"
        "atexit.register(inherited.close)\n"
    )
    (tmp_path / "served.py").write_text(f"{kind.application}\n{made}")
    with serving(kind, tmp_path, "--preload") as server:
        with server.request() as end:
            assert end() in server.workers
        assert server.running.stop(signal.SIGTERM) == 0


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("chosen", ["auto", "soft"])
def test_one_warning_serves_all_workers_and_each_logs_its_ring(
    kind: Kind, chosen: str, tmp_path: Path
) -> None:
    (tmp_path / "served.py").write_text(kind.application)
    refused = [sys.executable, "-IS", seccomp.__file__, "EPERM"]
    with serving(kind, tmp_path, under=refused, URINGLOOP_BACKEND=chosen) as server:
        assert server.running.stop(signal.SIGTERM) == 0
    assert server.running.output.count("not on io_uring: ") == (chosen == "auto")
    reason = "Operation not permitted" if chosen == "auto" else "asked for by URINGLOOP_BACKEND"
    assert server.running.output.count(f"Event loop: uringloop on soft ({reason}") == 2


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("URINGLOOP_BACKEND", "io_uring", "uringloop: [Errno 1] Operation not permitted"),
        ("URINGLOOP_STALL_MS", "often", "uringloop: URINGLOOP_STALL_MS must be between 0 and"),
        ("URINGLOOP_HEALTH", "127.0.0.1:0?size=1", "uringloop: URINGLOOP_HEALTH has no size"),
    ],
)
def test_gunicorn_ends_where_each_worker_would_fail(
    kind: Kind, variable: str, value: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "served.py").write_text(kind.application)
    refused = [sys.executable, "-IS", seccomp.__file__, "EPERM"]
    variables = {"URINGLOOP_BACKEND": "auto", variable: value}
    with gunicorn(kind, tmp_path, under=refused, **variables) as running:
        running.read_until(re.escape(message))
        assert running.running.wait(TIME_LIMIT) == 1


@pytest.mark.slow
def test_the_warning_is_shown_under_uvicorn(tmp_path: Path) -> None:
    needs_elsewhere("uvicorn")
    (tmp_path / "served.py").write_text(UVICORN)
    command = [sys.executable, "-IS", seccomp.__file__, "EPERM"]
    command += python("-m", "uvicorn", "served:app", "--loop", "uringloop:new_event_loop")
    command += ["--port", "0", "--app-dir", str(tmp_path)]
    with process(command, environment={"URINGLOOP_BACKEND": "auto"}) as running:
        running.read_until("Uvicorn running on")
        running.stop(signal.SIGTERM)
    assert running.output.count("not on io_uring: ") == 1


@pytest.mark.parametrize(
    ("module", "package", "advice"),
    [
        ("uvicorn", "uvicorn_worker", "pip install gunicorn 'uvicorn-worker>=0.4'"),
        ("aiohttp", "aiohttp", "pip install gunicorn aiohttp"),
        ("aiohttp", "gunicorn.workers", "pip install gunicorn aiohttp"),
        ("granian", "granian", "pip install granian"),
        ("uvicorn_server", "uvicorn", "pip install uvicorn"),
    ],
)
def test_a_worker_without_its_packages_says_what_to_install(
    module: str, package: str, advice: str
) -> None:
    done = run_script(
        f"import sys; sys.modules[{package!r}] = None; import uringloop.workers.{module}"
    )
    assert done.returncode == 1
    assert re.search(rf"ImportError: uringloop\.workers\.{module} needs .*", done.stderr)
    assert done.stderr.endswith(f"{advice}\n")


def test_a_worker_imports_nothing_of_the_package_after_the_fork(tmp_path: Path) -> None:
    # It may have been replaced by another version by then.
    done = run_script(f"""
        import os
        os.environ["URINGLOOP_MONITOR"] = {str(tmp_path)!r}
        os.environ["URINGLOOP_HEALTH"] = "unix:{tmp_path}/health.sock"
        os.environ["URINGLOOP_STALL_MS"] = "1000"
        import asyncio, sys
        from uringloop.workers.serving import prepare
        prepare()
        prepared = set(sys.modules)
        from uringloop.policy import new_event_loop

        async def serve():
            server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1")
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            assert await reader.read() == b""
            writer.close()
            reader, writer = await asyncio.open_unix_connection({str(tmp_path / "health.sock")!r})
            writer.write(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
            assert (await reader.readline()).endswith(b" 200 OK\\r\\n")
            writer.close()
            await server.drain()

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve())
        print([name for name in set(sys.modules) - prepared if name.startswith("uringloop")])
        """)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
