"""The clock of a loop for tests: when it stands still, when it jumps, when it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

import uringloop
from uringloop import testing

T = TypeVar("T")

# Far less than any of the virtual times here takes in reality.
MOMENT_S = 2.0


def run(main: Coroutine[Any, Any, T], **options: Any) -> T:
    with asyncio.Runner(loop_factory=lambda: testing.Loop(**options)) as runner:
        return runner.run(main)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_sleep_takes_no_real_time() -> None:
    async def main() -> float:
        began = now()
        await asyncio.sleep(3600)
        return now() - began

    began = time.monotonic()
    assert run(main()) == pytest.approx(3600, abs=1e-9)
    assert time.monotonic() - began < MOMENT_S


def test_the_clock_stands_still_while_anything_runs() -> None:
    async def main() -> set[float]:
        seen = {now()}
        for _ in range(100):
            await asyncio.sleep(0)
            time.sleep(0.0001)  # noqa: ASYNC251  # real time passes
            seen.add(now())
        return seen

    seen = run(main())
    # It advances by a picosecond each time that it is asked.
    assert len(seen) == 101
    assert max(seen) - min(seen) < 1e-9


@pytest.mark.parametrize("at", [0, 1e5, 1e9])
def test_the_clock_never_shows_the_same_time_twice(at: float) -> None:
    async def main() -> list[float]:
        await asyncio.sleep(at)
        return [now() for _ in range(1000)]

    times = run(main())
    assert all(earlier < later for earlier, later in itertools.pairwise(times))
    assert times[-1] - times[0] <= max(1e-8, 1e-12 * at)


@pytest.mark.parametrize("seed", range(5))
def test_timers_run_in_the_order_of_their_deadlines_and_never_early(seed: int) -> None:
    delays = [0.1 * 1.1**step for step in range(60)]
    ran: list[tuple[float, float]] = []

    def note(deadline: float) -> None:
        ran.append((deadline, now()))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for delay in reversed(delays):
            deadline = loop.time() + delay
            loop.call_at(deadline, note, deadline)
        await asyncio.sleep(1000)

    run(main(), seed=seed)
    assert [deadline for deadline, _ in ran] == sorted(deadline for deadline, _ in ran)
    assert all(0 < time - deadline < 1e-9 for deadline, time in ran)
    assert len(ran) == len(delays)


def test_a_program_that_spins_until_a_timer_has_run() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        done = loop.create_future()
        loop.call_later(5, done.set_result, None)
        while not done.done():  # noqa: ASYNC110  # it spins
            await asyncio.sleep(0)
        return loop.time() - began

    assert run(main()) == pytest.approx(5, abs=1e-9)


@pytest.mark.parametrize("delay", [0.001, 0.1, 0.3, 1 / 3, 7.7])
def test_no_wait_looks_too_short(delay: float) -> None:
    async def main() -> list[float]:
        waits = []
        for _ in range(200):
            began = now()
            await asyncio.sleep(delay)
            waits.append(now() - began)
        return waits

    assert min(run(main())) >= delay


def test_a_timeout_wins_against_a_longer_sleep() -> None:
    async def main() -> float:
        began = now()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(60), 59.5)
        return now() - began

    assert run(main()) == pytest.approx(59.5, abs=1e-9)


def test_a_connection_within_the_process_takes_no_time() -> None:
    async def main() -> tuple[bytes, float]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(4096):
                writer.write(data)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        began = now()
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        received = b""
        for size in (1, 1000, 300_000):
            writer.write(bytes(size))
            async with asyncio.timeout(0.001):
                received += await reader.readexactly(size)
        writer.close()
        await writer.wait_closed()
        server.close()
        return received, now() - began

    received, took = run(main())
    assert received == bytes(301_001)
    assert took == pytest.approx(0, abs=1e-6)


def test_a_thread_that_works_lets_the_clock_go_on() -> None:
    async def main() -> float:
        began = now()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(time.sleep, 0.3), 0.1)
        took = now() - began
        # It is done before a timeout that leaves it the time.
        await asyncio.wait_for(asyncio.to_thread(time.sleep, 0.05), 5)
        return took

    assert 0.1 <= run(main()) < MOMENT_S


def test_a_thread_that_waits_for_the_loop_does_not_hold_the_clock() -> None:
    done = threading.Event()

    async def main() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.call_later(1000, done.set)
        await asyncio.to_thread(done.wait)
        return loop.time() - began

    began = time.monotonic()
    assert 1000 <= run(main()) < 1000 + MOMENT_S
    assert time.monotonic() - began < MOMENT_S


def test_a_watchdog_does_not_hold_the_clock() -> None:
    end = threading.Event()
    watchdog = threading.Thread(target=end.wait, args=(60,))
    watchdog.start()
    began = time.monotonic()
    try:
        run(asyncio.sleep(500))
    finally:
        end.set()
        watchdog.join()
    assert time.monotonic() - began < MOMENT_S


def test_a_child_lets_the_clock_go_on() -> None:
    async def main() -> float:
        began = now()
        command = [sys.executable, "-c", "import time; time.sleep(0.2)"]
        child = await asyncio.create_subprocess_exec(*command)
        assert await asyncio.wait_for(child.wait(), 30) == 0
        return now() - began

    assert 0.2 <= run(main()) < 30


ANSWERS_LATE = """if True:
    import socket, time
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    while data := connection.recv(100):
        time.sleep(0.2)
        connection.sendall(data)
"""


def test_another_program_that_was_asked_lets_the_clock_go_on() -> None:
    async def main(port: int) -> tuple[bytes, float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        began = now()
        answer = await asyncio.wait_for(reader.readexactly(1), 20)
        took = now() - began
        # It has answered, and need not say more.
        await asyncio.sleep(1000)
        writer.close()
        return answer, took

    command = [sys.executable, "-c", ANSWERS_LATE]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        began = time.monotonic()
        answer, took = run(main(port))
        assert time.monotonic() - began < MOMENT_S
    assert answer == b"x"
    assert 0.1 <= took < 20


def test_a_file_takes_no_time(tmp_path: Path) -> None:
    async def main() -> float:
        began = now()
        async with uringloop.open(tmp_path / "file", "wb") as file:
            await asyncio.wait_for(file.write(bytes(1_000_000)), 1e-6)
            await file.flush()
        return now() - began

    assert 0 < run(main()) < 1e-9


async def wait_in_vain(event: asyncio.Event) -> None:
    await event.wait()


def test_a_deadlock_names_each_task_and_its_line() -> None:
    async def main() -> None:
        event = asyncio.Event()
        other = asyncio.create_task(wait_in_vain(event), name="other")
        await other

    with pytest.raises(testing.DeadlockError) as caught:
        run(main())
    text = str(caught.value)
    assert "the program can never go on" in text
    line = wait_in_vain.__code__.co_firstlineno + 1
    path = os.path.relpath(__file__) if __file__.startswith(os.getcwd() + os.sep) else __file__
    assert f"other waits at {path}:{line}, in wait_in_vain, for Event.wait()" in text
    assert text.count("waits at") == 2


@contextlib.asynccontextmanager
async def lend_in_vain(event: asyncio.Event, *, on_exit: bool) -> AsyncIterator[None]:
    if not on_exit:
        await event.wait()
    yield
    await event.wait()


async def iterate_in_vain(event: asyncio.Event) -> AsyncIterator[None]:
    await event.wait()
    yield


@pytest.mark.parametrize("way", ["enter", "exit", "iterate", "anext"])
def test_a_deadlock_names_the_line_within_an_asynchronous_generator(way: str) -> None:
    async def main() -> None:
        event = asyncio.Event()
        if way == "iterate":
            async for _ in iterate_in_vain(event):
                pass
        elif way == "anext":
            await anext(iterate_in_vain(event), None)
        else:
            async with lend_in_vain(event, on_exit=way == "exit"):
                pass

    with pytest.raises(testing.DeadlockError) as caught:
        run(main())
    name = "iterate_in_vain" if way in ("iterate", "anext") else "lend_in_vain"
    assert f", in {name}, for Event.wait()" in str(caught.value)


def test_a_timer_at_infinity_is_a_deadlock() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(math.inf, print)
        await loop.create_future()

    with pytest.raises(testing.DeadlockError):
        run(main())


def test_the_time_limit_ends_a_program_that_waits_for_ever() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110  # for ever
            await asyncio.sleep(60)

    with pytest.raises(testing.TimeLimitError, match="limit of 3600 s"):
        run(main(), time_limit=3600)


def test_a_stalled_process_finds_several_timers_due() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        late: list[float] = []

        def note(when: float) -> None:
            late.append(loop.time() - when)

        for step in range(200):
            when = loop.time() + step * 0.01
            loop.call_at(when, note, when)
        await asyncio.sleep(10)
        return late

    assert max(run(main())) < 1e-9
    assert max(run(main(), faults=testing.Faults(stall=0.1))) > 0.001


@pytest.mark.parametrize("chance", [-0.1, 1.1, math.nan])
def test_a_probability_is_between_0_and_1(chance: float) -> None:
    with pytest.raises(ValueError, match="late must be between 0 and 1"):
        testing.Faults(late=chance)


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="order must be 'random' or 'fifo', not 'lifo'"):
        testing.Loop(order="lifo")  # type: ignore[arg-type]
