"""Tests under many seeds: the options, the marker and the reports of the pytest plugin."""

from __future__ import annotations

import re
import shlex
import unittest
from pathlib import Path

import pytest
from support.inner_pytest import run_pytest

import uringloop
from uringloop.policy import describe_ring

pytest.importorskip("pytest_asyncio")

XDIST = ("asyncio", "xdist")

SUITE = """if True:
    import asyncio, pytest, pytest_asyncio

    @pytest.fixture(scope="module")
    def module_wide():
        print("module fixture", end=";")
        yield
        print("module teardown", end=";")

    @pytest_asyncio.fixture
    async def lock():
        yield asyncio.Lock()

    async def test_passes(module_wide, lock):
        async with lock:
            await asyncio.sleep(100)

    async def test_of_a_race(module_wide):
        seen = []
        async def note(number):
            seen.append(number)
        await asyncio.gather(*(note(number) for number in range(3)))
        assert seen != [2, 1, 0]

    def test_without_a_loop(module_wide):
        pass
"""

MARKED = """if True:
    import asyncio, pytest

    loops = set()

    @pytest.mark.uringloop_seeds(7)
    async def test_marked():
        loops.add(asyncio.get_running_loop())
        assert type(asyncio.get_running_loop()).__module__ == "uringloop.testing.loop"

    async def test_not_marked():
        assert len(loops) == 7
        assert asyncio.get_running_loop() not in loops
        assert type(asyncio.get_running_loop()).__module__ == "uringloop.loop"
"""

ANYIO = """if True:
    import anyio, pytest

    pytestmark = pytest.mark.anyio

    async def test_passes():
        with anyio.move_on_after(1000):
            await anyio.sleep_forever()

    async def test_of_a_race():
        seen = []
        async def note(number):
            seen.append(number)
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(note, number)
        assert seen != [2, 1, 0]
"""


def run_suite(
    folder: Path, text: str, *arguments: str, plugins: tuple[str, ...] = ("asyncio",)
) -> str:
    """Run pytest with the plugin, and with *plugins*, on a suite; return what it prints."""
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    plugins = ("uringloop.pytest_plugin", *plugins)
    return run_pytest(folder, "-s", "-vv", *arguments, plugins=plugins)


def test_each_asynchronous_test_runs_under_all_seeds(tmp_path: Path) -> None:
    out = run_suite(tmp_path, SUITE, "--uringloop-seeds=60")
    assert "1 failed, 2 passed" in out
    assert re.search(r"runs of 2 tests: 6,000 s of virtual time in \d+\.\d s", out)
    # The fixtures of the module were made once, for all runs.
    assert out.count("module fixture") == out.count("module teardown") == 1


def test_a_failure_prints_the_command_that_repeats_it(tmp_path: Path) -> None:
    out = run_suite(tmp_path, SUITE, "--uringloop-seeds=60")
    match = re.search(r"seed (\d+) failed; again: pytest (\S+::test_of_a_race .*)", out)
    assert match is not None
    again = run_suite(tmp_path, SUITE, *shlex.split(match[2]))
    assert f"seed {match[1]} failed" in again
    assert "assert [2, 1, 0] != [2, 1, 0]" in again
    assert "1 failed" in again
    assert "1 runs of 1 tests" in again


def test_a_failure_in_a_folder_of_the_project_is_repeated_there(tmp_path: Path) -> None:
    run_suite(tmp_path, SUITE, "--uringloop-seeds=1")
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_below.py").write_text(SUITE)
    plugins = ("uringloop.pytest_plugin", "asyncio")
    out = run_pytest(folder, "--uringloop-seeds=60", "test_below.py", plugins=plugins)
    match = re.search(r"seed \d+ failed; again: pytest (test_below\.py::test_of_a_race .*)", out)
    assert match is not None, out
    assert "1 failed" in run_pytest(folder, *shlex.split(match[1]), plugins=plugins)


KEPT = """if True:
    import gc, pytest

    kept = []

    @pytest.fixture(scope="session")
    def wide():
        yield

    @pytest.fixture
    def narrow(wide):
        yield

    async def test_it(uringloop_seed, narrow):
        if uringloop_seed in (10, 210):
            gc.collect()
            kept.append(len(gc.get_objects()))
        if uringloop_seed == 210:
            print("kept", kept[1] - kept[0])
"""


def test_runs_leave_nothing_to_fixtures_of_a_wider_scope(tmp_path: Path) -> None:
    out = run_suite(tmp_path, KEPT, "--uringloop-seeds=300")
    (kept,) = re.findall(r"kept (-?\d+)", out)
    assert int(kept) < 100


GARBAGE = """if True:
    import asyncio, collections, sys

    step = 0
    # Without the GIL garbage is collected more rarely.
    STEPS = 20_000 if "t" in sys.abiflags else 3_000

    class Cycle:
        def __init__(self, ends):
            self.me, self.ends = self, ends

        def __del__(self):
            self.ends[step] += 1

    async def test_before():
        cycles = [Cycle(collections.Counter()) for _ in range(1000)]

    async def test_it(uringloop_seed):
        global step
        ends = collections.Counter()
        for step in range(STEPS):
            for _ in range(20):
                Cycle(ends)
            await asyncio.sleep(1)
        assert ends
        print("ends of", uringloop_seed, dict(ends))
"""


def test_garbage_is_collected_at_the_same_points_whatever_ran_before(tmp_path: Path) -> None:
    alone = run_suite(tmp_path, GARBAGE, "--uringloop-seed=3", "-k", "test_it")
    later = run_suite(tmp_path, GARBAGE, "--uringloop-seeds=4")
    ends = re.findall(r"ends of 3 .*", alone)
    assert len(ends) == 1
    assert ends[0] in later


def test_the_seeds_begin_with_the_first_one(tmp_path: Path) -> None:
    out = run_suite(tmp_path, FIXTURE, "--uringloop-seeds=3", "--uringloop-first-seed=5000")
    assert "seeds [5000, 5001, 5002]" in out
    assert "3 runs of 1 tests" in out


def test_a_failure_under_a_later_seed_is_repeated_by_its_number(tmp_path: Path) -> None:
    out = run_suite(tmp_path, SUITE, "--uringloop-seeds=60", "--uringloop-first-seed=1000")
    match = re.search(r"seed (\d+) failed; again: pytest (\S+::test_of_a_race .*)", out)
    assert match is not None
    assert 1000 <= int(match[1]) < 1060
    assert f"seed {match[1]} failed" in run_suite(tmp_path, SUITE, *shlex.split(match[2]))


@pytest.mark.parametrize(
    "options", [["--uringloop-first-seed=7"], ["--uringloop-first-seed=-1", "--uringloop-seeds=2"]]
)
def test_a_first_seed_without_seeds_or_below_zero_is_refused(
    tmp_path: Path, options: list[str]
) -> None:
    out = run_suite(tmp_path, SUITE, *options)
    assert "--uringloop-first-seed needs --uringloop-seeds, and must not be negative" in out


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (["--uringloop-seeds=60"], "the seeds 0 to 59"),
        (["--uringloop-seeds=60", "--uringloop-first-seed=100"], "the seeds 100 to 159"),
        (["--uringloop-seeds=60", "--uringloop-seed=7"], "the seed 7"),
    ],
)
def test_the_header_names_the_seeds(tmp_path: Path, options: list[str], where: str) -> None:
    out = run_suite(tmp_path, SUITE, "--collect-only", *options)
    on = "asynchronous tests on uringloop.testing.Loop"
    assert f"uringloop: {uringloop.__version__}, {on}, under {where}\n" in out


def test_the_header_names_the_ring_of_ordinary_loops(tmp_path: Path) -> None:
    out = run_suite(tmp_path, MARKED, "--collect-only")
    assert f"uringloop: {uringloop.__version__}, on {describe_ring()}" in out


def test_another_seed_alone_passes(tmp_path: Path) -> None:
    out = run_suite(tmp_path, SUITE, "--uringloop-seeds=60")
    match = re.search(r"seed (\d+) failed", out)
    assert match is not None
    other = 0 if match[1] != "0" else 1
    assert "3 passed" in run_suite(tmp_path, SUITE, f"--uringloop-seed={other}")


def test_the_order_of_ordinary_loops(tmp_path: Path) -> None:
    out = run_suite(tmp_path, SUITE, "--uringloop-seeds=60", "--uringloop-order=fifo")
    assert "3 passed" in out


def test_without_options_tests_run_once_in_real_time(tmp_path: Path) -> None:
    out = run_suite(tmp_path, SUITE, "-k", "race")
    assert "1 passed" in out
    assert "virtual time" not in out


def test_the_marker_repeats_one_test(tmp_path: Path) -> None:
    out = run_suite(tmp_path, MARKED)
    assert "2 passed" in out
    assert "7 runs of 1 tests" in out


def test_anyio(tmp_path: Path) -> None:
    pytest.importorskip("anyio")
    out = run_suite(tmp_path, ANYIO, "--uringloop-seeds=60", plugins=("anyio",))
    assert "1 failed, 1 passed" in out
    assert "of 2 tests: 60,000 s of virtual time" in out


def test_a_count_below_one_is_refused(tmp_path: Path) -> None:
    out = run_suite(tmp_path, SUITE, "--uringloop-seeds=0")
    assert "--uringloop-seeds must be at least 1" in out


UNITTEST = """if True:
    import asyncio, unittest
    import uringloop

    class Own(unittest.IsolatedAsyncioTestCase):
        async def asyncSetUp(self):
            self.started = asyncio.get_running_loop().time()

        async def test_sleeps(self):
            await asyncio.sleep(1000)
            self.assertGreaterEqual(asyncio.get_running_loop().time() - self.started, 1000)

        async def test_of_an_order(self):
            seen = []
            async def note(number):
                seen.append(number)
            await asyncio.gather(*(note(number) for number in range(3)))
            self.assertNotEqual(seen, [2, 1, 0])

        def test_without_a_loop(self):
            pass

    class Chosen(unittest.IsolatedAsyncioTestCase):
        loop_factory = asyncio.SelectorEventLoop

        async def test_has_its_own_loop(self):
            self.assertNotIsInstance(asyncio.get_running_loop(), uringloop.Loop)
"""

ORDINARY = """if True:
    import asyncio, unittest
    import uringloop

    class Own(unittest.IsolatedAsyncioTestCase):
        async def test_on_the_ordinary_loop(self):
            self.assertIs(type(asyncio.get_running_loop()), uringloop.Loop)
"""

HAS_FACTORY = hasattr(unittest.IsolatedAsyncioTestCase, "loop_factory")


def test_cases_of_unittest_run_under_seeds(tmp_path: Path) -> None:
    own = UNITTEST if HAS_FACTORY else UNITTEST.partition("    class Chosen")[0]
    out = run_suite(tmp_path, own, "--uringloop-seeds=60")
    assert f"1 failed, {3 if HAS_FACTORY else 2} passed" in out
    assert re.search(r"seed \d+ failed; again: pytest \S+::Own::test_of_an_order", out)
    assert re.search(r"runs of \d tests: 60,000 s of virtual time", out)


def test_cases_of_unittest_run_on_the_ordinary_loop(tmp_path: Path) -> None:
    assert "1 passed" in run_suite(tmp_path, ORDINARY)


def test_a_trace_is_written(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    run_suite(tmp_path, SUITE, "--uringloop-seed=1", f"--uringloop-trace={trace}")
    assert re.search(r"run Task-\d+ test_passes", trace.read_text())


def test_seeds_are_spread_over_processes(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    out = run_suite(tmp_path, SUITE, "--uringloop-seeds=30", "-n2", plugins=XDIST)
    assert "1 failed, 2 passed" in out
    assert re.search(r"again: pytest \S+::test_of_a_race .* --uringloop-seed=\d+", out)


FIXTURE = """if True:
    import asyncio
    from uringloop import testing

    seen = []

    def test_makes_its_loop(uringloop_seed):
        with asyncio.Runner(loop_factory=lambda: testing.Loop(uringloop_seed)) as runner:
            runner.run(asyncio.sleep(10))
        seen.append(uringloop_seed)

    def test_has_had_its_seeds():
        print("seeds", seen)
"""


@pytest.mark.parametrize(
    ("option", "seeds"),
    [("--uringloop-seeds=4", "[0, 1, 2, 3]"), ("--uringloop-seed=7", "[7]"), ("-q", "[0]")],
)
def test_a_test_may_ask_for_its_seed(tmp_path: Path, option: str, seeds: str) -> None:
    out = run_suite(tmp_path, FIXTURE, option)
    assert "2 passed" in out
    assert f"seeds {seeds}" in out


CLASSES = """if True:
    import asyncio, pytest

    class TestState:
        async def test_begins_anew(self):
            assert not hasattr(self, "used")
            self.used = True

    @pytest.mark.xfail(strict=True)
    async def test_fails_under_one_seed(uringloop_seed):
        assert uringloop_seed != 5

    async def test_sleeps():
        await asyncio.sleep(60)
"""


def test_each_seed_has_an_instance_and_a_strict_xfail_may_fail_later(tmp_path: Path) -> None:
    out = run_suite(tmp_path, CLASSES, "--uringloop-seeds=10")
    assert "2 passed, 1 xfailed" in out


def test_virtual_time_stays_virtual_under_xdist(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    suite = CLASSES + "\n".join(
        f"    async def test_{number}(): await asyncio.sleep(600)" for number in range(40)
    )
    out = run_suite(tmp_path, suite, "--uringloop-seeds=20", "-n1", plugins=XDIST)
    assert "42 passed, 1 xfailed" in out


@pytest.mark.parametrize("arguments", ["0", "-5", "10, 20", "'10'"])
def test_a_marker_without_meaning_is_refused(tmp_path: Path, arguments: str) -> None:
    suite = f"import pytest\n@pytest.mark.uringloop_seeds({arguments})\nasync def test_it(): pass\n"
    out = run_suite(tmp_path, suite)
    assert "test_it: uringloop_seeds takes one number of seeds, at least 1" in out
    assert "INTERNALERROR" not in out
