"""The programs of test_tools.py: `tool_program.py LOOP NAME` runs one on the loop that is named.

A program prints what its tool has reported, as JSON, in a line that begins with `report`. Tools are
imported by the program that uses them, so that each test needs one of them only.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Factory = Callable[[], asyncio.AbstractEventLoop]


def factory(name: str) -> Factory:
    """Return the function `module:function`; of a module alone, its new_event_loop."""
    module, _, function = name.partition(":")
    found: Factory = getattr(importlib.import_module(module), function or "new_event_loop")
    return found


def run(loop: str, main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=factory(loop)) as runner:
        return runner.run(main)


def report(value: Any) -> None:
    print("report", json.dumps(value), flush=True)


def burn(seconds: float) -> None:
    """Use the CPU for so many seconds."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


# ── work of many kinds ───────────────────────────────────────────────────────────────────────


class Speaker(asyncio.Protocol):
    """Sends a byte, closes when it has received one, and calls *note* in each method."""

    def __init__(self, note: Callable[[str], None], name: str) -> None:
        self.note = note
        self.name = name
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.note(f"{self.name} made")
        transport.write(b"x")

    def data_received(self, data: bytes) -> None:
        self.note(f"{self.name} received")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.note(f"{self.name} lost")
        self.lost.set_result(None)


async def connect(note: Callable[[str], None]) -> None:
    """Let two Speakers talk to each other."""
    loop = asyncio.get_running_loop()
    accepted = Speaker(note, "server")
    server = await loop.create_server(lambda: accepted, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    _, connected = await loop.create_connection(lambda: Speaker(note, "client"), *address)
    await asyncio.gather(accepted.lost, connected.lost)
    server.close()
    await server.wait_closed()


async def watch(note: Callable[[str], None]) -> None:
    """Wait for a byte by add_reader."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()

    def read() -> None:
        note("reader")
        loop.remove_reader(left)
        readable.set()

    left, right = socket.socketpair()
    with left, right:
        loop.add_reader(left, read)
        right.send(b"x")
        await readable.wait()


async def step(note: Callable[[str], None], name: str = "task") -> None:
    await asyncio.sleep(0)
    note(name)


def unreached(note: Callable[[str], None]) -> None:
    note("nothing calls this")


async def everything(note: Callable[[str], None]) -> None:
    """Call *note* from callbacks of every kind, from protocols, a task and threads."""
    loop = asyncio.get_running_loop()
    called = asyncio.Event()
    task = asyncio.create_task(step(note))
    loop.call_soon(note, "call_soon")
    loop.call_soon_threadsafe(note, "call_soon_threadsafe")
    loop.call_later(0.001, note, "call_later")
    loop.call_later(0.002, called.set)
    await loop.run_in_executor(None, note, "run_in_executor")
    await asyncio.to_thread(note, "to_thread")
    await called.wait()
    await watch(note)
    await connect(note)
    await task


def work(loop: str) -> None:
    """Do work of all kinds, under a tool that starts the program."""
    notes: list[str] = []
    run(loop, everything(notes.append))
    report(sorted(notes))


def large(allocated: list[bytes]) -> None:
    allocated.append(bytes(10_000_000))


def allocate(loop: str) -> None:
    """Do all kinds of work, and allocate in a callback, under a tool that starts the program."""
    notes: list[str] = []

    async def main() -> None:
        allocated: list[bytes] = []
        asyncio.get_running_loop().call_soon(large, allocated)
        await everything(notes.append)
        assert len(allocated) == 1

    run(loop, main())
    report(sorted(notes))


# ── tracing ──────────────────────────────────────────────────────────────────────────────────


async def succeed(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def fail() -> None:
    raise LookupError("on purpose")


async def tasks_that_fail_and_succeed() -> dict[str, Any]:
    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(succeed(1)),
        asyncio.create_task(fail(), name="named"),
    ]
    async with asyncio.TaskGroup() as group:
        tasks.append(group.create_task(succeed(3)))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "results": list(map(repr, results)),
        "coroutines": [getattr(task.get_coro(), "__qualname__", None) for task in tasks],
        "names": [task.get_name() for task in tasks],
        "thread": await asyncio.to_thread(str, 5),
    }


def sentry(loop: str) -> None:
    """Report the events and spans that Sentry would send."""
    sentry_sdk = importlib.import_module("sentry_sdk")
    integration = importlib.import_module("sentry_sdk.integrations.asyncio").AsyncioIntegration()
    base = importlib.import_module("sentry_sdk.transport").Transport
    sent: dict[str, list[Any]] = {"event": [], "transaction": []}

    def capture(_: Any, envelope: Any) -> None:
        for item in envelope.items:
            sent[item.type].append(item.payload.json)

    async def main() -> dict[str, Any]:
        transport = type("Transport", (base,), {"capture_envelope": capture})
        sentry_sdk.init(
            dsn="http://key@127.0.0.1:1/1",
            transport=transport,
            traces_sample_rate=1.0,
            integrations=[integration],
        )
        with sentry_sdk.start_transaction(name="whole"):
            return await tasks_that_fail_and_succeed()

    ran = run(loop, main())
    (event,) = sent["event"]
    (transaction,) = sent["transaction"]
    (exception,) = event["exception"]["values"]
    frames = [frame["function"] for frame in exception["stacktrace"]["frames"]]
    ran["event"] = [exception["type"], exception["mechanism"], event["transaction"], frames[-1]]
    ran["spans"] = [
        [span["op"], span["description"], span["origin"], span.get("status")]
        for span in transaction["spans"]
    ]
    report(ran)


def opentelemetry(loop: str) -> None:
    """Report the spans of OpenTelemetry's instrumentation of asyncio, with their parents."""
    sdk = importlib.import_module("opentelemetry.sdk.trace")
    export = importlib.import_module("opentelemetry.sdk.trace.export")
    memory = importlib.import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    asyncio_ = importlib.import_module("opentelemetry.instrumentation.asyncio")
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    asyncio_.AsyncioInstrumentor().instrument(tracer_provider=provider)

    async def main() -> dict[str, Any]:
        with provider.get_tracer("test").start_as_current_span("whole"):
            future = asyncio.get_running_loop().create_future()
            waiting = asyncio.ensure_future(future)
            future.set_result(None)
            await waiting
            return await tasks_that_fail_and_succeed()

    ran = run(loop, main())
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    ran["spans"] = sorted(
        [span.name, span.parent and names[span.parent.span_id], span.status.status_code.name]
        for span in spans
    )
    report(ran)


def datadog(loop: str) -> None:
    """Report the parents of spans that are started in callbacks, tasks and threads."""
    trace = importlib.import_module("ddtrace.trace")
    spans: list[Any] = []

    def process_trace(_: Any, found: list[Any]) -> None:
        spans.extend(found)

    collecting = type("Collecting", (trace.TraceFilter,), {"process_trace": process_trace})
    trace.tracer.configure(trace_processors=[collecting()])

    def note(name: str) -> None:
        with trace.tracer.trace(name):
            pass

    async def main() -> None:
        with trace.tracer.trace("whole"):
            await everything(note)
            empty = contextvars.Context()
            elsewhere = asyncio.create_task(step(note, "empty context"), context=empty)
        await elsewhere
        await asyncio.create_task(step(note, "after"))

    run(loop, main())
    trace.tracer.flush()
    names = {span.span_id: span.name for span in spans}
    report({span.name: names.get(span.parent_id) for span in spans})


# ── profiling ────────────────────────────────────────────────────────────────────────────────


async def waiting() -> None:
    await asyncio.sleep(0.1)


async def working() -> None:
    burn(0.02)
    await asyncio.sleep(0)


async def both() -> None:
    await waiting()
    await working()


async def concurrently() -> None:
    await asyncio.gather(both(), both(), waiting())


def sampled(loop: str) -> None:
    """Use the CPU in tasks, under a tool that starts the program."""
    for _ in range(5):
        run(loop, concurrently())


def yappi(loop: str) -> None:
    """Report calls and seconds of each coroutine, for the wall clock and the CPU's."""
    profiler: Any = importlib.import_module("yappi")
    names = ("waiting", "working", "both", "concurrently")
    figures = {}
    for clock in ("wall", "cpu"):
        profiler.set_clock_type(clock)
        with profiler.run():
            run(loop, concurrently())
        found = profiler.get_func_stats(filter_callback=lambda one: one.name in names)
        figures[clock] = {one.name: [one.ncall, one.ttot] for one in found}
        profiler.clear_stats()
    report(figures)


async def leaf(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def branch(seconds: float) -> None:
    await leaf(seconds)


async def rounds() -> None:
    for _ in range(10):
        burn(0.03)
        await asyncio.sleep(0)


def profiled(start: str) -> None:
    """Run a task that waits and one that works under Datadog's profiler.

    *start* is a loop, or "run" for asyncio.run(), or "uvloop" for its run().
    """

    async def main() -> None:
        tasks = [
            asyncio.create_task(branch(0.6), name="the waiting task"),
            asyncio.create_task(rounds(), name="the working task"),
        ]
        await asyncio.gather(*tasks)

    if start == "run":
        asyncio.run(main())
    elif start == "uvloop":
        importlib.import_module("uvloop").run(main())
    else:
        run(start, main())
    importlib.import_module("ddtrace.profiling.bootstrap").profiler.stop()


# ── looking at a process ─────────────────────────────────────────────────────────────────────


def hold() -> None:
    """Block the loop until standard input ends."""
    print("pid", os.getpid(), flush=True)
    sys.stdin.read()
    asyncio.get_running_loop().stop()


async def rooted() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(branch(60), name="first leaf")
        group.create_task(branch(60), name="second leaf")


def blocked(loop: str) -> None:
    """Block in a callback while tasks wait for each other."""
    created = factory(loop)()
    task = created.create_task(rooted(), name="root")
    # In the third turn, in which all tasks wait.
    created.call_soon(created.call_soon, created.call_soon, hold)
    created.run_forever()
    task.cancel()
    created.run_until_complete(asyncio.gather(task, return_exceptions=True))
    created.close()


async def doubled(number: int) -> int:
    twice = number * 2
    await asyncio.sleep(0)
    return twice + 1


def debugged(loop: str) -> None:
    """Run a task for a debugger to stop in."""

    async def main() -> int:
        return await asyncio.create_task(doubled(20), name="debugged")

    report(run(loop, main()))


def monitored(loop: str) -> None:
    """Run aiomonitor for two tasks until standard input ends."""
    aiomonitor: Any = importlib.import_module("aiomonitor")

    async def main() -> None:
        running = asyncio.get_running_loop()
        ends = asyncio.Event()
        ports = {"port": free_port(), "webui_port": free_port(), "console_enabled": False}
        with aiomonitor.start_monitor(running, hook_task_factory=True, **ports):
            tasks = [running.create_task(hold_task(ends.wait())), named(hold_task(ends.wait()))]
            await asyncio.sleep(0)
            print("port", ports["port"], flush=True)
            await asyncio.to_thread(sys.stdin.read)
            ends.set()
            await asyncio.gather(*tasks)

    run(loop, main())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
    return port


async def hold_task(waited: Awaitable[Any]) -> None:
    await waited


def named(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(coroutine, name="named")


if __name__ == "__main__":
    globals()[sys.argv[2]](sys.argv[1])
