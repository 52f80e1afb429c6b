"""asyncio's own introspection of a program that runs loops in several threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.loops import FACTORIES
from support.roles import PATIENCE

from uringloop import run_threads

Names = frozenset[str]

PROGRAM = Path(__file__).parent / "introspected.py"
TASKS = [frozenset(f"{name}-{number}" for name in ("main", "outer", "inner")) for number in (0, 1)]

# A line of `python -m asyncio ps`: the thread, the task's address and its name.
PS_LINE = re.compile(r"(\d+) +0x[0-9a-f]+ +(\S+)")
PSTREE_TASK = re.compile(r"\(T\) (\S+)")

pytestmark = pytest.mark.filterwarnings("ignore:the threads of run_threads:RuntimeWarning")


# ── within the process ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", FACTORIES)
def test_all_tasks_of_a_loop_are_its_own_in_every_thread(kind: str) -> None:
    count = 3
    barrier = threading.Barrier(count)
    loops: dict[int, asyncio.AbstractEventLoop] = {}

    def names(loop: asyncio.AbstractEventLoop | None = None) -> list[str]:
        return sorted(task.get_name() for task in asyncio.all_tasks(loop))

    async def main() -> None:
        number = barrier.wait(PATIENCE)
        task = asyncio.current_task()
        assert task is not None
        task.set_name(f"main-{number}")
        loops[number] = asyncio.get_running_loop()
        event = asyncio.Event()
        waiting = [asyncio.create_task(event.wait(), name=f"{number}-{at}") for at in range(3)]
        await asyncio.sleep(0)
        barrier.wait(PATIENCE)
        # Every loop is in the middle of its main.
        assert names() == [f"{number}-0", f"{number}-1", f"{number}-2", f"main-{number}"]
        for other, loop in loops.items():
            assert names(loop) == [f"{other}-0", f"{other}-1", f"{other}-2", f"main-{other}"]
            current = asyncio.current_task(loop)
            assert current is not None
            assert current.get_name() == f"main-{other}"
        barrier.wait(PATIENCE)
        event.set()
        await asyncio.gather(*waiting)
        assert names() == [f"main-{number}"]

    run_threads(main, count, loop_factory=FACTORIES[kind])


# ── in another process ───────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def waiting(kind: str, place: str) -> Iterator[int]:
    """Yield the identifier of a program whose tasks all wait."""
    # The warning about the GIL is of no interest.
    command = [sys.executable, "-W", "ignore", str(PROGRAM), kind, place]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        first = program.stdout.readline()
        try:
            yield program.pid
        finally:
            out, err = program.communicate(timeout=PATIENCE)
        assert (first, out, err, program.returncode) == ("waiting\n", "", "", 0)


def shown_by(tool: str, pid: int) -> str:
    """Return the output of a tool of asyncio; skip the test if it may not read the process."""
    command = [sys.executable, "-m", "asyncio", tool, str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 0 and os.geteuid() != 0 and "ermission" in done.stdout + done.stderr:
        pytest.skip("reading another process needs root or kernel.yama.ptrace_scope=0")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def shown(kind: str, place: str) -> tuple[set[Names], set[str]]:
    """Return the names of the tasks in each thread by `ps`, and all names by `pstree`."""
    with waiting(kind, place) as pid:
        threads: dict[str, set[str]] = {}
        for thread, name in PS_LINE.findall(shown_by("ps", pid)):
            threads.setdefault(thread, set()).add(name)
        tree = set(PSTREE_TASK.findall(shown_by("pstree", pid)))
    return set(map(frozenset, threads.values())), tree


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 14), reason="the tools are new in Python 3.14")
@pytest.mark.parametrize("place", ["main", "threads"])
def test_asyncios_tools_show_the_tasks_of_every_thread(place: str) -> None:
    stock, stock_tree = shown("asyncio", place)
    threads, tree = shown("uringloop", place)
    if stock == set(TASKS):
        assert stock_tree == TASKS[0] | TASKS[1]
        assert (threads, tree) == (stock, stock_tree)
        return
    # gh-149230: the tools of 3.14.7 read the main thread only; those of 3.15 read all.
    assert sys.version_info < (3, 15)
    if place == "threads":
        assert (stock, stock_tree) == (set(), set())
        pytest.skip("the tools of this Python show the main thread only (gh-149230)")
    # Either of the two mains may be the main thread's.
    (names,) = threads
    assert names in TASKS
    assert tree == names
