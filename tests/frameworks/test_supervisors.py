"""The recipes for Kubernetes and for systemd's watchdog, run as far as one machine can.

The probes of the recipe are sent as a kubelet sends them; systemd runs as the first process of
namespaces of its own. Only ports, paths and times are replaced.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import needs_elsewhere, process
from support.documents import DOCS, blocks
from support.roles import PATIENCE, unused_port, wait_until

PAGE = DOCS / "recipes.md"
BIN = Path(sys.executable).parent
SYSTEMD = "/usr/lib/systemd/systemd"
APP = """
import json, os, time

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    if scope["path"].startswith("/block/"):
        time.sleep(float(scope["path"].rpartition("/")[2]))
    body = json.dumps([os.getpid(), os.getppid()]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})
"""
COMMAND = "uvicorn app:app --port {} --workers 2 --lifespan off --loop uringloop:new_event_loop"


def recipe(heading: str, kind: str, *replaced: tuple[str, str]) -> str:
    """Return the only block of *kind* below a heading, in which each text of *replaced* stands."""
    (text,) = [it.text for it in blocks(PAGE) if (it.heading, it.kind) == (heading, kind)]
    for old, new in replaced:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def get(port: int, path: str, timeout: float = PATIENCE) -> tuple[int, str]:
    """Return the status and the body of an answer; the status is 0 if there is none in time."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    with contextlib.closing(client):
        try:
            client.request("GET", path, headers={"User-Agent": "kube-probe/1.33"})
            response = client.getresponse()
            return response.status, response.read().decode()
        except OSError:
            return 0, ""


def processes(port: int) -> list[int]:
    """Return the process that answers and its parent; nothing if there is no answer."""
    status, body = get(port, "/")
    return json.loads(body) if status == 200 else []


def block(port: int, seconds: float) -> None:
    """Let one worker compute; the answer is not waited for."""
    get(port, f"/block/{seconds}", timeout=0.1)


# ── Kubernetes ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_probes_of_kubernetes_end_a_worker_that_hangs_and_no_busy_one(tmp_path: Path) -> None:
    needs_elsewhere("uvicorn")
    yaml = pytest.importorskip("yaml")
    health, port = unused_port(), unused_port()
    replaced = [("0.0.0.0:9100", f"127.0.0.1:{health}"), ("=2", "=0.5"), ("=30", "=4")]
    container = yaml.safe_load(recipe("Kubernetes", "yaml", *replaced))
    (variable,) = container["env"]
    (named,) = container["ports"]
    assert named["name"] == container["livenessProbe"]["httpGet"]["port"]

    def probe(kind: str) -> bool:
        found: dict[str, Any] = container[kind]
        # A kubelet's default is one second.
        status, _ = get(health, found["httpGet"]["path"], found.get("timeoutSeconds", 1))
        return 200 <= status < 400

    (tmp_path / "app.py").write_text(APP)
    command = [str(BIN / "uvicorn"), *COMMAND.format(port).split()[1:]]
    variables = {variable["name"]: variable["value"], "PYTHONWARNINGS": "ignore::ResourceWarning"}
    with process(command, environment=variables, cwd=tmp_path) as running:
        wait_until(lambda: probe("startupProbe"))
        wait_until(lambda: get(health, "/ready")[1].count("\n") == 2)
        assert probe("livenessProbe")
        block(port, 2.5)
        wait_until(lambda: not probe("readinessProbe"))
        assert probe("livenessProbe")
        assert "busy for" in get(health, "/ready")[1]
        wait_until(lambda: probe("readinessProbe"))
        # uvicorn itself replaces a worker that hangs after five seconds.
        block(port, 100)
        wait_until(lambda: not probe("livenessProbe"))
        running.kill()


# ── systemd ──────────────────────────────────────────────────────────────────────────────────

# systemd with units in a /run of its own. As the first process it would change settings of the
# machine's kernel, such as the length of queues.
START = """
mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys || exit
mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system && cp "$1"/* /run/systemd/system || exit
export container=docker
exec {systemd} --system --unit=test.target --log-target=console --show-status=no
"""
TARGET = """
[Unit]
DefaultDependencies=no
Wants={}
"""


@contextlib.contextmanager
def unit(folder: Path, name: str, text: str, is_ready: Callable[[], bool]) -> Iterator[None]:
    """Run a unit under a systemd that is the first process of its namespaces, once it is ready."""
    if os.geteuid() != 0 or not os.path.exists(SYSTEMD) or shutil.which("unshare") is None:
        pytest.skip("needs root, systemd and unshare")
    place = folder / "units"
    place.mkdir()
    (place / name).write_text("[Unit]\nDefaultDependencies=no\n\n" + text)
    (place / "test.target").write_text(TARGET.format(name))
    script = START.format(systemd=SYSTEMD)
    command = ["unshare", "--fork", "--pid", "--mount", "--mount-proc", "--uts", "--kill-child"]
    path = folder / "log"
    with (
        path.open("wb") as log,
        subprocess.Popen(
            [*command, "sh", "-c", script, "sh", str(place)], stdout=log, stderr=log
        ) as running,
    ):

        def has_failed() -> bool:
            # As the first process it does not end, but stand still.
            return running.poll() is not None or "Freezing" in path.read_text()

        try:
            wait_until(lambda: has_failed() or is_ready())
            if has_failed():
                pytest.skip(f"systemd cannot run here: {path.read_text().strip()[-200:]}")
            yield
        finally:
            running.kill()


@pytest.mark.slow
def test_watchdog_of_systemd_restarts_a_service_that_hangs_and_no_busy_one(tmp_path: Path) -> None:
    needs_elsewhere("uvicorn")
    port = unused_port()
    (tmp_path / "app.py").write_text(APP)
    text = recipe(
        "A watchdog",
        "ini",
        ("/srv/orders/.venv/bin/uvicorn", f"{BIN / 'uvicorn'} --lifespan off"),
        ("--port 8000 --workers 4", f"--port {port} --workers 2"),
        ("WatchdogSec=20", f"WatchdogSec=1\nWorkingDirectory={tmp_path}\nRestart=on-failure"),
        ("dead_after=30", "dead_after=1.5"),
    )
    with unit(tmp_path, "orders.service", text, lambda: bool(processes(port))):
        _, master = processes(port)
        # Longer than the watchdog's time.
        block(port, 1.2)
        wait_until(lambda: bool(processes(port)))
        assert processes(port)[1] == master
        # uvicorn itself replaces a worker that hangs, but later.
        block(port, 100)
        wait_until(lambda: processes(port)[1:] not in ([], [master]))
