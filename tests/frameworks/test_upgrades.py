"""Services are upgraded under load: from uvloop, between two releases of uringloop, and back.

benchmarks/upgrades starts the services, replaces them, and counts what becomes of the requests.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import needs_elsewhere

UPGRADES = Path(__file__).resolve().parents[2] / "benchmarks" / "upgrades"
# A client that cannot run is silent for the workers, which wait half a second for a last request.
LAG_MAX_S = 0.05
TRIES = 3


def upgraded(tmp_path: Path, way: str, step: str, *options: str) -> dict[str, Any]:
    """Return the result of an upgrade, whose requests were answered by both sides."""
    for package in ("uvloop", "gunicorn", "uvicorn", "uvicorn_worker", "aiohttp", "wsproto"):
        needs_elsewhere(package)
    file = tmp_path / "results.json"
    command = [sys.executable, str(UPGRADES), "--ways", way, "--steps", step, *options]
    command += ["--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(file.read_text())
    assert isinstance(result, dict)
    assert len(result["loops"]) == 2
    assert min(result["loops"].values()) > 20
    return result


def check_nothing_is_lost(tmp_path: Path, way: str, step: str, *options: str) -> None:
    """Upgrade a service; try again if other programs have kept the clients from running."""
    for _ in range(TRIES):
        result = upgraded(tmp_path, way, step, *options)
        if not result["lost"] or result["lag_s"] < LAG_MAX_S:
            break
    assert result["lost"] == {}, result["lag_s"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "over"),
    [
        ("gunicorn-usr2", "tcp"),
        ("uvicorn-hup", "unix"),
        ("uvicorn-activation", "tcp"),
        ("uvicorn-restart", "unix"),
        ("asyncio-reuseport", "tcp"),
    ],
)
def test_no_request_is_lost_between_two_releases(way: str, over: str, tmp_path: Path) -> None:
    check_nothing_is_lost(tmp_path, way, "between", "--over", over)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["gunicorn-hup", "aiohttp-hup"])
def test_no_request_is_lost_on_the_way_back_to_uvloop(way: str, tmp_path: Path) -> None:
    check_nothing_is_lost(tmp_path, way, "back")


@pytest.mark.slow
def test_no_request_is_lost_on_the_way_from_uvloop_behind_a_proxy(tmp_path: Path) -> None:
    if shutil.which("nginx") is None:
        pytest.skip("apt-get install nginx-light")
    check_nothing_is_lost(tmp_path, "gunicorn-proxy", "from")


@pytest.mark.slow
def test_without_a_proxy_a_worker_on_uvloop_only_closes_idle_connections(tmp_path: Path) -> None:
    # A client may just have sent a request there.
    result = upgraded(tmp_path, "gunicorn-hup", "from")
    outcomes = {outcome for outcomes in result["lost"].values() for outcome in outcomes}
    assert outcomes <= {"closed", "reset"}
