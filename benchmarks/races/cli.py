"""Known races of published code under seeds: `python benchmarks/races [NAME...] [--seeds 1000]`.

Runs each program with the last version that has the bug and with the first version that does not,
each in a virtual environment below build/races, on `uringloop.testing.Loop` with the seeds 0, 1, 2,
... The table shows how many of the seeds find the bug; the time that they take goes to standard
error. Races of CPython itself need its versions 3.11 and 3.13; most packages run on 3.11.

The exit status is 1 if a version with the bug passed all seeds, or a version without it failed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from uringloop.bench import markdown as md

from . import seeds
from .seeds import Outcome
from .table import CPYTHON, RACES, Race

PROGRAM = Path(__file__).parent
ROOT = PROGRAM.parents[1]
BUILD = ROOT / "build" / "races"
# A program that takes longer hangs: a thousand seeds take up to a minute.
TIMEOUT_S = 1800


# ── what is installed ────────────────────────────────────────────────────────────────────────


def interpreter(version: str) -> str | None:
    """Return the newest CPython of this version that pyenv has, or else the one on PATH, if any."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {
        int(folder.suffix[1:]): folder / "bin" / "python"
        for folder in versions.glob(f"{version}.*")
        if folder.suffix[1:].isdigit()
    }
    return str(found[max(found)]) if found else shutil.which(f"python{version}")


def is_python(python: str | None, version: str) -> bool:
    """Return whether an interpreter can be run, which some shims of pyenv cannot."""
    if python is None or shutil.which(python) is None:
        return False
    command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() == version


def environment(python: str, name: str, requirements: Sequence[str]) -> Path:
    """Return the interpreter of a virtual environment, which is made unless it exists."""
    folder = BUILD / name
    made = folder / "made-of"
    contents = "\n".join((python, *requirements))
    if not made.exists() or made.read_text() != contents:
        print(f"{folder}: a new environment", file=sys.stderr)
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        if requirements:
            pip(folder / "bin" / "python", "--no-deps", *requirements)
        made.write_text(contents)
    return folder / "bin" / "python"


def pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*command, *arguments], check=True)


def uringloop_for(version: str, python: str) -> Path:
    """Return a folder with the package for a version, compiled if its sources have changed."""
    folder = BUILD / f"uringloop-{version}"
    changed = max(
        path.stat().st_mtime
        for path in (ROOT / "uringloop").rglob("*")
        if path.suffix in (".py", ".pyx", ".pxd", ".h", ".c")
    )
    if not folder.exists() or folder.stat().st_mtime < changed:
        print(f"{folder}: compiling uringloop", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        builder = environment(python, f"{CPYTHON}-{version}", ())
        pip(builder, "--no-deps", "--target", str(folder), str(ROOT))
    return folder


# ── the runs ─────────────────────────────────────────────────────────────────────────────────


def try_one(race: Race, version: str, pythons: dict[str, str], count: int) -> Outcome:
    """Run a program with one version, in a process of its own."""
    python = race.python_of(version)
    name = f"{race.package}-{version}"
    program = environment(pythons[python], name, race.requirements_of(version))
    variables = {
        "PYTHONPATH": str(uringloop_for(python, pythons[python])),
        "PYTHONSAFEPATH": "1",
        # Sets of strings have the same order in each run.
        "PYTHONHASHSEED": "0",
    }
    try:
        done = subprocess.run(
            [str(program), str(PROGRAM), "--child", race.name, "--seeds", str(count)],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return Outcome(errors=[f"hangs ({TIMEOUT_S} s)"])
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return Outcome(errors=[f"status {done.returncode}: {last}"])
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def problem(outcome: Outcome, affected: bool) -> str:
    """Return what is wrong with an outcome, or an empty string."""
    if outcome.errors:
        return f"{len(outcome.errors)} other errors: {outcome.errors[0]}"
    if outcome.forced != affected:
        return "the bug is here" if outcome.forced else "the bug is not here"
    if bool(outcome.found) != affected:
        return (
            f"fails, first with seed {outcome.found[0]}"
            if outcome.found
            else "the bug was not found"
        )
    return ""


def title(race: Race) -> str:
    """Return the first paragraph of a program's docstring in one line, without its full stop."""
    text = (PROGRAM / "programs" / f"{race.name}.py").read_text()
    first = (ast.get_docstring(ast.parse(text)) or race.name).partition("\n\n")[0]
    return " ".join(first.split()).rstrip(".")


def headings(count: int) -> tuple[str, ...]:
    """Return the headings of the table, for runs under *count* seeds."""
    return (
        "Race",
        "Affected version",
        f"Seeds that find the race, of {count:,}",
        "First such seed",
        f"Fixed version: seeds that fail, of {count:,}",
    )


def row_of(race: Race, pythons: dict[str, str], count: int) -> list[str]:
    """Try both versions; return the row of the table. An unexpected outcome is bold."""
    affected, mended = (
        try_one(race, version, pythons, count) for version in (race.affected, race.mended)
    )
    named = [
        f"{race.package} {(race.package == CPYTHON and outcome.python) or version}"
        for outcome, version in ((affected, race.affected), (mended, race.mended))
    ]
    cells = [
        f"**{wrong}**"
        if (wrong := problem(outcome, outcome is affected))
        else str(len(outcome.found))
        for outcome in (affected, mended)
    ]
    print(f"{race.name}: {affected.seconds:.1f} s, {mended.seconds:.1f} s", file=sys.stderr)
    return [
        f"[{title(race)}](https://github.com/{race.thread})",
        named[0],
        cells[0],
        "".join(map(str, affected.found[:1])),
        f"{named[1]}: {cells[1]}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="the races (all)")
    parser.add_argument("--seeds", type=int, default=1000, help="how many (%(default)s)")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--affected-python", default=interpreter("3.11"), help="CPython 3.11")
    parser.add_argument("--mended-python", default=interpreter("3.13"), help="CPython 3.13")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    races = {race.name: race for race in RACES}
    if options.child:
        print(json.dumps(asdict(seeds.run(races[options.child], options.seeds))))
        return 0
    if unknown := [name for name in options.names if name not in races]:
        parser.error(f"unknown: {', '.join(unknown)}; the races are {', '.join(races)}")
    found = {"3.11": options.affected_python, "3.13": options.mended_python}
    pythons = {version: python for version, python in found.items() if is_python(python, version)}
    rows = md.head(headings(options.seeds), ("Race", "Affected version"))
    print("\n".join(rows))
    for name in options.names or races:
        race = races[name]
        needed = {race.python_of(version) for version in (race.affected, race.mended)}
        if missing := needed - pythons.keys():
            print(f"{name}: skipped, needs CPython {' and '.join(missing)}", file=sys.stderr)
            continue
        rows.append(md.line(row_of(race, pythons, options.seeds)))
        print(rows[-1], flush=True)
    if options.markdown:
        options.markdown.write_text("\n".join(rows) + "\n")
    return 1 if "**" in "".join(rows) else 0
