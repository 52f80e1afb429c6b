"""Upgrade services under load, and count lost requests: `python benchmarks/upgrades [--ways A,B]`.

Each service is upgraded from uvloop ("from"), from one release of uringloop to another ("between"),
and back to uvloop ("back"), in the ways that are possible. Meanwhile, clients of all kinds send
requests: see traffic.py.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from upgrades.releases import Releases, Side
from upgrades.traffic import ANSWERED, Traffic
from upgrades.ways import WAYS, Way, until
from uringloop.bench import markdown as md

UVLOOP = Side("uvloop", "old")
STEPS = {
    "from": (UVLOOP, Side("uringloop", "old")),
    "between": (Side("uringloop", "old"), Side("uringloop", "new")),
    "back": (Side("uringloop", "new"), UVLOOP),
}
# A SIGHUP does not change what is imported in gunicorn's main process, nor uvicorn's command.
IMPOSSIBLE = {
    "gunicorn-hup": ["between"],
    "gunicorn-proxy": ["between"],
    "aiohttp-hup": ["between"],
    "uvicorn-hup": ["from", "back"],
}
# nginx's workers may not open a socket in the folder of another user.
TCP_ONLY = ("asyncio-reuseport", "gunicorn-proxy")
# The time of a slow request, and of the load before and after each upgrade.
SLOW_S = 0.4
AROUND_S = 0.8


class Result(NamedTuple):
    """What became of the requests during one upgrade."""

    way: str
    step: str
    answered: int
    # By kind of client and outcome.
    lost: dict[str, dict[str, int]]
    # How many answers came from each loop and version.
    loops: dict[str, int]
    # For how long the clients could not run. For a worker, they are silent then.
    lag_s: float


async def measure(name: str, step: str, over: str, folder: Path) -> Result:
    """Start a service, and upgrade it once under load."""
    before, after = STEPS[step]
    with (folder / "service.log").open("ab") as log:
        way = WAYS[name](Releases(folder), over, log)
        try:
            way.start(before)
            traffic = await under_load(way, before, after)
        except TimeoutError as exc:
            raise RuntimeError((folder / "service.log").read_text()) from exc
        finally:
            way.end()
    lost = {
        kind: {outcome: count for outcome, count in results.items() if outcome != ANSWERED}
        for kind, results in traffic.results.items()
    }
    answered = sum(results[ANSWERED] for results in traffic.results.values())
    lost = {kind: outcomes for kind, outcomes in lost.items() if outcomes}
    return Result(name, step, answered, lost, dict(traffic.loops), traffic.lag_s)


async def under_load(way: Way, before: Side, after: Side) -> Traffic:
    def answered_by(side: Side) -> bool:
        return any(name.startswith(side.name()) for name in traffic.loops)

    # The service starts: nothing counts yet.
    traffic = Traffic(way.address, {"new": 1}, SLOW_S)
    await until(lambda: answered_by(before))
    await traffic.stop()
    traffic = Traffic(way.address, way.kinds, SLOW_S)
    await asyncio.sleep(AROUND_S)
    await way.upgrade(after, answered_by)
    await asyncio.sleep(AROUND_S)
    await traffic.stop()
    return traffic


def table(results: list[Result]) -> list[str]:
    rows: dict[tuple[str, str], list[Result]] = collections.defaultdict(list)
    for result in results:
        rows[result.way, result.step].append(result)
    cells = []
    for (way, step), runs in rows.items():
        kinds: collections.Counter[str] = collections.Counter()
        for run in runs:
            for kind, outcomes in run.lost.items():
                kinds[kind] += sum(outcomes.values())
        of_kinds = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        answered = sum(run.answered for run in runs)
        lag_ms = max(run.lag_s for run in runs) * 1e3
        figures = [str(len(runs)), f"{lag_ms:.0f}", f"{answered:,}", str(kinds.total()), of_kinds]
        cells.append([way, step, *figures])
    headings = ["Way", "Step", "Upgrades", "Lag of the clients, ms", "Answered", "Lost", "Of kinds"]
    return md.table(headings, cells, headings[:2])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ways", default=",".join(WAYS), help="(%(default)s)")
    parser.add_argument("--steps", default=",".join(STEPS), help="(%(default)s)")
    parser.add_argument("--over", choices=["tcp", "unix"], default="tcp")
    parser.add_argument("--times", type=int, default=1, help="upgrades of each row (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    options = parser.parse_args()
    ways, steps = options.ways.split(","), options.steps.split(",")
    if unknown := (set(ways) - set(WAYS)) | (set(steps) - set(STEPS)):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if "gunicorn-proxy" in ways and shutil.which("nginx") is None:
        parser.error("gunicorn-proxy needs nginx: apt-get install nginx-light")
    rows = [
        (way, step)
        for way in ways
        for step in steps
        if step not in IMPOSSIBLE.get(way, []) and not (options.over == "unix" and way in TCP_ONLY)
    ]
    results = []
    for _ in range(options.times):
        for way, step in rows:
            with tempfile.TemporaryDirectory(prefix="uringloop-upgrades-") as folder:
                results.append(asyncio.run(measure(way, step, options.over, Path(folder))))
    print("\n".join(table(results)))
    if options.json:
        options.json.write_text(json.dumps([one._asdict() for one in results], indent=1) + "\n")
    return 0
