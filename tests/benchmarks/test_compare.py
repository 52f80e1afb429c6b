"""The comparison of loops: its rows, cells of missing loops and tools, and merged reports."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from uringloop._cpython import gil
from uringloop.bench import loops
from uringloop.bench.placement import choose
from uringloop.bench.rows import Cell
from uringloop.bench.settings import BenchError, EchoLoad

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

# The packages of this folder are imported by name.
sys.path.insert(0, str(BENCHMARKS))
compare = importlib.import_module("compare.cli")
methods = importlib.import_module("compare.methods")
rows = importlib.import_module("compare.rows")
thread_rows = importlib.import_module("compare.threads")
reference = importlib.import_module("compare.reference")
report = importlib.import_module("compare.report")
workers = importlib.import_module("compare.workers")
workloads = importlib.import_module("compare.workloads")

CLIENTS, PAIRS, PROGRAMS = workloads.CLIENTS, workloads.PAIRS, workloads.PROGRAMS

pytestmark = pytest.mark.usefixtures("restored_sigterm")

LOOPS = ["asyncio", "uvloop", "uringloop"]

# No release of winloop runs on Linux.
MISSING = "winloop"

# Seconds; the shortest round that can be measured.
SHORT = 0.02


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if not loops.installed(name):
        pytest.skip(f"needs {name}: pip install '.[bench]'")
    return name


def figures(method: Any, loop: str, directory: Path) -> dict[str, float]:
    """Measure one short round; skip the test if this machine lacks a program or a feature."""
    bench = methods.Bench(choose(True), directory, SHORT, quick=True)
    try:
        with method(bench) as measure:
            taken: dict[str, float] = measure(loop)
            return taken
    except methods.Refused as exc:
        if exc.kind != "missing":
            raise
        pytest.skip(exc.reason)


# ── the rows ─────────────────────────────────────────────────────────────────────────────────


def test_row_names_are_unique_and_goals_are_ratios() -> None:
    names = [row.name for row in (*rows.ROWS, *thread_rows.ROWS)]
    assert len(set(names)) == len(names)
    for row in rows.ROWS:
        # Files are compared with threads.
        largest = rows.FILES_GOAL if row.name.startswith("file-") else 4
        assert row.goal is None or 0.5 <= row.goal <= largest, row.name
        assert row.figure in ("cpu", "wall", "memory", "p99"), row.name


def test_every_row_has_a_workload() -> None:
    for row in rows.ROWS:
        method = row.method
        if isinstance(method, methods.Program):
            assert method.name in (*PROGRAMS, *CLIENTS, "create"), row.name
            assert (method.name in CLIENTS) == (method.backend is not None), row.name
        elif isinstance(method, (methods.Echo, methods.Load, methods.Http)):
            assert method.mode in workloads.SERVERS, row.name
        else:
            assert isinstance(method, methods.Tail) or method is methods.importing, row.name
        if isinstance(method, methods.Load):
            assert method.load in methods.loads.LOADS, row.name


def test_every_row_of_threads_has_a_workload() -> None:
    for row in thread_rows.ROWS:
        assert row.name.startswith("threads-")
        assert row.method.name in (*PROGRAMS, *PAIRS), row.name


def test_every_workload_has_a_row() -> None:
    measured = {
        getattr(row.method, "mode", getattr(row.method, "name", ""))
        for row in (*rows.ROWS, *thread_rows.ROWS)
    }
    assert {*workloads.SERVERS, *PROGRAMS, *CLIENTS, *PAIRS} <= measured


def test_rows_are_chosen_by_name_group_and_pattern() -> None:
    assert [row.name for row in rows.named(["one-way"])] == ["one-way/receive", "one-way/send"]
    assert [row.name for row in rows.named(["udp", "tcp-10?k*"])] == ["tcp-100k/100000x50", "udp"]
    assert rows.named(["threads-*"]) == thread_rows.ROWS
    assert rows.named([]) == [*rows.ROWS, *thread_rows.ROWS]


# ── the workloads, under every loop ──────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "connect",
        "udp",
        "tls/1000x50",
        "one-way/receive",
        "tls-one-way/receive",
        "tls-one-way/send",
        "tls-connect/full",
        "tls-connect/resumed",
    ],
)
def test_a_simple_load_is_answered_in_full(loop: str, name: str, tmp_path: Path) -> None:
    (row,) = rows.named([name])
    if name.startswith("tls") and shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    taken = figures(row.method, loop, tmp_path)
    assert taken["cpu"] > 0
    assert taken["wall"] > 0


@pytest.mark.slow
def test_what_is_sent_one_way_is_checked(loop: str, tmp_path: Path) -> None:
    (row,) = rows.named(["one-way/send"])
    assert figures(row.method, loop, tmp_path)["cpu"] > 0


@pytest.mark.slow
def test_idle_connections_cost_memory(loop: str, tmp_path: Path) -> None:
    (row,) = rows.named([f"idle-rss/128x{rows.IDLE}"])

    def memory() -> float:
        return figures(row.method, loop, tmp_path)["memory"]

    # Without a GIL the server's allocator may meanwhile give back 3 MB that were free before: more
    # than some hundred connections take. It does so in few rounds.
    assert any(0 < memory() < 2**20 for _ in range(3))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["http-raw", "uvicorn", "aiohttp"])
def test_an_http_server_answers(loop: str, mode: str, tmp_path: Path) -> None:
    try:
        with methods.Bench(choose(True), tmp_path, SHORT).runner(mode).serving(loop) as served:
            host, port = served[1]
            connection = http.client.HTTPConnection(host, port, timeout=10)
            # Twice, because the connection stays open.
            for _ in range(2):
                connection.request("GET", "/")
                response = connection.getresponse()
                assert (response.status, response.read()) == (200, workloads.http.BODY)
            connection.close()
    except methods.Refused as exc:
        if exc.kind != "missing":
            raise
        pytest.skip(f"{exc.reason}: pip install '.[compare]'")


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_uses_its_server(name: str, tmp_path: Path) -> None:
    (row,) = [row for row in rows.ROWS if getattr(row.method, "name", "") == name]
    package = "ssl" if name.startswith("tls") else name.partition("-")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install '.[compare]'")
    assert figures(row.method, "uringloop", tmp_path)["cpu"] > 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_runs_to_its_end(loop: str, name: str) -> None:
    program = PROGRAMS[name]
    with asyncio.Runner(loop_factory=loops.load(loop)) as runner:
        try:
            runner.run(program.run(2 if name == "subprocess" else max(1000, program.unit)))
        except ModuleNotFoundError as exc:
            pytest.skip(f"needs {exc.name}: pip install '.[compare]'")


@pytest.mark.parametrize("name", PAIRS)
def test_every_pair_runs_to_its_end(loop: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "cached"
    file.write_bytes(bytes(16 * 4096))

    async def main() -> None:
        async with PAIRS[name](file) as pair:
            for _ in range(2):
                await asyncio.wait_for(pair.run(2 * pair.unit), 10)

    with asyncio.Runner(loop_factory=loops.load(loop)) as runner:
        runner.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sleep-1", "create"])
def test_a_program_is_measured_in_a_process_of_its_own(
    loop: str, name: str, tmp_path: Path
) -> None:
    taken = figures(methods.Program(name), loop, tmp_path)
    assert taken["cpu"] > 0
    assert taken["wall"] > 0


def test_a_server_is_one_that_warms_its_allocator(tmp_path: Path) -> None:
    runner = methods.Bench(choose(True), tmp_path, SHORT).runner("protocol")
    assert str(BENCHMARKS / "compare" / "server.py") in runner._server_command("asyncio")


def test_page_faults_stay_flat_once_the_allocator_is_warm() -> None:
    # Allocate like a receive into 256 KiB: the block shrinks before it is freed, so freeing it does
    # not raise the allocator's threshold.
    program = (
        f"import resource, socket, sys\nsys.path.insert(0, {str(BENCHMARKS)!r})\n"
        "from compare import allocator\n"
        "allocator.warm()\n"
        "left, right = socket.socketpair()\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "before = faults()\n"
        "for _ in range(1000): left.send(b'x'), right.recv(256 * 1024)\n"
        "print(faults() - before)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    # Without warm(), each receive causes at least one fault.
    assert int(ended.stdout) < 500


def test_a_program_is_shortened_in_whole_units() -> None:
    whole = PROGRAMS["call-soon-batch"].whole
    assert [whole(operations) for operations in (500_000, 50_400.0, 0.5)] == [500_000, 50_000, 1000]


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("Non-2xx or 3xx responses: 3\n5 requests in 1.00s", "Non-2xx"),
        ("Socket errors: connect 0, read 1\n5 requests in 1.00s", "read 1"),
        ("", "no request"),
    ],
)
def test_a_failed_load_raises_instead_of_giving_a_figure(output: str, words: str) -> None:
    assert methods.requests_of("  1234 requests in 1.00s, 5.00MB read") == 1234
    with pytest.raises(methods.Refused, match=words):
        methods.requests_of(output)


# ── the servers in C ─────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("name", reference.REFERENCES)
@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_the_servers_in_c_echo(tmp_path: Path, name: str, unix: bool) -> None:
    try:
        programs = reference.build(tmp_path)
    except BenchError as exc:
        pytest.skip(str(exc))
    bench = methods.Bench(choose(False), tmp_path, 0.2, programs=programs)
    taken = bench.runner("protocol", unix=unix).measure(name, EchoLoad(2**20, 3))
    assert taken.failure is None
    assert taken.answers > 0
    assert taken.server_cpu_ns > 0


# ── threads ──────────────────────────────────────────────────────────────────────────────────


def task(loop: str, cpus: int, name: str = "sleep-1") -> Any:
    """Return a task for a number of loops, which share the cores if there are not so many."""
    cores = sorted(os.sched_getaffinity(0))
    return workers.Task(loop, name, tuple(cores[n % len(cores)] for n in range(cpus)), SHORT, "")


@pytest.mark.parametrize("name", ["sleep-1", "pair-protocol"])
def test_a_worker_measures_its_rate_after_all_have_met(loop: str, name: str) -> None:
    met = []
    with asyncio.Runner(loop_factory=loops.load(loop)) as runner:
        rate = runner.run(workers.work(task(loop, 1, name), lambda: met.append(True)))
    assert rate > 100
    assert met == [True]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [[1], [2], [1, 1]])
def test_workers_run_together_if_there_is_no_gil(loop: str, processes: list[int]) -> None:
    tasks = [task(loop, cpus) for cpus in processes]
    if not gil.free_threaded():
        # The workers look only when all have worked: a module may switch the GIL on at any time.
        with pytest.raises(methods.Refused, match="cannot run without it") as refused:
            thread_rows.run_together(tasks)
        assert refused.value.kind == "GIL on"
        return
    rates = thread_rows.run_together(tasks)
    assert len(rates) == sum(processes)
    assert min(rates) > 100


@pytest.mark.slow
@pytest.mark.parametrize("cpus", [1, 2])
def test_a_worker_that_fails_ends_the_others(cpus: int) -> None:
    with pytest.raises(methods.Refused, match="builtins") as refused:
        thread_rows.run_together([task("builtins:nonesuch", cpus), task("asyncio", 1)])
    assert refused.value.kind == "failed"
    with pytest.raises(methods.Refused, match="TypeError"):
        thread_rows.run_together([task("builtins:range", cpus)])


def test_rows_of_threads_are_not_run_under_a_gil(tmp_path: Path) -> None:
    if gil.free_threaded():
        pytest.skip("needs a build with a GIL")
    bench = methods.Bench(choose(True), tmp_path, SHORT)
    with (
        pytest.raises(methods.Refused, match="needs a free-threaded Python") as refused,
        thread_rows.ROWS[0].method(bench),
    ):
        pass
    assert refused.value.kind == "not run"


# ── the command line ─────────────────────────────────────────────────────────────────────────


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "compare"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | environ
    )


@pytest.mark.slow
def test_a_report_names_missing_loops_and_tools(tmp_path: Path) -> None:
    files = tmp_path / "report.json", tmp_path / "report.md"
    names = "sleep-1,tcp-protocol/128x50,http-raw"
    ended = run(
        *("--quick", "--no-reference", "--duration", "0.05", "--rounds", "2"),
        *("--rows", names, "--loops", f"asyncio,{MISSING},uringloop"),
        *("--json", str(files[0]), "--markdown", str(files[1])),
        # Without wrk and all other tools.
        PATH="/nonexistent",
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == files[1].read_text()
    document = json.loads(files[0].read_text())
    assert document["schema"] == report.SCHEMA
    assert document["columns"] == ["asyncio", MISSING, "uringloop"]
    assert set(document["environments"][0]) >= {"kernel", "cpu", "python", "python_version"}
    assert document["settings"] == [{"rounds": 2, "seconds": 0.05, "quick": True}]
    found = {row["name"]: row for row in document["rows"]}
    assert list(found) == ["tcp-protocol/128x50", "http-raw", "sleep-1"]
    for name in ("tcp-protocol/128x50", "sleep-1"):
        row = found[name]
        assert row["cells"][MISSING]["status"] == "not installed"
        # The baseline is missing, so there is no ratio.
        assert row["met"] == {"uringloop": None}
        cell = row["cells"]["uringloop"]
        assert (cell["status"], len(cell["rounds"]), cell["ratio"]) == ("ok", 2, None)
        assert cell["min"] <= cell["value"] <= cell["max"]
    assert found["http-raw"]["cells"]["asyncio"]["note"] == "wrk is not installed"
    assert "wrk is not installed" in ended.stdout
    table = [line for line in ended.stdout.splitlines() if line.startswith("|")]
    # A table of ratios and a table of figures.
    assert len(table) == 2 * (2 + 3)
    for half in (table[:5], table[5:]):
        assert len({line.count("|") for line in half}) == 1


@pytest.mark.slow
def test_a_failing_loop_is_a_failed_cell_and_status_1(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def loop():\n    raise OSError('no loop today')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    ended = run(
        *("--quick", "--rows", "sleep-1,create", "--loops", "broken:loop,uringloop"),
        PYTHONPATH=path,
    )
    assert ended.returncode == 1
    assert "broken:loop, sleep-1, create: failed: OSError: no loop today" in ended.stdout
    # In the table of ratios and in the table of figures.
    assert ended.stdout.count("| failed |") == 2 * 2


def test_the_list_has_every_row_with_its_goal(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--list"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    listed = rows.named([])
    goals = ["-" if row.goal is None else f"{row.goal:.2f}" for row in listed]
    assert lines == [[row.name, goal] for row, goal in zip(listed, goals, strict=True)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rows", "nonesuch"], "no row is named 'nonesuch'"),
        (["--loops", "nonesuch"], "unknown loop 'nonesuch'"),
        (["--loops", "nonesuch+asyncio"], "unknown layer 'nonesuch'"),
        (["--rounds", "0"], "--rounds"),
        (["--duration", "-1"], "--duration"),
        (["--json", "/nonexistent/report"], "No such file"),
        (["--plot", "picture.txt"], "--plot"),
        (["--merge", "/nonexistent/report"], "No such file"),
        (["--merge", __file__], "not a report"),
        (["--nonsense"], "--nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_prints_one_line_and_exits_with_status_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert output.err.startswith("compare: ")
    assert words in output.err


# ── reports ──────────────────────────────────────────────────────────────────────────────────


def table(version: str, **costs: list[float]) -> Any:
    """Return a report of two rows; the second row has a goal."""
    names = ["curve/128x10", "sleep-1"]
    made = [
        rows.Row(
            name, goal, None, cells={loop: Cell(loop, rounds=cost) for loop, cost in costs.items()}
        )
        for name, goal in zip(names, [None, 2.0], strict=True)
    ]
    settings = {"rounds": 3, "seconds": 1.0, "quick": False}
    return report.Table([{"python_version": version}], [settings], list(costs), made)


def test_a_goal_is_met_by_the_ratio_of_the_medians() -> None:
    (_, row) = table("3.13", uvloop=[9.0, 10.0, 30.0], uringloop=[5.0, 1.0, 9.0]).rows
    assert row.ratio("uringloop") == 2.0
    assert row.met("uringloop")
    assert row.met("uvloop") is False
    assert row.met("rloop") is None


def test_the_share_of_c_is_that_of_the_cheaper_server() -> None:
    servers = {"C epoll": [3.0], "C io_uring": [2.0]}
    old = table("3.13", uvloop=[9.0], uringloop=[4.0], **servers)
    new = table("3.14", uvloop=[9.0], uringloop=[5.0], **servers | {"C io_uring": [4.0]})
    assert (old.rows[0].share_of_c("uringloop"), new.rows[0].share_of_c("uringloop")) == (0.5, 0.6)
    merged = report.markdown(report.merge([old, new]))
    line = next(line for line in merged.splitlines() if line.startswith("| curve/128x10 |"))
    assert line.endswith("| 0.50 | 0.60 |")
    assert "share of C" not in report.markdown(table("3.13", uvloop=[9.0], uringloop=[4.0]))


def test_reports_of_several_pythons_are_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = table("3.13", uvloop=[10.0], rloop=[20.0], uringloop=[5.0])
    new = table("3.14", uvloop=[8.0], zuvloop=[4.0], uringloop=[8.0])
    new.rows[1].cells["zuvloop"].give_up("failed", "it died")
    paths = []
    for version, single in (("3.13", old), ("3.14", new)):
        paths.append(tmp_path / f"{version}.json")
        paths[-1].write_text(report.to_json(single))
    merged = tmp_path / "merged.json"
    assert compare.main(["--merge", *map(str, paths), "--json", str(merged)]) == 0
    output = capsys.readouterr().out
    assert "| rloop (3.13) |" in output
    assert "| yes (3.13), no (3.14) |" in output
    assert "zuvloop (3.14), sleep-1: failed: it died" in output
    document = json.loads(merged.read_text())
    cells = document["rows"][1]["cells"]
    assert cells["rloop (3.13)"]["ratio"] == 0.5
    assert cells["uringloop (3.14)"]["ratio"] == 1.0
    assert document["rows"][1]["met"] == {"uringloop (3.13)": True, "uringloop (3.14)": False}
    # A merged report can be loaded.
    assert report.load(merged).columns == document["columns"]
    assert compare.main(["--merge", str(paths[0]), str(paths[0])]) == 2


def threads_table() -> Any:
    """Return a report of two rows of threads: of the first, three loops have figures."""
    made = table("3.14")
    figures = {"uvloop": (100.0, 100.0), "uringloop": (290.0, 300.0), "rloop": (100.0, 200.0)}
    made.columns = list(figures)
    for name in ("threads-echo", "threads-files"):
        cells = {
            loop: Cell(
                loop,
                rounds=[
                    {"one": [80.0], "threads": [two / 2, two / 2], "processes": [apart / 2] * 2}
                ],
            )
            for loop, (two, apart) in figures.items()
        }
        made.threads.append(thread_rows.ThreadRow(name, None, "message", cells=cells))
    made.threads[1].cells["rloop"] = Cell("rloop", "GIL on", "a module of the loop switched it on")
    return made


def test_the_share_of_two_threads_has_a_goal() -> None:
    (row, _) = threads_table().threads
    assert row.share("rloop").value == 0.5
    assert row.share("rloop", "one").value == 1.25
    assert [row.met(loop) for loop in ("uvloop", "uringloop", "rloop", "asyncio")] == [
        *(True, True, False, None)
    ]


def test_the_report_of_threads_has_shares_and_rates() -> None:
    text = report.markdown(threads_table())
    assert "| threads-echo | 0.95 | **1.00 ±0%** | **0.97 ±0%** | 0.50 ±0% |" in text
    assert "| threads-files | 0.95 | **1.00 ±0%** | **0.97 ±0%** | GIL on |" in text
    assert (
        "| threads-echo | uringloop | message | 80 ±0% | 290 ±0% | 300 ±0% | 3.62 ±0% | 0.97 ±0% |"
        in text
    )
    assert "- rloop, threads-files: GIL on: a module of the loop switched it on" in text


def test_threads_with_a_core_of_their_own_are_about_as_fast() -> None:
    uneven = threads_table()
    uneven.threads[0].cells["uvloop"].rounds[0]["threads"] = [20.0, 80.0]
    assert "- uvloop, threads-echo: one thread was 4.00 times as fast" in report.markdown(uneven)


def test_a_report_says_why_no_row_of_threads_was_run() -> None:
    refused = threads_table()
    for row in refused.threads:
        for cell in row.cells.values():
            cell.give_up("not run", "needs a free-threaded Python")
    text = report.markdown(refused)
    assert "threads-echo, threads-files: not run: needs a free-threaded Python.\n" in text
    assert "Operations a second" not in text


def test_rows_of_threads_are_written_read_and_merged(tmp_path: Path) -> None:
    source = tmp_path / "report.json"
    written = report.to_json(threads_table())
    source.write_text(written)
    read = report.load(source)
    assert report.to_json(read) == written
    other = threads_table()
    other.environments = [{"python_version": "3.15"}]
    merged = report.merge([read, other])
    assert list(merged.threads[0].cells) == [
        f"{loop} ({version})"
        for version in ("3.14", "3.15")
        for loop in ("uvloop", "uringloop", "rloop")
    ]
    assert merged.threads[0].share("rloop (3.15)").value == 0.5
    document = json.loads(report.to_json(merged))
    assert document["threads"][0]["met"] == {"uringloop (3.14)": True, "uringloop (3.15)": True}


@pytest.mark.slow
def test_rows_of_threads_are_drawn(tmp_path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("needs matplotlib: pip install '.[compare]'")
    source, picture = tmp_path / "report.json", tmp_path / "report.svg"
    source.write_text(report.to_json(threads_table()))
    ended = run("--merge", str(source), "--plot", str(picture))
    assert ended.returncode == 0, ended.stderr
    assert picture.stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_report_is_drawn(tmp_path: Path, suffix: str) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("needs matplotlib: pip install '.[compare]'")
    single = table("3.13", uvloop=[10.0], uringloop=[5.0], **{"C epoll": [4.0]})
    single.rows[1].cells["uringloop"].give_up("not supported", "")
    # A curve has more than one point.
    single.rows.append(dataclasses.replace(single.rows[0], name="curve/128x50"))
    source, picture = tmp_path / "report.json", tmp_path / f"report{suffix}"
    source.write_text(report.to_json(single))
    # In a process of its own, because matplotlib raises warnings.
    ended = run("--merge", str(source), "--plot", str(picture))
    assert ended.returncode == 0, ended.stderr
    assert picture.stat().st_size > 1000
