"""Tools that watch asyncio programs see on this loop what they see on asyncio.

Most tests run one of tool_program.py's programs under a tool, on asyncio and on this loop, and
expect the same of both. The tools are imported by the programs only: many change what they watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from application import app
from programs import (
    HERE,
    INSTALL,
    Address,
    Process,
    connector,
    needs,
    needs_elsewhere,
    process,
    program,
    python,
    quiet,
    serving_with_uvicorn,
)
from support.roles import PATIENCE, Loop, running_in_thread, turns, unused_port, wait_until

import uringloop
from uringloop import monitor
from uringloop._loop.stats import COUNTERS, GAUGES, TIMES
from uringloop.monitor import otel

pytestmark = quiet

PROGRAM = HERE / "tool_program.py"
OURS = "uringloop:new_event_loop"
each_name = pytest.mark.parametrize("name", ["asyncio", OURS])

# What a program notes that does work of all kinds.
NOTES = {
    *("call_soon", "call_soon_threadsafe", "call_later", "reader"),
    *("run_in_executor", "to_thread", "task"),
    *(f"{end} {event}" for end in ("client", "server") for event in ("made", "received", "lost")),
}


def needs_here(*packages: str) -> None:
    """Skip the test unless the *packages*, which it does not import, are installed."""
    for package in packages:
        # To look for a module imports its package.
        for part in itertools.accumulate(package.split("."), "{}.{}".format):
            needs_elsewhere(part)


def script(name: str) -> str:
    """Return the path of a command of this environment, or skip the test without it."""
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        pytest.skip(f"{name}: {INSTALL}")
    return str(path)


def report(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Any:
    """Run *command* to its end, and return what its program has reported."""
    with process(command, environment=environment) as running:
        assert running.wait() == 0, running.output
    found = re.search(r"^report (.*)$", running.output, re.MULTILINE)
    assert found, running.output
    return json.loads(found[1])


@contextlib.contextmanager
def holding(name: str, what: str, pattern: str) -> Iterator[tuple[Process, int]]:
    """Run a program that waits for the end of its input; yield it and the number it prints."""
    with process(python(str(PROGRAM), name, what), stdin=subprocess.PIPE) as running:
        number = int(running.read_until(rf"{pattern} (\d+)")[1])
        stdin = running.running.stdin
        assert stdin is not None
        try:
            yield running, number
        finally:
            stdin.close()
            running.running.stdin = None
        assert running.wait() == 0, running.output


def look_at(command: Sequence[str]) -> str:
    """Return the output of a *command* that reads another process; skip if it may not."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    output = done.stdout + done.stderr
    if done.returncode:
        if re.search(r"(?i)permission|not permitted|PermissionError", output):
            pytest.skip("this process may not read others: ptrace is refused")
        if "Unsupported version of Python" in output:
            pytest.skip("the tool does not support this version of Python")
    assert done.returncode == 0, output
    return output


def connect_to(port: int) -> socket.socket:
    """Connect to a server that is about to listen."""
    connected: list[socket.socket] = []

    def tried() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            connected.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
        return bool(connected)

    wait_until(tried)
    return connected[0]


# ── Sentry ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_sentry_reports_the_errors_and_spans_of_tasks_as_on_asyncio() -> None:
    needs_here("sentry_sdk")
    stock, ours = (report(python(str(PROGRAM), name, "sentry")) for name in ("asyncio", OURS))
    # Some versions of asyncio name a task that a factory has made `None` unless it has a name.
    (first, named, last), theirs = ours.pop("names"), stock.pop("names")
    assert (first, named, last) == ("succeed (Sentry-wrapped)", theirs[1], first)
    assert ours == stock
    assert ours["results"] == ["1", "LookupError('on purpose')", "3"]
    assert ours["coroutines"] == ["succeed", "fail", "succeed"]
    mechanism = {"type": "asyncio", "handled": False}
    assert ours["event"] == ["LookupError", mechanism, "whole", "fail"]
    assert [span[1] for span in ours["spans"]] == ["succeed", "fail", "succeed"]
    assert {span[2] for span in ours["spans"]} == {"auto.function.asyncio"}


# ── OpenTelemetry: spans ─────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@each_name
def test_opentelemetry_traces_coroutines_futures_and_threads(name: str) -> None:
    needs_here("opentelemetry.sdk", "opentelemetry.instrumentation.asyncio")
    environment = {
        "OTEL_PYTHON_ASYNCIO_COROUTINE_NAMES_TO_TRACE": "succeed,fail",
        "OTEL_PYTHON_ASYNCIO_FUTURE_TRACE_ENABLED": "true",
        "OTEL_PYTHON_ASYNCIO_TO_THREAD_FUNCTION_NAMES_TO_TRACE": "str",
    }
    reported = report(python(str(PROGRAM), name, "opentelemetry"), environment)
    assert reported["spans"] == [
        ["asyncio coro-fail", "whole", "ERROR"],
        ["asyncio coro-succeed", "whole", "UNSET"],
        ["asyncio coro-succeed", "whole", "UNSET"],
        ["asyncio future", "whole", "UNSET"],
        ["asyncio to_thread-str", "whole", "UNSET"],
        ["whole", None, "UNSET"],
    ]
    assert reported["results"] == ["1", "LookupError('on purpose')", "3"]


# The fixtures that import the SDK come before that of a loop, which counts descriptors: from Python
# 3.15 on one of its imports keeps a file open.
@pytest.fixture
def traces() -> tuple[Any, Any]:
    """A provider of tracers and the exporter that keeps its spans."""
    sdk = needs("opentelemetry.sdk.trace")
    export = needs("opentelemetry.sdk.trace.export")
    memory = needs("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    return provider, exporter


def get(address: Address, path: str) -> bytes:
    """Return the body of an answer, which has the status 200."""
    with contextlib.closing(connector(address)()) as client:
        client.request("GET", path)
        response = client.getresponse()
        assert response.status == 200
        return response.read()


def parents(spans: Sequence[Any]) -> dict[str, str | None]:
    names = {span.context.span_id: span.name for span in spans}
    return {span.name: span.parent and names[span.parent.span_id] for span in spans}


@pytest.mark.slow
@program
async def test_opentelemetry_traces_the_requests_of_an_asgi_application(
    traces: tuple[Any, Any], each_loop: Loop
) -> None:
    asgi = needs("opentelemetry.instrumentation.asgi")
    needs("uvicorn")
    provider, exporter = traces
    traced = asgi.OpenTelemetryMiddleware(app, tracer_provider=provider)
    async with serving_with_uvicorn(traced) as address:
        assert await asyncio.to_thread(get, address, "/small") == b"hello"
    found = parents(exporter.get_finished_spans())
    assert found["GET /small"] is None
    assert found["GET /small http send"] == "GET /small"


@pytest.mark.slow
@program
async def test_opentelemetry_traces_what_a_fastapi_handler_starts(
    traces: tuple[Any, Any], each_loop: Loop
) -> None:
    fastapi = needs("fastapi")
    instrumentation = needs("opentelemetry.instrumentation.fastapi")
    needs("uvicorn")
    provider, exporter = traces
    tracer = provider.get_tracer("test")
    application = fastapi.FastAPI()

    def span(name: str) -> None:
        with tracer.start_as_current_span(name):
            pass

    async def in_task() -> None:
        await asyncio.sleep(0)
        span("task")

    async def page() -> str:
        task = asyncio.create_task(in_task())
        await asyncio.to_thread(span, "thread")
        await task
        called = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.call_later(0.001, span, "timer")
        loop.call_later(0.002, called.set)
        await called.wait()
        return "page"

    application.get("/page")(page)
    application.get("/sync")(lambda: span("sync"))
    instrumentation.FastAPIInstrumentor.instrument_app(application, tracer_provider=provider)
    async with serving_with_uvicorn(application) as address:
        assert await asyncio.to_thread(get, address, "/page") == b'"page"'
        assert await asyncio.to_thread(get, address, "/sync") == b"null"
    found = parents(exporter.get_finished_spans())
    assert [found[name] for name in ("task", "thread", "timer", "sync")] == [
        *["GET /page"] * 3,
        "GET /sync",
    ]


# ── OpenTelemetry: metrics ───────────────────────────────────────────────────────────────────

PARTS = ("p50", "p90", "p99", "max")


class Meter:
    """A provider with uringloop's instruments, and a reader that keeps what it has collected."""

    def __init__(self) -> None:
        sdk = needs("opentelemetry.sdk.metrics")
        self.reader = needs("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
        self.provider = sdk.MeterProvider([self.reader], shutdown_on_exit=False)
        monitor.opentelemetry(self.provider)

    def collect(self) -> list[tuple[str, str, Any]]:
        """Return the name, the loop and the value of each point."""
        return [
            (metric.name, point.attributes["loop"], point.value)
            for resource in getattr(self.reader.get_metrics_data(), "resource_metrics", ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        ]

    def values(self) -> dict[str, float]:
        """Return the values of the only loop, by the names of metrics."""
        points = self.collect()
        assert len({loop for _, loop, _ in points}) == 1
        assert len({name for name, _, _ in points}) == len(points)
        return {name.removeprefix("uringloop."): value for name, _, value in points}


@pytest.fixture
def meter() -> Iterator[Meter]:
    created = Meter()
    yield created
    created.provider.shutdown()


def work(seconds: float) -> None:
    """Keep the running loop at work for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.mark.slow
def test_opentelemetry_gets_each_counter_and_gauge_with_the_name_of_the_loop(
    meter: Meter, loop: uringloop.Loop
) -> None:
    with running_in_thread(loop) as thread:
        thread.name = "orders"
        wait_until(lambda: loop.stats()["turns"] > 0)
        first = meter.collect()
        asyncio.run_coroutine_threadsafe(turns(3), loop).result(PATIENCE)
        second = meter.collect()
    names = {f"uringloop.{name}" for name in (*COUNTERS, *GAUGES)}
    assert {name for name, loop_name, _ in first if loop_name == "orders"} >= names
    assert {loop_name for _, loop_name, _ in first} == {"orders"}
    quantiles = {f"uringloop.{what}.{part}" for what in ("turn", "callback") for part in PARTS} | {
        "uringloop.eventloop.utilization"
    }
    assert {name for name, _, _ in second} - names >= quantiles
    counted = {name: value for name, _, value in second}
    began = {name: value for name, _, value in first}
    assert counted["uringloop.turns"] > began["uringloop.turns"]
    assert all(counted[f"uringloop.{name}"] >= began[f"uringloop.{name}"] for name in COUNTERS)


@pytest.mark.slow
def test_a_second_call_for_a_provider_of_opentelemetry_makes_no_instruments(
    meter: Meter, loop: uringloop.Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    get_meter = meter.provider.get_meter

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return get_meter(*args, **kwargs)

    monkeypatch.setattr(meter.provider, "get_meter", counted)
    monitor.opentelemetry(meter.provider)
    assert made == []
    points = meter.collect()
    assert len(points) == len({name for name, _, _ in points}) > len(GAUGES)
    otel.SERVED.discard(meter.provider)
    monitor.opentelemetry(meter.provider)
    assert len(made) == 1


@pytest.mark.slow
def test_opentelemetry_gets_the_share_of_time_in_which_the_loop_works(
    meter: Meter, loop: uringloop.Loop
) -> None:
    loop.stats()
    moments: list[tuple[float, float]] = []

    def note() -> None:
        moments.append((time.monotonic(), loop.stats()["busy"]))

    async def half() -> dict[str, float]:
        note()
        await asyncio.to_thread(meter.collect)
        note()
        await asyncio.sleep(0.1)
        loop.call_soon(work, 0.1)
        await turns(2)
        note()
        values = await asyncio.to_thread(meter.values)
        note()
        return values

    found = loop.run_until_complete(half())["eventloop.utilization"]
    # Each collection is between two moments.
    times, busy = zip(*moments, strict=True)
    assert busy[2] - busy[1] >= 0.1
    assert (busy[2] - busy[1]) / (times[3] - times[0]) <= found
    assert found <= (busy[3] - busy[0]) / (times[2] - times[1])
    assert found < 1


@pytest.mark.slow
def test_opentelemetry_gets_quantiles_of_what_happened_since_the_last_collection(
    meter: Meter, loop: uringloop.Loop
) -> None:
    async def collect_after(seconds: float) -> dict[str, float]:
        loop.call_soon(work, seconds)
        await turns(3)
        return await asyncio.to_thread(meter.values)

    loop.run_until_complete(collect_after(0))
    slow = loop.run_until_complete(collect_after(0.05))
    quick = loop.run_until_complete(collect_after(0))
    for name in ("turn", "callback"):
        for values in (slow, quick):
            quantiles = [values[f"{name}.{part}"] for part in PARTS]
            assert quantiles == sorted(quantiles)
        assert slow[f"{name}.max"] >= 0.05 > slow[f"{name}.p50"]
        assert quick[f"{name}.p50"] < 0.05


@pytest.mark.slow
def test_a_closed_loop_that_opentelemetry_has_seen_is_freed(meter: Meter) -> None:
    closed = uringloop.new_event_loop()
    closed.run_until_complete(turns(3))
    assert any(name == "uringloop.turns" for name, _, _ in meter.collect())
    closed.close()
    assert meter.collect() == []
    freed = weakref.ref(closed)
    del closed
    meter.collect()
    gc.collect()
    assert freed() is None


@pytest.mark.slow
def test_opentelemetrys_exporter_to_prometheus_has_prometheus_names() -> None:
    exporter = needs("opentelemetry.exporter.prometheus")
    client = needs("prometheus_client")
    reader = exporter.PrometheusMetricReader()
    sdk = needs("opentelemetry.sdk.metrics")
    provider = sdk.MeterProvider([reader], shutdown_on_exit=False)
    try:
        monitor.opentelemetry(provider)
        with contextlib.closing(uringloop.new_event_loop()):
            text = client.generate_latest().decode()
    finally:
        provider.shutdown()
    counters = {f"uringloop_{name}{'_seconds' * (name in TIMES)}_total" for name in COUNTERS}
    gauges = {f"uringloop_{name}{'_seconds' * (name in TIMES)}" for name in GAUGES}
    expected = counters | gauges | {"uringloop_info"}
    assert set(re.findall(r"^(uringloop_\w+)\{", text, re.MULTILINE)) == expected
    names = ("busy_seconds_total", "turns_total", "received_bytes_total", "operations")
    assert counters | gauges >= {f"uringloop_{name}" for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_opentelemetry_instrument_exports_the_loops_of_uvicorn(
    workers: int, tmp_path: Path
) -> None:
    needs_here("opentelemetry.distro", "opentelemetry.sdk", "uvicorn")
    environment = {
        "OTEL_METRICS_EXPORTER": "console",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        # The supervisor of workers does not close its socket.
        "PYTHONWARNINGS": "ignore::ResourceWarning",
    }
    port = unused_port()
    uvicorn = python("-m", "uvicorn", "application:app", "--app-dir", str(HERE))
    options = ["--port", str(port), "--loop", OURS, "--workers", str(workers)]
    command = [script("opentelemetry-instrument"), *uvicorn, *options]
    instances: set[str] = set()
    # The command puts the working directory on the path of its program.
    with process(command, environment=environment, cwd=tmp_path) as running:
        for _ in range(workers):
            running.read_until("Application startup complete")
        # With one worker, the server listens after that line.
        connect_to(port).close()
        assert get(("127.0.0.1", port), "/small") == b"hello"
        while len(instances) < workers:
            instances.add(running.read_until(r'"service.instance.id": "(\S+)"')[1])
        for name in ("turns", "busy", "eventloop.utilization"):
            running.read_until(f'"name": "uringloop.{name}"')
            assert running.read_until('"loop": "(.*)"')[1] == f"127.0.0.1:{port}"
        assert running.stop(signal.SIGTERM) in (-signal.SIGTERM, 0)


# ── Datadog ──────────────────────────────────────────────────────────────────────────────────

# No agent listens, and nothing is sent.
SILENT = {
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_REMOTE_CONFIGURATION_ENABLED": "false",
    "DD_TRACE_AGENT_URL": "http://127.0.0.1:9",
}
AS_UVLOOP = ("-m", "uringloop.as_uvloop")


@pytest.mark.slow
@pytest.mark.parametrize(("options", "name"), [((), "asyncio"), ((), OURS), (AS_UVLOOP, "uvloop")])
def test_datadogs_spans_have_their_parent_in_callbacks_tasks_and_threads(
    options: Sequence[str], name: str
) -> None:
    needs_here("ddtrace")
    command = [script("ddtrace-run"), *python(*options, str(PROGRAM), name, "datadog")]
    found = report(command, SILENT)
    # ddtrace replaces create_task() of asyncio's own class, and of no other loop, uvloop included.
    in_empty_context = "whole" if name == "asyncio" else None
    assert found.pop("empty context") == in_empty_context
    assert (found.pop("whole"), found.pop("after")) == (None, None)
    assert found == dict.fromkeys(NOTES, "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "start", "has_tasks"),
    [
        ((), "run", True),
        # ddtrace learns of loops from set_event_loop(), or knows uvloop by its name.
        ((), "asyncio", False),
        ((), OURS, False),
        (AS_UVLOOP, "uvloop", True),
    ],
)
def test_datadogs_profiler_has_tasks_as_on_asyncio_or_uvloop(
    options: Sequence[str], start: str, has_tasks: bool, tmp_path: Path
) -> None:
    needs_here("ddtrace")
    zstandard = needs("zstandard")
    environment = {
        **SILENT,
        "DD_TRACE_ENABLED": "false",
        "DD_PROFILING_ENABLED": "true",
        "DD_PROFILING_OUTPUT_PPROF": str(tmp_path / "profile"),
    }
    command = [script("ddtrace-run"), *python(*options, str(PROGRAM), start, "profiled")]
    with process(command, environment=environment) as running:
        assert running.wait() == 0, running.output
    (path,) = tmp_path.glob("*.pprof")
    with path.open("rb") as compressed:
        reader = zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True)
        profile = reader.read()
    # Functions of the program; the coroutine that only waits is seen as a part of its task.
    assert b"rounds" in profile
    for string in (b"the waiting task", b"the working task", b"branch", b"leaf"):
        assert (string in profile) is has_tasks


# ── looking at a process ─────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@each_name
def test_py_spy_shows_the_frames_of_a_blocked_callback(name: str) -> None:
    with holding(name, "blocked", "pid") as (_, pid):
        dump = look_at([script("py-spy"), "dump", "--pid", str(pid)])
        native = look_at([script("py-spy"), "dump", "--native", "--pid", str(pid)])
    for shown in (dump, native):
        frames = re.findall(r"^    ([\w.<>]+) \(", shown, re.MULTILINE)
        # From the callback outwards: the loop's own method, the program.
        (run,) = (frame for frame in frames if frame.endswith(".run_forever"))
        order = [frames.index(frame) for frame in ("hold", run, "blocked", "<module>")]
        assert order == sorted(order)
    if name == OURS:
        # The loop's own functions, between the two.
        assert re.search(r"run_\w+ \(uringloop/_compiled\.", native)
        assert "_compiled." not in dump


@pytest.mark.slow
@each_name
def test_py_spy_records_a_program(name: str, tmp_path: Path) -> None:
    output = tmp_path / "stacks"
    options = ["--nonblocking", "--format", "raw", "--output", str(output)]
    look_at([script("py-spy"), "record", *options, "--", *python(str(PROGRAM), name, "sampled")])
    stacks = output.read_text()
    assert re.search(r"run_forever .*;working .*;burn ", stacks)


@pytest.mark.slow
@each_name
@pytest.mark.skipif(sys.version_info < (3, 14), reason="new in Python 3.14")
def test_asyncio_ps_and_pstree_show_the_tasks_of_a_process(name: str) -> None:
    with holding(name, "blocked", "pid") as (_, pid):
        table = look_at(python("-m", "asyncio", "ps", str(pid)))
        tree = look_at(python("-m", "asyncio", "pstree", str(pid)))
    for leaf in ("first leaf", "second leaf"):
        (row,) = [line for line in table.splitlines() if f" {leaf} " in line]
        assert re.search(r"leaf -> branch .*TaskGroup.* -> rooted +root ", row)
    lines = tree.splitlines()
    (root,) = [index for index, line in enumerate(lines) if line.endswith("(T) root")]
    assert [line for line in lines[root:] if line.endswith("(T) first leaf")]
    assert [line for line in lines[root:] if line.endswith("(T) second leaf")]


@pytest.mark.slow
@each_name
@pytest.mark.skipif(sys.version_info < (3, 15), reason="new in Python 3.15")
def test_the_sampling_profiler_shows_waiting_tasks(name: str, tmp_path: Path) -> None:
    output = tmp_path / "stacks"
    modes = ["--async-aware", "--async-mode", "all", "--collapsed", "-d", "1", "-o", str(output)]
    with holding(name, "blocked", "pid") as (_, pid):
        look_at(python("-m", "profiling.sampling", "attach", *modes, str(pid)))
    stacks = output.read_text()
    for leaf in ("first leaf", "second leaf"):
        assert re.search(rf"rooted.*{leaf}.*branch.*leaf", stacks)


# ── yappi ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@each_name
def test_yappis_wall_clock_includes_what_a_coroutine_awaits(name: str) -> None:
    needs_here("yappi")
    figures = report(python(str(PROGRAM), name, "yappi"))
    calls = {"waiting": 3, "working": 2, "both": 2, "concurrently": 1}
    for clock in ("wall", "cpu"):
        assert {name: count for name, (count, _) in figures[clock].items()} == calls
    wall, cpu = ({name: s for name, (_, s) in figures[clock].items()} for clock in ("wall", "cpu"))
    # Two run for 0.02 s each, three wait for 0.1 s each, at the same time.
    assert wall["waiting"] >= 0.3
    assert wall["both"] >= 0.24
    assert 0.12 <= wall["concurrently"] < wall["both"]
    assert cpu["both"] >= cpu["working"] >= 0.04
    assert cpu["waiting"] + cpu["concurrently"] < 0.04


# ── debugpy ──────────────────────────────────────────────────────────────────────────────────


class Debugger:
    """A client of the Debug Adapter Protocol."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.input = sock.makefile("rb")
        self.sequence = 0

    def send(self, command: str, **arguments: Any) -> int:
        """Send a request, and return its number."""
        self.sequence += 1
        request = {"seq": self.sequence, "type": "request", "command": command}
        body = json.dumps({**request, "arguments": arguments}).encode()
        self.sock.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return self.sequence

    def wait_for(self, **wanted: Any) -> Any:
        """Return the next message that has these values."""
        while True:
            size = 0
            while header := self.input.readline().strip():
                size = int(header.split()[1])
            message = json.loads(self.input.read(size))
            if wanted.items() <= message.items():
                return message

    def ask(self, command: str, **arguments: Any) -> Any:
        """Return the body of the answer to a request."""
        number = self.send(command, **arguments)
        answer = self.wait_for(type="response", request_seq=number)
        assert answer["success"], answer
        return answer.get("body")

    def stopped(self) -> tuple[int, list[Any]]:
        """Wait until the program has stopped; return its thread and the frames of that."""
        thread: int = self.wait_for(type="event", event="stopped")["body"]["threadId"]
        return thread, self.ask("stackTrace", threadId=thread)["stackFrames"]


def stop_in_coroutine(debugger: Debugger, line: int) -> None:
    """Stop in line *line* of tool_program.py, look at it, and go on to the end."""
    debugger.ask("initialize", adapterID="test", pathFormat="path", linesStartAt1=True)
    debugger.send("attach", justMyCode=True)
    debugger.wait_for(type="event", event="initialized")
    breakpoints = [{"line": line}]
    debugger.ask("setBreakpoints", source={"path": str(PROGRAM)}, breakpoints=breakpoints)
    debugger.send("configurationDone")
    thread, frames = debugger.stopped()
    assert (frames[0]["name"], frames[0]["line"]) == ("doubled", line)
    frame = frames[0]["id"]
    scopes = debugger.ask("scopes", frameId=frame)["scopes"]
    reference = scopes[0]["variablesReference"]
    variables = debugger.ask("variables", variablesReference=reference)["variables"]
    values = {variable["name"]: variable["value"] for variable in variables}
    assert (values["number"], values["twice"]) == ("20", "40")
    expression = "asyncio.current_task().get_name()"
    assert debugger.ask("evaluate", expression=expression, frameId=frame)["result"] == "'debugged'"
    # The next line is reached in a later turn of the loop.
    debugger.send("next", threadId=thread)
    thread, frames = debugger.stopped()
    assert (frames[0]["name"], frames[0]["line"]) == ("doubled", line + 1)
    debugger.send("continue", threadId=thread)
    debugger.wait_for(type="event", event="terminated")


@pytest.mark.slow
@each_name
def test_debugpy_stops_in_a_coroutine_and_goes_on(name: str) -> None:
    needs_here("debugpy")
    lines = PROGRAM.read_text().splitlines()
    line = lines.index("    twice = number * 2") + 2
    port = unused_port()
    options = ["-Xfrozen_modules=off", "-m", "debugpy", "--listen", str(port), "--wait-for-client"]
    with process(python(*options, str(PROGRAM), name, "debugged")) as running:
        with contextlib.closing(connect_to(port)) as sock:
            debugger = Debugger(sock)
            with debugger.input:
                stop_in_coroutine(debugger, line)
        # The adapter, a process that has the same output, ends with its connection.
        assert running.wait() == 0
        assert "report 41" in running.output


# ── aiomonitor ───────────────────────────────────────────────────────────────────────────────

PROMPT = b"monitor >>> "
# What a terminal says of itself: 200 columns and 50 lines, and its type.
TERMINAL = b"\xff\xfa\x1f\x00\xc8\x00\x32\xff\xf0\xff\xfa\x18\x00dumb\xff\xf0"


def tasks_by_telnet(port: int) -> list[list[str]]:
    """Return the cells of the table that the command `ps` prints."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
        received = b""
        sock.sendall(TERMINAL)
        while PROMPT not in received:
            received += sock.recv(4096)
        sock.sendall(b"ps\r")
        received = b""
        # The table has three rules.
        while len(re.findall(rb"\+-+\+", received)) < 3:
            received += sock.recv(4096)
        sock.sendall(b"quit\r")
        while sock.recv(4096):
            pass
    rows = re.findall(r"^\| (.*) \|\r?$", received.decode(), re.MULTILINE)
    return [re.split(r"  +", row.strip()) for row in rows]


@pytest.mark.slow
@each_name
def test_aiomonitors_console_lists_the_tasks(name: str) -> None:
    needs_here("aiomonitor")
    with holding(name, "monitored", "port") as (_, port):
        head, *tasks = tasks_by_telnet(port)
    assert head[1:5] == ["State", "Name", "Coroutine", "Created Location"]
    seen = {task[2]: (task[1], task[3]) for task in tasks}
    assert seen.pop("Task-1") == ("PENDING", "monitored.<locals>.main()")
    assert seen.pop("named") == ("PENDING", "hold_task()")
    ((_, unnamed),) = seen.items()
    assert unnamed == ("PENDING", "hold_task()")


@pytest.mark.slow
@pytest.mark.parametrize("made", ["unnamed", "named"])
@pytest.mark.parametrize("name", ["asyncio", OURS])
def test_aiomonitor_shows_where_a_task_was_created(name: str, made: str) -> None:
    needs_here("aiomonitor")
    with holding(name, "monitored", "port") as (_, port):
        tasks = tasks_by_telnet(port)[1:]
    places = {task[2]: task[4] for task in tasks if task[3] == "hold_task()"}
    named = places.pop("named")
    place = named if made == "named" else places.popitem()[1]
    assert re.search(r"tool_program\.py:\d+$", place)


# ── coverage and memray ──────────────────────────────────────────────────────────────────────


def coverage_of(name: str, core: str, folder: Path) -> tuple[list[int], list[int]]:
    """Return the lines of tool_program.py that run and those that do not."""
    data = folder / f"{name.partition(':')[0]}.coverage"
    environment = {"COVERAGE_CORE": core, "COVERAGE_FILE": str(data)}
    include = f"--include={PROGRAM}"
    run = python("-m", "coverage", "run", include, str(PROGRAM), name, "work")
    assert set(report(run, environment)) == NOTES
    output = f"{data}.json"
    with process(
        python("-m", "coverage", "json", "-q", "-o", output), environment=environment
    ) as done:
        assert done.wait() == 0, done.output
    (found,) = json.loads(Path(output).read_text())["files"].values()
    return found["executed_lines"], found["missing_lines"]


@pytest.mark.slow
@pytest.mark.parametrize("core", ["ctrace", "sysmon"])
def test_coverage_finds_the_same_lines_as_on_asyncio(core: str, tmp_path: Path) -> None:
    needs_here("coverage")
    if core == "sysmon" and sys.version_info < (3, 12):
        pytest.skip("sys.monitoring is new in Python 3.12")
    stock, ours = (coverage_of(name, core, tmp_path) for name in ("asyncio", OURS))
    assert ours == stock
    lines = PROGRAM.read_text().splitlines()
    executed, missing = ours
    # A protocol's method, a callback, a task, and a function that nothing calls.
    for line in ('        self.note(f"{self.name} received")', '        note("reader")'):
        assert lines.index(line) + 1 in executed
    assert lines.index("    note(name)") + 1 in executed
    assert lines.index('    note("nothing calls this")') + 1 in missing


@pytest.mark.slow
@each_name
@pytest.mark.parametrize("options", [(), ("--native",)])
def test_memray_measures_a_program(name: str, options: Sequence[str], tmp_path: Path) -> None:
    needs_here("memray")
    results = str(tmp_path / "results.bin")
    run = python("-m", "memray", "run", "-q", *options, "-o", results)
    assert set(report([*run, str(PROGRAM), name, "allocate"])) == NOTES
    summary = subprocess.run(
        python("-m", "memray", "stats", "--json", "-o", f"{results}.json", results),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert summary.returncode == 0, summary.stderr
    stats = json.loads(Path(f"{results}.json").read_text())
    sizes = {one["location"]: one["size"] for one in stats["top_allocations_by_size"]}
    ((_, size),) = [one for one in sizes.items() if one[0].startswith(f"large:{PROGRAM}:")]
    assert size >= 10_000_000
