"""Explores the models, and shows that the checker finds each planted reordering.

    python tests/models/run.py CHECKER [NAME ...]

*CHECKER* is the library that cargo has built; names choose models, the default is all of them. A
model must hold. Then each plant for it weakens one ordering in a copy of the package's source, and
the checker must find what that breaks. The status is 1 if one of these is not so.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.sources import PACKAGE, ROOT

from models.plants import PLANTS, Plant

MODELS = Path(__file__).parent
BUILD = ROOT / "build" / "models"
NAMES = tuple(sorted(path.stem for path in MODELS.glob("*.c")))
# An execution with more preemptions than this is not explored. The plants need at most two.
PREEMPTIONS = "3"
# The checker's statuses (checker/src/lib.rs).
HOLDS, FOUND = 0, 1
COMPILE = (
    *("-std=gnu11", "-O1", "-g", "-fsanitize=thread", "-Wno-tsan", "-fno-pie", "-D_GNU_SOURCE"),
    *("--param", "tsan-instrument-func-entry-exit=0"),
)
LINK = ("-no-pie", "-lpthread", "-ldl", "-lm", "-lgcc_s")


def planted(plant: Plant) -> Path:
    """Write the changed file to a folder of its own, and return the folder."""
    text = (PACKAGE / plant.file).read_text()
    if text.count(plant.old) != 1:
        raise SystemExit(f"{plant.name}: {plant.file} has {text.count(plant.old)} places for it")
    folder = BUILD / "planted" / plant.name.replace(" ", "-")
    changed = folder / plant.file
    changed.parent.mkdir(parents=True, exist_ok=True)
    changed.write_text(text.replace(plant.old, plant.new))
    return folder


def explore(checker: Path, model: str, *folders: Path) -> tuple[int, str, str]:
    """Compile a model, with the files of *folders* first, and run it.

    Return the status, how much was explored, and what the checker has found.
    """
    program = BUILD / "programs" / model
    program.parent.mkdir(parents=True, exist_ok=True)
    searched = [f"-I{folder}" for folder in (*folders, MODELS, PACKAGE)]
    compiler = os.environ.get("CC", "gcc")
    source, made = MODELS / f"{model}.c", program.with_suffix(".o")
    subprocess.run([compiler, *COMPILE, *searched, "-c", source, "-o", made], check=True)
    subprocess.run([compiler, made, checker, *LINK, "-o", program], check=True)
    environment = {**os.environ, "LOOM_MAX_PREEMPTIONS": PREEMPTIONS}
    before_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [program], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    took_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before_s
    executions, _, rest = done.stdout.strip().partition(" ")
    return done.returncode, f"{executions:>7} executions, {took_s:5.1f} s", rest


def main(checker: str, *chosen: str) -> int:
    wrong = 0
    for model in chosen or NAMES:
        status, explored, found = explore(Path(checker), model)
        wrong += status != HOLDS
        said = "holds" if status == HOLDS else f"WRONG: {found}"
        print(f"{model:45} {explored}: {said}", flush=True)
        for plant in (one for one in PLANTS if one.model == model):
            status, explored, found = explore(Path(checker), model, planted(plant))
            wrong += status != FOUND
            said = f"found: {found[:50]}" if status == FOUND else f"WRONG, not found: {found}"
            print(f"    {plant.name:41} {explored}: {said}", flush=True)
    print("all models hold, and all plants are found" if not wrong else f"{wrong} are wrong")
    return int(wrong != 0)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
