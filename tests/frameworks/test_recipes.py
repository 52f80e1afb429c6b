"""The recipes of the documents, run as they are: servers with workers, and their output.

A program is taken from its page by its heading; only ports are replaced.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import Process, needs_elsewhere, process, python
from support import machine, seccomp
from support.documents import recipe
from support.roles import PATIENCE, unused_port, wait_until

METRICS_PORTS = "range(9101, 9105)"
SCHEDULER_PORT = "8786"

# uvicorn's parent process does not close its socket.
ENVIRONMENT = {
    "PYTHONWARNINGS": "ignore::ResourceWarning",
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
}


def get(port: int) -> str | None:
    """Return the answer of a port on a new connection, or None if the connection is refused."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(client):
        try:
            client.request("GET", "/")
        except ConnectionRefusedError:
            return None
        response = client.getresponse()
        assert response.status == 200
        return response.read().decode()


def answers(ports: list[int]) -> list[str]:
    """Wait until all ports answer, and return the answer of each."""
    wait_until(lambda: None not in map(get, ports))
    return [str(get(port)) for port in ports]


def unused_ports(number: int) -> list[int]:
    found: set[int] = set()
    while len(found) < number:
        found.add(unused_port())
    return sorted(found)


@contextlib.contextmanager
def serving(folder: Path, text: str, *command: str, **variables: str) -> Iterator[Process]:
    """Run *command* in *folder*, with *text* as `app.py`."""
    (folder / "app.py").write_text(text)
    with process(command, environment={**ENVIRONMENT, **variables}, cwd=folder) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("server", ["uvicorn", "gunicorn"])
def test_each_worker_of_fastapi_has_its_own_metrics(server: str, tmp_path: Path) -> None:
    needs_elsewhere("fastapi")
    needs_elsewhere("uvicorn")
    needs_elsewhere("uvicorn_worker")
    port, *metrics = unused_ports(5)
    text = recipe("FastAPI with metrics and several workers")
    assert METRICS_PORTS in text
    commands = {
        "uvicorn": f"uvicorn --port {port} --workers 4 --loop uringloop:new_event_loop app:app",
        "gunicorn": f"gunicorn -b :{port} -w 4 -k uringloop.workers.uvicorn.Worker app:app",
    }
    command = commands[server].split()
    text = text.replace(METRICS_PORTS, repr(metrics))
    with (
        # The path of a socket has 107 bytes at most, too few for the folders of pytest-xdist.
        tempfile.TemporaryDirectory(prefix="uringloop-") as folder,
        serving(tmp_path, text, *command, URINGLOOP_MONITOR=folder) as running,
    ):
        monitors = Path(folder)
        for answer in answers(metrics):
            assert "\nuringloop_turns_total " in answer
            assert "\nuringloop_stalls_total " in answer
        # A monitor's socket is named by the process id.
        workers = {int(path.stem.rpartition("-")[2]) for path in monitors.iterdir()}
        assert len(workers) == 4
        wait_until(lambda: get(port) is not None)
        seen = set()

        def all_have_answered() -> bool:
            answer = json.loads(get(port) or "")
            assert answer["loop"].startswith("<Loop ")
            seen.add(answer["process"])
            return seen == workers

        wait_until(all_have_answered)
        # The worker that replaces a killed one uses its metrics port.
        os.kill(min(workers), signal.SIGKILL)
        wait_until(lambda: len({*monitors.iterdir()}) == 5)
        answers(metrics)
        running.stop(signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 16), reason="it sets a policy")
@pytest.mark.parametrize("option", ["--workers=2", "--single-process"])
def test_sanic_serves_on_this_loop(option: str, tmp_path: Path) -> None:
    needs_elsewhere("sanic")
    port = unused_port()
    command = ["sanic", "app:app", "--host=127.0.0.1", f"--port={port}", option]
    with serving(tmp_path, recipe("Sanic"), *command) as running:
        for answer in answers([port] * 10):
            assert answer.startswith("<Loop ")
        # Sanic loses a signal that arrives while its workers start, on any loop.
        running.kill()


@pytest.mark.slow
def test_dask_runs_on_this_loop_in_every_process(tmp_path: Path) -> None:
    needs_elsewhere("distributed")
    port = str(unused_port())
    client = tmp_path / "client.py"
    text = recipe("Dask")
    assert SCHEDULER_PORT in text
    client.write_text(text.replace(SCHEDULER_PORT, port))
    address = f"tcp://127.0.0.1:{port}"
    variables = {**ENVIRONMENT, "DASK_DISTRIBUTED__ADMIN__EVENT_LOOP": "uvloop"}

    def part(*words: str) -> contextlib.AbstractContextManager[Process]:
        command = python("-m", "uringloop.as_uvloop", *words)
        return process(command, environment=variables, cwd=tmp_path)

    with (
        part("dask", "scheduler", "--host=127.0.0.1", f"--port={port}", "--no-dashboard") as head,
        part("dask", "worker", address, "--nworkers=2", "--no-dashboard") as workers,
    ):
        for _ in range(2):
            head.read_until("Starting worker compute stream")
        with part("client.py") as asked:
            assert asked.wait() == 0
        workers.kill()
        head.kill()
    lines = asked.output.splitlines()[1:]
    assert [line.partition(": <Loop ")[0] for line in lines] == [
        *("client", "scheduler", "worker", "worker", "285"),
    ]


def test_a_container_that_refuses_io_uring_shows_the_line_of_the_recipe() -> None:
    if machine.SYSCTL.exists() and machine.SYSCTL.read_text() != "0\n":
        pytest.skip("the line names the sysctl here")
    script = "import uringloop; uringloop.new_event_loop().close()"
    ended = seccomp.run("-c", script, under="EPERM", URINGLOOP_WARN_FALLBACK="")
    assert (ended.returncode, ended.stderr) == (0, recipe("Docker", "text"))
