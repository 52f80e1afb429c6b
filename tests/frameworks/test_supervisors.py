"""The recipes for Kubernetes and for systemd's watchdog, run as far as one machine can.

The tests send the probes as a kubelet does, and wait for messages as systemd does. Only ports,
paths and times of the recipes are replaced.
"""

from __future__ import annotations

import configparser
import contextlib
import http.client
import shlex
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from programs import needs_elsewhere, process
from support.documents import recipe
from support.roles import PATIENCE, unused_port, wait_until

BIN = Path(sys.executable).parent
APP = """
import time

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    if scope["path"].startswith("/block/"):
        time.sleep(float(scope["path"].rpartition("/")[2]))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})
"""
COMMAND = "uvicorn app:app --port {} --workers 2 --lifespan off --loop uringloop:new_event_loop"


def adapted(heading: str, kind: str, *replaced: tuple[str, str]) -> str:
    """Return a recipe with other texts in the place of some."""
    text = recipe(heading, kind)
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


def block(port: int, seconds: float) -> None:
    """Let one worker compute; the answer is not waited for."""
    get(port, f"/block/{seconds}", timeout=0.1)


# ── Kubernetes ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_probes_of_kubernetes_end_a_worker_that_hangs_and_no_busy_one(tmp_path: Path) -> None:
    needs_elsewhere("uvicorn")
    yaml = pytest.importorskip("yaml")
    health, port = unused_port(), unused_port()
    replaced = [("0.0.0.0:9100", f"127.0.0.1:{health}"), ("=2", "=0.5"), ("=30", "=3")]
    deployment = yaml.safe_load(adapted("The Deployment", "yaml", *replaced))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    asked = {container[kind]["httpGet"]["port"] for kind in ("livenessProbe", "readinessProbe")}
    asked.add(container["startupProbe"]["tcpSocket"]["port"])
    assert asked == {named["name"] for named in container["ports"]}

    def probe(kind: str) -> bool:
        found: dict[str, Any] = container[kind]
        # A kubelet's default is one second.
        status, _ = get(health, found["httpGet"]["path"], found.get("timeoutSeconds", 1))
        return 200 <= status < 400

    (tmp_path / "app.py").write_text(APP)
    command = [str(BIN / "uvicorn"), *COMMAND.format(port).split()[1:]]
    variables = {it["name"]: it["value"] for it in container["env"]}
    variables["PYTHONWARNINGS"] = "ignore::ResourceWarning"
    with process(command, environment=variables, cwd=tmp_path) as running:
        wait_until(lambda: get(port, "/")[0] == 200)
        wait_until(lambda: get(health, "/ready")[1].count("\n") == 2)
        assert probe("livenessProbe")
        block(port, 2)
        wait_until(lambda: not probe("readinessProbe"))
        assert probe("livenessProbe")
        assert "busy for" in get(health, "/ready")[1]
        wait_until(lambda: probe("readinessProbe"))
        # uvicorn itself replaces a worker that hangs after five seconds.
        block(port, 100)
        wait_until(lambda: not probe("livenessProbe"))
        running.kill()


# ── systemd ──────────────────────────────────────────────────────────────────────────────────


class Told:
    """The socket at which systemd is told that a service is alive."""

    def __init__(self, folder: str, limit_s: float) -> None:
        self.path = f"{folder}/notify"
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.path)
        self.sock.settimeout(limit_s)

    def is_told(self) -> bool:
        """Return whether a message comes in time; systemd would kill the service otherwise."""
        try:
            return self.sock.recv(100) == b"WATCHDOG=1"
        except TimeoutError:
            return False


@pytest.mark.slow
def test_watchdog_of_systemd_is_told_by_a_busy_service_and_not_by_one_that_hangs(
    tmp_path: Path,
) -> None:
    needs_elsewhere("uvicorn")
    port = unused_port()
    (tmp_path / "app.py").write_text(APP)
    # The path of a socket has 107 bytes at most, too few for the folders of pytest-xdist.
    with tempfile.TemporaryDirectory(prefix="uringloop-") as folder:
        unit = configparser.ConfigParser()
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        text = adapted(
            "A watchdog",
            "ini",
            ("/srv/orders/.venv/bin/uvicorn", f"{BIN / 'uvicorn'} --lifespan off"),
            ("--port 8000 --workers 4", f"--port {port} --workers 2"),
            ("/run/orders", folder),
            ("WatchdogSec=20", "WatchdogSec=1"),
            ("dead_after=30", "dead_after=1.5"),
        )
        unit.read_string(text)
        service = unit["Service"]
        name, _, value = shlex.split(service["Environment"])[0].partition("=")
        limit_s = float(service["WatchdogSec"])
        systemd = Told(folder, limit_s)
        variables = {
            name: value,
            "NOTIFY_SOCKET": systemd.path,
            "WATCHDOG_USEC": str(int(limit_s * 1e6)),
            "PYTHONWARNINGS": "ignore::ResourceWarning",
        }
        command = shlex.split(service["ExecStart"])
        with (
            systemd.sock,
            process(command, environment=variables, cwd=tmp_path) as running,
        ):
            wait_until(lambda: get(port, "/")[0] == 200)
            wait_until(systemd.is_told)
            # Longer than the watchdog's time, and shorter than `dead_after`.
            block(port, 1.2)
            assert all(systemd.is_told() for _ in range(6))
            # uvicorn itself replaces a worker that hangs after five seconds.
            block(port, 100)
            wait_until(lambda: not systemd.is_told())
            running.kill()
