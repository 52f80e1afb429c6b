"""The benchmark: its figures, its checks of the servers' answers, and the end of its processes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from uringloop._cpython import gil
from uringloop.bench import cli, counters, environment, placement
from uringloop.bench.client import Measurement, ServerWork, Task, explain_ring
from uringloop.bench.echo import SERVERS
from uringloop.bench.loadgen import FAILURE_KINDS, Histogram, LoadGenerator
from uringloop.bench.rows import Row, cells_of, median_of, require_installed
from uringloop.bench.runner import Runner
from uringloop.bench.settings import BenchError, EchoLoad, Refused, Settings

LOOPS = ["asyncio", "uringloop"]

# No release of winloop runs on Linux.
MISSING = "winloop"

QUICK = ["--duration", "0.05", "--clients", "3", "--sizes", "100"]


def measure(tmp_path: Path, name: str, load: EchoLoad, settings: Settings) -> Measurement:
    """Take one round of one loop."""
    return Runner(settings, placement.choose(False), tmp_path).measure(name, load)


def until(condition: Callable[[], bool], timeout: float = 10.0) -> bool:
    """Poll until *condition* holds; return whether it does within *timeout* seconds."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def assert_checked(measurement: Measurement) -> None:
    assert measurement.failure is None
    assert set(measurement.failures.values()) == {0}
    assert measurement.requests > 0
    assert measurement.server_cpu_ns > 0
    assert measurement.peak_rss_bytes > 2**20


# ── faulty servers ───────────────────────────────────────────────────────────


@contextlib.contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """Run *serve* with the first connection, in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                serve(connection)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listener.getsockname()[:2]
    finally:
        listener.close()
        thread.join()


def echo(connection: socket.socket, change: Callable[[int, bytes], bytes]) -> None:
    """Echo the result of *change*, which is called with the number and the data of a receive."""
    n = 0
    while data := connection.recv(65536):
        connection.sendall(change(n, data))
        n += 1


def failure_of(change: Callable[[int, bytes], bytes], size: int = 100) -> tuple[str, str]:
    """Return the kind and the text of the failure that *change* of the echo causes."""
    with serving(lambda connection: echo(connection, change)) as address:
        generator = LoadGenerator(address, 1, size, stall=0.2)
        try:
            generator.connect()
            assert generator.first_failure() is None
            generator.run(0.3)
            generator.drain(0.3)
            kinds = [kind for kind, count in generator.failures().items() if count]
            return ",".join(kinds), generator.first_failure() or ""
        finally:
            generator.close()


@pytest.mark.parametrize("at", [0, 7, 8, 99])
def test_a_changed_byte_is_a_mismatch_at_its_place(at: int) -> None:
    def change(n: int, data: bytes) -> bytes:
        return data if n < 5 else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    kind, text = failure_of(change)
    assert kind == "mismatches"
    assert text.endswith(f"request 6, byte {at})")


def test_a_changed_byte_of_a_large_message_is_a_mismatch() -> None:
    def change(n: int, data: bytes) -> bytes:
        return data if n < 5 else data[:-1] + bytes([data[-1] ^ 0x80])

    assert failure_of(change, size=10_000)[0] == "mismatches"


def test_a_repeated_old_echo_is_a_mismatch() -> None:
    first: list[bytes] = []

    def change(n: int, data: bytes) -> bytes:
        first.append(data)
        return first[0] if n == 3 else data

    assert failure_of(change)[0] == "mismatches"


def test_an_extra_echo_is_unexpected() -> None:
    assert failure_of(lambda n, data: data * 2 if n == 3 else data)[0] == "unexpected"


def test_a_missing_echo_is_a_stall() -> None:
    assert failure_of(lambda n, data: b"" if n == 3 else data)[0] == "stalls"


def test_a_dropped_connection_is_an_early_eof() -> None:
    def serve(connection: socket.socket) -> None:
        for _ in range(3):
            connection.sendall(connection.recv(100))

    with serving(serve) as address:
        generator = LoadGenerator(address, 1, 100)
        generator.connect()
        generator.run(5.0)
        assert generator.failures()["early_eofs"] + generator.failures()["errors"] == 1
        generator.close()


def test_a_refused_connection_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    generator = LoadGenerator(address, 2, 100)
    generator.connect()
    assert generator.failures()["errors"] == 2
    assert (generator.first_failure() or "").startswith(os.strerror(errno.ECONNREFUSED))
    generator.close()


def test_answers_that_are_not_taken_are_counted() -> None:
    """A server under many connections works ahead of the load generator."""

    def change(n: int, data: bytes) -> bytes:
        if n:
            time.sleep(0.1)
        return data

    with serving(lambda connection: echo(connection, change)) as address:
        generator = LoadGenerator(address, 1, 100)
        generator.connect()
        assert generator.run(0.02)[0] == 0
        assert generator.untaken() == 0
        time.sleep(0.3)
        assert generator.untaken() == 1
        generator.drain()
        assert generator.untaken() == 0
        generator.close()


def test_a_server_s_work_is_divided_by_its_own_answers() -> None:
    task = Task("", os.getpid(), 1, 100, 0.0, 0.0, 0.0, 0.0, False)

    class Ahead:
        ahead = 5

        def untaken(self) -> int:
            return self.ahead

    generator = Ahead()
    work = ServerWork(task, generator)  # type: ignore[arg-type]
    generator.ahead = 12
    cpu_ns, answers = work.since(100)
    assert answers == 107
    assert cpu_ns >= 0


# ── the open loop ────────────────────────────────────────────────────────────


def stalled_latencies(rate: float) -> Histogram:
    """Measure half a second at a server that sleeps once for 200 ms."""

    def change(n: int, data: bytes) -> bytes:
        if n == 20:
            time.sleep(0.2)
        return data

    with serving(lambda connection: echo(connection, change)) as address:
        generator = LoadGenerator(address, 1, 100, rate=rate, spinning=True)
        generator.connect()
        _, _, _, latencies = generator.run(0.5)
        generator.drain()
        assert generator.first_failure() is None
        generator.close()
        return latencies


@pytest.mark.slow
def test_the_open_loop_shows_a_stall_that_the_closed_loop_hides() -> None:
    # The stall delays 200 of 500 scheduled requests, but only one of the closed loop's thousands.
    assert stalled_latencies(1000.0).percentile(80) > 50_000_000
    assert stalled_latencies(0.0).percentile(99) < 50_000_000


@pytest.mark.slow
def test_the_open_loop_counts_a_stall_at_the_end_of_an_interval() -> None:
    released = threading.Event()

    def change(n: int, data: bytes) -> bytes:
        if n == 100:
            released.wait(10)
        return data

    with serving(lambda connection: echo(connection, change)) as address:
        generator = LoadGenerator(address, 1, 100, rate=1000.0)
        generator.connect()
        answered, unanswered, _, latencies = generator.run(0.4)
        released.set()
        generator.drain()
        generator.close()
    assert answered < 150
    assert answered + unanswered == pytest.approx(400, abs=20)
    assert latencies.count() == answered + unanswered
    assert latencies.percentile(99) > 200_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_the_rate_of_the_open_loop_is_honoured(tmp_path: Path, name: str) -> None:
    settings = Settings(duration=0.3, rate=2000.0)
    rates: list[float] = []
    # What became due while another program had the processors is counted when it is sent.
    while len(rates) < 10 and (not rates or rates[-1] != pytest.approx(2000.0, rel=0.05)):
        measurement = measure(tmp_path, name, EchoLoad(128, 4), settings)
        assert_checked(measurement)
        requests = measurement.requests + measurement.unanswered
        rates.append(requests / measurement.elapsed_ns * 1e9)
    assert rates[-1] == pytest.approx(2000.0, rel=0.05), rates


# ── loops and modes ──────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("mode", SERVERS)
def test_every_mode_echoes_over_tcp(tmp_path: Path, name: str, mode: str) -> None:
    settings = Settings(mode=mode, duration=0.2)
    assert_checked(measure(tmp_path, name, EchoLoad(1000, 10), settings))


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("mode", ["protocol", "sockets"])
def test_unix_sockets_echo(tmp_path: Path, name: str, mode: str) -> None:
    settings = Settings(mode=mode, duration=0.2, unix=True)
    assert_checked(measure(tmp_path, name, EchoLoad(1000, 10), settings))
    assert not list(tmp_path.glob("echo-*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_messages_larger_than_any_buffer_echo(tmp_path: Path, name: str) -> None:
    assert_checked(measure(tmp_path, name, EchoLoad(2**20, 3), Settings(duration=0.1)))


@pytest.mark.parametrize("size", [1, 8, 9, 2048, 2049, 65_537])
def test_every_size_of_message_is_checked(size: int) -> None:
    with serving(lambda connection: echo(connection, lambda n, data: data)) as address:
        generator = LoadGenerator(address, 1, size)
        generator.connect()
        answered, _, _, latencies = generator.run(0.02)
        generator.drain()
        assert generator.first_failure() is None
        assert latencies.count() == answered > 0
        generator.close()


# ── rows, cells and rounds ───────────────────────────────────────────────────


def order_of(names: str, *, rotating: bool = False) -> str:
    """Return in which order three rounds measure loops of these names."""
    measured: list[str] = []
    row = Row[None]("a row", cells=cells_of(names))
    row.measure(3, measured.append, lambda cell: None, rotating=rotating)
    return "".join(measured)


def test_loops_take_turns_in_each_round() -> None:
    assert order_of("abc") == "abcabcabc"
    assert order_of("abc", rotating=True) == "abcbcacab"


def test_a_refused_loop_takes_no_more_rounds_and_the_others_do() -> None:
    def measure(loop: str) -> int:
        if loop == MISSING:
            require_installed(loop)
        if loop == "b" and row.cells["b"].rounds:
            raise Refused("failed", "it died")
        return 1

    row = Row[int]("a row", cells=cells_of(["a", "b", MISSING]))
    steps: list[tuple[str, str]] = []
    row.measure(3, measure, lambda cell: steps.append((cell.loop, cell.status)))
    assert [len(cell.rounds) for cell in row.cells.values()] == [3, 1, 0]
    assert row.cells["b"].note == "it died"
    assert steps[-3:] == [("a", "ok"), ("b", "failed"), (MISSING, "not installed")]


def test_another_exception_ends_the_rounds() -> None:
    def measure(loop: str) -> int:
        raise BenchError("port 1 is in use")

    with pytest.raises(BenchError):
        Row[int]("a row", cells=cells_of("ab")).measure(1, measure, lambda cell: None)


def test_a_median_has_the_spread_of_its_rounds() -> None:
    quantity = median_of([4.0, 1000.0, 1500.0])
    assert quantity.text(1.0, 1) == "1,000.0 ±75%"
    assert quantity.json() == {
        "value": 1000.0,
        "min": 4.0,
        "max": 1500.0,
        "rounds": [4.0, 1000.0, 1500.0],
    }


# ── counters and the histogram ───────────────────────────────────────────────


def test_percentiles_are_within_one_percent() -> None:
    histogram = Histogram()
    for value in range(1, 100_001):
        histogram.record(value * 10)
    assert histogram.count() == 100_000
    for percent in (1, 50, 99, 99.9):
        assert histogram.percentile(percent) == pytest.approx(percent * 10_000, rel=0.01)


def test_small_values_are_exact_and_large_ones_are_kept() -> None:
    histogram = Histogram()
    histogram.record(3)
    assert histogram.percentile(100) == 3
    histogram.record(2**63)
    assert histogram.percentile(100) > 10**12


def test_merged_histograms_have_the_values_of_both() -> None:
    left, right = Histogram(), Histogram()
    left.record(1000, 99)
    right.record(1_000_000)
    left.merge(right)
    copy = Histogram.from_items(left.items())
    assert copy.count() == 100
    assert copy.percentile(50) == pytest.approx(1000, rel=0.01)
    assert copy.percentile(100) == pytest.approx(1_000_000, rel=0.01)


def test_an_empty_histogram_has_percentiles_of_zero() -> None:
    assert Histogram().percentile(50) == 0
    with pytest.raises(ValueError, match="percentile"):
        Histogram().percentile(101)


def test_kernel_entries_count_every_thread() -> None:
    # In a process of its own: this process may have threads of other tests.
    program = (
        "import os, threading\n"
        "ask = lambda: [os.getppid() for _ in range(1000)]\n"
        "input('begun\\n')\n"
        "thread = threading.Thread(target=ask)\n"
        "thread.start()\n"
        "thread.join()\n"
        "input('done\\n')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        try:
            entries = counters.KernelEntries(child.pid)
        except OSError as exc:
            child.kill()
            pytest.skip(f"perf events are refused: {exc}")
        try:
            before = entries.total()
            child.stdin.write("go on\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"
            assert 1000 <= entries.total() - before < 1500
        finally:
            entries.close()
            child.kill()


def test_cpu_time_of_a_process_equals_its_own_clock() -> None:
    first = time.process_time_ns()
    seen = counters.cpu_ns(os.getpid())
    assert first <= seen <= time.process_time_ns()


def test_idle_processors_are_kept_awake_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "cpu_dma_latency"
    monkeypatch.setattr(placement, "_LATENCY", device)
    with placement.awake() as note:
        assert device.read_bytes() == bytes(4)
        # Closing the descriptor ends the request.
        found = (Path(f"/proc/self/fd/{number}") for number in range(100))
        assert device in {each.readlink() for each in found if each.exists()}
    assert note == f"kept awake by {device}"
    device.unlink()
    device.mkdir()
    with placement.awake() as note:
        assert note == f"may sleep ({device}: Is a directory)"


# ── the command line ─────────────────────────────────────────────────────────


@pytest.mark.usefixtures("restored_sigterm")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--loops", "nonesuch"], "unknown loop 'nonesuch'"),
        (["--loops", "os:nothing"], "'nothing'"),
        (["--sizes", "0"], "--sizes: 0"),
        (["--sizes", "many"], "'many'"),
        (["--clients", "0"], "--clients: 0"),
        (["--clients", "2000000"], "open files"),
        (["--duration", "-1"], "--duration"),
        (["--duration", "nan"], "--duration"),
        (["--rounds", "2"], "--rounds"),
        (["--mode", "carrier"], "--mode"),
        (["--rate", "-5"], "--rate"),
        (["--port", "70000"], "--port"),
        (["--full", "--sizes", "1"], "--full"),
        (["--json", "/nonexistent/report"], "No such file"),
        (["--nonsense"], "--nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_prints_one_line_and_exits_with_status_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert output.err.startswith("bench: ")
    assert words in output.err


def bench(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """Run the benchmark to its end; *code* runs before it in its process."""
    program = f"{code}\nimport sys\nfrom uringloop.bench.cli import main\nsys.exit(main())"
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def on_path(directory: Path) -> str:
    """Return the code that makes the modules of *directory* importable, by children too."""
    return (
        f"import os, sys\nsys.path.insert(0, {str(directory)!r})\n"
        f"os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, sys.path))"
    )


@pytest.mark.slow
def test_a_port_in_use_prints_one_line_and_exits_with_status_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ended = bench("--loops", "asyncio", "--port", str(port), *QUICK)
    assert ended.returncode == 2
    assert ended.stderr == f"bench: port {port} is in use\n"


# A seccomp filter like Docker's: io_uring_setup (425) fails with EPERM, all other calls succeed.
WITHOUT_IO_URING = """
import ctypes, struct
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in code))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(len(code), ctypes.addressof(instructions))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(program)) == 0
"""


@pytest.mark.slow
def test_a_refused_io_uring_prints_one_line_and_exits_with_status_2() -> None:
    ended = bench("--loops", "asyncio", *QUICK, code=WITHOUT_IO_URING)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "io_uring is not available" in ended.stderr
    assert "kernel.io_uring_disabled" in ended.stderr


@pytest.mark.parametrize(
    ("error", "words"),
    [(errno.ENOSYS, "seccomp"), (errno.EINVAL, "too old"), (errno.ENOMEM, "memory")],
)
def test_the_message_names_why_io_uring_is_missing(error: int, words: str) -> None:
    assert words in explain_ring(OSError(error, os.strerror(error)))


@pytest.mark.slow
def test_a_run_is_reported_as_table_markdown_and_json(tmp_path: Path) -> None:
    files = tmp_path / "report.json", tmp_path / "report.md"
    ended = bench(
        *("--loops", f"asyncio,{MISSING},uringloop", *QUICK),
        *("--json", str(files[0]), "--markdown", str(files[1])),
    )
    assert ended.returncode == 0, ended.stderr
    progress = ended.stderr.splitlines()
    assert [line.split()[1].rstrip(",") for line in progress] == [
        "asyncio",
        MISSING,
        "uringloop",
    ] * 3
    assert "not installed" in next(
        line for line in ended.stdout.splitlines() if MISSING in line[:40]
    )
    document = json.loads(files[0].read_text())
    assert document["schema"] == 2
    assert set(document["environment"]) >= {"kernel", "cpu", "cores", "mitigations", "python"}
    rows = {row["loop"]: row for row in document["rows"]}
    assert rows[MISSING]["status"] == "not installed"
    for name in LOOPS:
        row = rows[name]
        assert (row["size"], row["clients"], row["status"]) == (100, 3, "ok")
        assert row["failures"] == [dict.fromkeys(FAILURE_KINDS, 0)] * 3
        quantity = row["server_cpu_ns_per_request"]
        assert len(quantity["rounds"]) == 3
        assert quantity["min"] <= quantity["value"] <= quantity["max"]
        assert row["latency_ns"]["p50"]["value"] <= row["latency_ns"]["p99.9"]["value"]
        assert row["peak_rss_bytes"]["value"] > 2**20
    table = [line for line in files[1].read_text().splitlines() if line.startswith("|")]
    assert len(table) == 2 + 3
    assert len({line.count("|") for line in table}) == 1


def test_the_report_names_a_free_threaded_python(monkeypatch: pytest.MonkeyPatch) -> None:
    version = f"CPython {platform.python_version()}"
    seen = []
    for free_threaded, on in ((False, True), (True, True), (True, False)):
        monkeypatch.setattr(gil, "free_threaded", lambda built=free_threaded: built)
        monkeypatch.setattr(gil, "enabled", lambda state=on: state)
        seen.append(environment.describe([], "", "")["python"].partition(" (")[0])
    threads = f"{version} free-threading"
    assert seen == [version, f"{threads}, GIL on", f"{threads}, GIL off"]


@pytest.mark.slow
def test_a_server_that_cannot_start_fails_the_run_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def loop():\n    raise OSError('no loop today')\n")
    ended = bench("--loops", "broken:loop", *QUICK, code=on_path(tmp_path))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].endswith("failed: OSError: no loop today")


# ── endings ──────────────────────────────────────────────────────────────────


def children_of(pid: int) -> set[int]:
    """Return the running child processes of *pid*."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            # The fields after the name, which may contain spaces: the state, then the parent.
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.add(int(name))
    return found


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["ctrl-c", "sigterm", "sigkill"],
)
def test_no_process_outlives_the_benchmark(number: int, status: int) -> None:
    command = [sys.executable, "-m", "uringloop.bench", "--loops", "asyncio", "--duration", "30"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        # The server, then the load generator.
        assert until(lambda: len(children_of(process.pid)) == 2)
        children = children_of(process.pid)
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == status
    assert b"Traceback" not in errors
    assert until(lambda: not any(map(runs, children)))


@pytest.mark.slow
def test_a_failure_names_a_server_that_died(tmp_path: Path) -> None:
    (tmp_path / "mortal.py").write_text(
        "import asyncio, os\n"
        "def loop():\n"
        "    made = asyncio.SelectorEventLoop()\n"
        "    made.call_later(0.2, os._exit, 7)\n"
        "    return made\n"
    )
    ended = bench("--loops", "mortal:loop", *QUICK[2:], "--duration", "5", code=on_path(tmp_path))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].endswith("failed: the server died: exit status 7")


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_a_server_ends_on_sigterm_and_when_its_parent_ends(name: str) -> None:
    command = [sys.executable, "-m", "uringloop.bench.server", "--loop", name]
    for ending in ("sigterm", "parent"):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdin is not None
            assert json.loads(server.stdout.readline())["pid"] == server.pid
            if ending == "sigterm":
                server.terminate()
                assert server.wait(10) == 0
            else:
                server.stdin.close()
                assert server.wait(10) == -signal.SIGIO
