"""Loop.stats(): counters since the loop was created, and the present state."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.datagrams import endpoint, unix_pair
from support.loops import run_turns
from support.pipes import a_pipe, reading, writing
from support.protocols import Collector, Echo
from support.roles import (
    link,
    noise,
    nothing_left,
    on_loop,
    record_handler_calls,
    stream,
    turns,
    until,
)
from support.sockets import tcp_pair
from support.tls_contexts import Contexts

import uringloop
from uringloop import prometheus
from uringloop._loop.stats import COUNTERS, GAUGES, HISTOGRAM, Stats

# Entries of stats() about the present; all others count from the creation of the loop.
PRESENT = {
    "operations",
    "buffers_out",
    "callbacks_ready",
    "timers_pending",
    "lag",
    "batches",
    "executor_threads",
    "executor_queue",
    "executor_wait",
}

SIZES = pytest.mark.parametrize("size", [1, 1000, 64 * 1024 + 1, 3_000_001])


def nothing() -> None:
    """A callback that does nothing."""


def counters(stats: Stats) -> dict[str, float]:
    """Return the counters, which never decrease; each size of a batch is one of them."""
    numbers = {name: value for name, value in stats.items() if name not in PRESENT}
    numbers |= {f"batches of {size}": count for size, count in stats["batches"].items()}
    return {name: value for name, value in numbers.items() if isinstance(value, int | float)}


def moved(loop: uringloop.Loop, before: Stats) -> tuple[int, int]:
    """Return the bytes received and sent since *before*."""
    now = loop.stats()
    received = now["received_bytes"] - before["received_bytes"]
    return received, now["sent_bytes"] - before["sent_bytes"]


def busy(seconds: float) -> None:
    """Block the loop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_every_figure_is_described_once(loop: uringloop.Loop) -> None:
    described = [*COUNTERS, *GAUGES, *HISTOGRAM]
    assert sorted(described) == sorted(Stats.__annotations__)
    assert sorted(described) == sorted(loop.stats())
    assert set(GAUGES) - PRESENT == {"lag_max"}


# ── the time at work ─────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("work", [time.sleep, busy])
def test_busy_is_the_time_without_sleeps(
    loop: uringloop.Loop, work: Callable[[float], object]
) -> None:
    pauses, pause = 50, 0.005

    async def main() -> tuple[float, float, float]:
        began, cpu, before = time.monotonic(), time.thread_time(), loop.stats()["busy"]
        for _ in range(pauses):
            work(0.01)
            await asyncio.sleep(pause)
        took, used = time.monotonic() - began, time.thread_time() - cpu
        return loop.stats()["busy"] - before, took, used

    share, took, used = loop.run_until_complete(main())
    # The kernel's work at the begin and the end of a sleep counts, in which the loop was late, too.
    assert pauses * 0.01 * 0.99 <= share <= took - pauses * pause + used * 1.01
    assert share < took * 0.95


@pytest.mark.slow
def test_busy_includes_what_the_kernel_does_for_a_sleeping_loop(loop: uringloop.Loop) -> None:
    """The kernel sends in the system call in which the loop then sleeps."""

    async def main() -> tuple[float, float, float]:
        protocol = Collector(loop)
        async with link(loop, protocol, Echo()) as (transport, _):
            before, cpu, began = loop.stats()["busy"], time.thread_time(), time.monotonic()
            for count in range(1, 3001):
                transport.write(bytes(1000))
                await protocol.received(count * 1000)
            return (
                loop.stats()["busy"] - before,
                time.thread_time() - cpu,
                time.monotonic() - began,
            )

    worked, used, took = loop.run_until_complete(main())
    assert used * 0.9 <= worked <= took * 1.1


def test_busy_grows_neither_asleep_nor_between_runs(loop: uringloop.Loop) -> None:
    loop.stats()
    loop.run_until_complete(asyncio.sleep(0.05))
    first = loop.stats()["busy"]
    time.sleep(0.05)
    assert loop.stats()["busy"] == first < 0.04
    loop.run_until_complete(asyncio.sleep(0))
    assert loop.stats()["busy"] < first + 0.04


def test_busy_does_not_grow_in_a_forked_child(loop: uringloop.Loop) -> None:
    # Nobody runs the loop there.
    loop.stats()

    async def main() -> bytes:
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            first = loop.stats()["busy"]
            busy(0.02)
            os.write(write_end, b"same" if loop.stats()["busy"] == first else b"more")
            os._exit(0)
        os.close(write_end)
        answer = os.read(read_end, 4)
        os.close(read_end)
        return answer

    assert loop.run_until_complete(main()) == b"same"
    os.wait()


def test_busy_includes_a_turn_that_ends_by_an_exception(loop: uringloop.Loop) -> None:
    def fail() -> None:
        busy(0.02)
        raise KeyboardInterrupt

    loop.call_soon(fail)
    before = loop.stats()["busy"]
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    assert loop.stats()["busy"] - before >= 0.02


def test_busy_includes_a_turn_that_lasts(loop: uringloop.Loop) -> None:
    async def main() -> None:
        before = loop.stats()["busy"]
        busy(0.02)
        assert loop.stats()["busy"] - before >= 0.02

    loop.run_until_complete(main())


def test_busy_never_decreases_and_is_at_most_all_time(loop: uringloop.Loop) -> None:
    """Another thread reads while the loop falls asleep and wakes up."""
    loop.stats()
    began = time.monotonic()
    ended = threading.Event()

    def read() -> None:
        latest = 0.0
        while not ended.is_set():
            now = loop.stats()["busy"]
            assert latest <= now <= time.monotonic() - began + 0.01
            latest = now

    async def main() -> None:
        reader = loop.run_in_executor(None, read)
        for _ in range(300):
            await asyncio.sleep(0.0003)
        ended.set()
        await reader

    loop.run_until_complete(main())


# ── turns ────────────────────────────────────────────────────────────────────────────────────


def test_new_loop_has_done_nothing(loop: uringloop.Loop) -> None:
    stats = loop.stats()
    assert set(stats) == Stats.__required_keys__
    assert not any(value for name, value in stats.items() if name != "batches")
    assert stats["batches"] == dict.fromkeys((1, 2, 4, 8, 16, 32, 64, 128), 0)


def test_every_turn_is_counted(loop: uringloop.Loop) -> None:
    for count in (1, 5, 100):
        before = loop.stats()
        run_turns(loop, count)
        assert loop.stats()["turns"] - before["turns"] == count


def test_callbacks_of_the_next_turn_are_counted_as_ready(loop: uringloop.Loop) -> None:
    handles = [loop.call_soon(nothing) for _ in range(7)]
    assert loop.stats()["callbacks_ready"] == 7
    run_turns(loop)
    assert loop.stats()["callbacks_ready"] == 0
    assert handles


def test_kernel_entries_are_counted(loop: uringloop.Loop) -> None:
    before = loop.stats()["kernel_entries"]
    for _ in range(5):
        # Each run sleeps in the kernel.
        loop.run_until_complete(asyncio.sleep(0.001))
    assert loop.stats()["kernel_entries"] - before >= 5


# ── timers ───────────────────────────────────────────────────────────────────────────────────


def test_timers_are_counted_when_they_run(loop: uringloop.Loop) -> None:
    for _ in range(10):
        loop.call_later(0, nothing)
    assert loop.stats()["timers_pending"] == 10
    run_turns(loop)
    stats = loop.stats()
    assert (stats["timers_run"], stats["timers_pending"]) == (10, 0)


def test_cancelled_timer_is_not_pending(loop: uringloop.Loop) -> None:
    # Enough for the heap to drop cancelled timers on the way.
    timers = [loop.call_later(3600 + number, nothing) for number in range(500)]
    for number, timer in enumerate(timers):
        assert loop.stats()["timers_pending"] == 500 - number
        timer.cancel()
        timer.cancel()
    kept = loop.call_later(3600, nothing)
    run_turns(loop)
    stats = loop.stats()
    assert (stats["timers_run"], stats["timers_pending"]) == (0, 1)
    kept.cancel()


def test_cancelled_timer_does_not_count_as_run(loop: uringloop.Loop) -> None:
    ran: list[int] = []
    timers = [loop.call_later(0, ran.append, number) for number in range(10)]
    for timer in timers[1::2]:
        timer.cancel()
    run_turns(loop)
    assert ran == [0, 2, 4, 6, 8]
    assert loop.stats()["timers_run"] == 5


def test_timers_that_run_see_how_many_are_pending(loop: uringloop.Loop) -> None:
    seen: list[int] = []
    far = loop.call_later(3600, nothing)
    loop.call_later(0, lambda: seen.append(loop.stats()["timers_pending"]))
    loop.call_later(0, nothing).cancel()
    run_turns(loop)
    assert seen == [1]
    far.cancel()


# ── lag ──────────────────────────────────────────────────────────────────────────────────────


def test_lag_is_the_delay_of_a_timer(loop: uringloop.Loop) -> None:
    def delay() -> None:
        loop.call_later(0, loop.stop)
        busy(0.02)

    loop.call_soon(delay)
    loop.run_forever()
    stats = loop.stats()
    # The unit is seconds.
    assert 0.02 <= stats["lag"] <= stats["lag_max"] < 10


def test_lag_max_keeps_the_largest_lag(loop: uringloop.Loop) -> None:
    loop.call_later(0, nothing)
    busy(0.02)
    run_turns(loop)
    largest = loop.stats()["lag"]
    deadline = time.monotonic() + 10
    # On a busy machine timers may be late more than once.
    while loop.stats()["lag"] >= 0.02:
        assert time.monotonic() < deadline
        loop.run_until_complete(asyncio.sleep(0.001))
    assert loop.stats()["lag_max"] >= largest >= 0.02


# ── bytes ────────────────────────────────────────────────────────────────────────────────────


@SIZES
@pytest.mark.parametrize("make", [tcp_pair, socket.socketpair], ids=["tcp", "unix"])
@on_loop
async def test_bytes_of_streams_are_counted(
    loop: uringloop.Loop,
    make: Callable[[], tuple[socket.socket, socket.socket]],
    size: int,
) -> None:
    asking, answering = Collector(loop), Echo()
    before = loop.stats()
    async with nothing_left(loop):
        left, right = make()
        transport, _ = await loop.create_connection(lambda: asking, sock=left)
        other, _ = await loop.connect_accepted_socket(lambda: answering, right)
        transport.write(bytes(size))
        await asking.received(size)
        await until(lambda: moved(loop, before) == (2 * size, 2 * size))
        transport.close()
        await asking.lost
        await until(lambda: other.get_extra_info("socket").fileno() == -1)
    assert moved(loop, before) == (2 * size, 2 * size)


@on_loop
async def test_bytes_of_many_small_writes_are_counted(loop: uringloop.Loop) -> None:
    asking = Collector(loop)
    before = loop.stats()
    async with link(loop, asking, Echo()) as (transport, _):
        total = 0
        for size in range(1, 100):
            total += size
            transport.write(bytes(size))
            if size % 3 == 0:
                await turns()
        transport.writelines([b"three", b"more", b"pieces"])
        total += 15
        await asking.received(total)
        await until(lambda: moved(loop, before) == (2 * total, 2 * total))


@SIZES
@on_loop
async def test_bytes_of_streams_with_readers_are_counted(loop: uringloop.Loop, size: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100_000):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    before = loop.stats()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(bytes(size))
        writer.write_eof()
        assert len(await reader.read()) == size
        writer.close()
        await writer.wait_closed()
    assert moved(loop, before) == (2 * size, 2 * size)


@on_loop
async def test_bytes_of_tls_are_those_on_the_wire(loop: uringloop.Loop, contexts: Contexts) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(100_000))
        await reader.read()
        writer.close()
        await writer.wait_closed()
        served.set()

    served = asyncio.Event()
    before = loop.stats()
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=contexts.server) as server:
        reader, writer = await asyncio.open_connection(
            *server.sockets[0].getsockname(), ssl=contexts.client, server_hostname="localhost"
        )
        writer.write(bytes(100_000))
        await reader.readexactly(100_000)
        writer.close()
        await writer.wait_closed()
        await served.wait()
    received, sent = moved(loop, before)
    assert 200_000 < received <= sent < 220_000


@on_loop
async def test_bytes_of_sendfile_are_counted(loop: uringloop.Loop, tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(noise(300_000))
    receiving = Collector(loop)
    before = loop.stats()
    with path.open("rb") as file:
        async with link(loop, Collector(loop), receiving) as (transport, _):
            assert await loop.sendfile(transport, file) == 300_000
            await receiving.received(300_000)
            await until(lambda: moved(loop, before)[0] == 300_000)
            assert moved(loop, before) == (300_000, 300_000)


@pytest.mark.parametrize("connected", [True, False])
@on_loop
async def test_bytes_of_datagrams_are_counted(loop: uringloop.Loop, connected: bool) -> None:
    before = loop.stats()
    async with endpoint(loop, local_addr=("127.0.0.1", 0)) as (there, mailbox):
        address = there.get_extra_info("sockname")
        options = {"remote_addr": address} if connected else {"local_addr": ("127.0.0.1", 0)}
        async with endpoint(loop, **options) as (transport, answers):
            for count, size in enumerate((1, 100, 1472, 9000, 60_000), 1):
                transport.sendto(bytes(size), None if connected else address)
                await mailbox.received(count)
            # The receiver knows the sender's address now.
            there.sendto(b"answer", mailbox.mail[0][1])
            await answers.received()
    total = 1 + 100 + 1472 + 9000 + 60_000 + 6
    assert moved(loop, before) == (total, total)


@on_loop
async def test_bytes_of_unix_datagrams_are_counted(loop: uringloop.Loop, tmp_path: Path) -> None:
    left, right = unix_pair(tmp_path)
    before = loop.stats()
    async with endpoint(loop, sock=left) as (there, _), endpoint(loop, sock=right) as (_, mailbox):
        # More datagrams than the receiver's queue holds: some wait.
        for size in range(1, 101):
            there.sendto(bytes(size))
        await mailbox.received(100)
    assert moved(loop, before) == (5050, 5050)


@SIZES
@on_loop
async def test_bytes_of_pipes_are_counted(loop: uringloop.Loop, size: int) -> None:
    source, sink = a_pipe()
    before = loop.stats()
    async with reading(loop, source) as reader, writing(loop, sink) as writer:
        writer.pipe.write(bytes(size))
        await reader.received(size)
        await until(lambda: moved(loop, before) == (size, size))


@on_loop
async def test_bytes_in_the_write_buffer_are_not_counted_as_sent(loop: uringloop.Loop) -> None:
    before = loop.stats()
    async with stream(loop, Collector(loop), buffer_size=4096) as (transport, peer):
        transport.write(bytes(10_000_000))
        await turns(5)
        waiting = transport.get_write_buffer_size()
        assert 0 < waiting < 10_000_000
        await until(lambda: moved(loop, before)[1] + transport.get_write_buffer_size() == 10**7)
        assert peer.fileno() >= 0


# ── completions ──────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_batches_add_up_to_the_completions(loop: uringloop.Loop) -> None:
    async with contextlib.AsyncExitStack() as stack:
        ends = [await stack.enter_async_context(stream(loop, Collector(loop))) for _ in range(50)]
        before = loop.stats()
        for _ in range(20):
            for _, peer in ends:
                peer.send(b"x")
            await turns(3)
        stats = loop.stats()
    completions = stats["completions"] - before["completions"]
    batches = {size: n - before["batches"][size] for size, n in stats["batches"].items()}
    assert completions >= 20 * 50
    # A batch of 4 to 7 counts under 4, and one of 128 or more under 128.
    assert sum(size * n for size, n in batches.items()) <= completions
    assert batches[128] or completions <= sum((2 * size - 1) * n for size, n in batches.items())
    assert 20 <= sum(batches.values()) <= stats["turns"] - before["turns"]


def test_turns_without_completions_are_no_batches(loop: uringloop.Loop) -> None:
    run_turns(loop, 3)
    before = loop.stats()["batches"]
    run_turns(loop, 50)
    assert loop.stats()["batches"] == before


@on_loop
async def test_rearmed_receives_are_counted(loop: uringloop.Loop) -> None:
    protocol = Collector(loop)
    async with stream(loop, protocol) as (transport, peer):
        peer.send(b"one")
        await protocol.received(3)
        before = loop.stats()["rearms"]
        for count in range(1, 4):
            # A pause ends the receive, whatever waits for input.
            transport.pause_reading()
            peer.send(b"more")
            transport.resume_reading()
            await protocol.received(3 + 4 * count)
            await until(lambda count=count: loop.stats()["rearms"] >= before + count)  # type: ignore[misc]


@on_loop
async def test_polls_of_a_pipe_that_follow_the_first_are_counted(loop: uringloop.Loop) -> None:
    source, sink = a_pipe()
    async with reading(loop, source) as reader:
        before = loop.stats()["rearms"]
        for count in range(1, 4):
            sink.write(b"x")
            await reader.received(count)
            await turns()
            assert loop.stats()["rearms"] == before + count
    sink.close()


@on_loop
async def test_operations_in_flight_return_to_zero(loop: uringloop.Loop) -> None:
    await turns(3)
    assert loop.stats()["operations"] == 0
    async with link(loop, Collector(loop), Echo()):
        await turns(3)
        # Each transport has a receive in flight.
        assert loop.stats()["operations"] >= 2
        assert loop.stats()["submissions"] >= 2
    stats = loop.stats()
    await until(lambda: loop.stats()["operations"] == 0)
    assert stats["buffers_out"] == 0


# ── at any time ──────────────────────────────────────────────────────────────────────────────


def test_counters_only_grow_and_any_thread_may_read_them(loop: uringloop.Loop) -> None:
    samples: list[Stats] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.0002):
            samples.append(loop.stats())
            prometheus.text(loop)

    async def work() -> None:
        protocol = Collector(loop)
        async with link(loop, protocol, Echo()) as (transport, _):
            for count in range(1, 101):
                transport.write(bytes(10_000))
                await protocol.received(count * 10_000)
                await asyncio.sleep(0.0001)
        await until(lambda: len(samples) > 2)
        await until(lambda: loop.stats()["operations"] == 0)

    handler_calls = record_handler_calls(loop)
    thread = threading.Thread(target=look)
    thread.start()
    try:
        loop.run_until_complete(work())
    finally:
        ended.set()
        thread.join(20)
    samples.append(loop.stats())
    assert len(samples) > 2
    for earlier, later in itertools.pairwise(samples):
        grown = counters(later)
        less = {n: (v, grown[n]) for n, v in counters(earlier).items() if grown[n] < v}
        assert not less
    assert samples[-1]["received_bytes"] == samples[-1]["sent_bytes"] == 2_000_000
    assert handler_calls == []


def test_stats_are_not_reset_and_survive_the_close_of_the_loop(loop: uringloop.Loop) -> None:
    loop.call_later(3600, nothing)
    loop.run_until_complete(asyncio.sleep(0.001))
    last = loop.stats()
    assert loop.stats() == last
    loop.call_soon(nothing)
    loop.close()
    closed = loop.stats()
    final = counters(closed)
    assert all(final[name] >= value for name, value in counters(last).items())
    present = ("operations", "buffers_out", "callbacks_ready", "timers_pending")
    assert [closed[name] for name in present] == [0] * 4  # type: ignore[literal-required]
    assert loop.stats() == closed


# ── several loops ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def worked(loop: uringloop.Loop) -> uringloop.Loop:
    """A loop that has run a timer and moved a megabyte."""

    async def work() -> None:
        protocol = Collector(loop)
        async with link(loop, protocol, Echo()) as (transport, _):
            transport.write(bytes(1_000_000))
            await protocol.received(1_000_000)
        await asyncio.sleep(0.001)

    loop.call_later(3600, nothing)
    loop.run_until_complete(work())
    return loop


def test_each_loop_has_its_own_counters(worked: uringloop.Loop) -> None:
    with contextlib.closing(uringloop.new_event_loop()) as other:
        assert other.stats()["turns"] == 0
        other.run_until_complete(asyncio.sleep(0))
        assert 0 < other.stats()["turns"] < worked.stats()["turns"]
        assert other.stats()["received_bytes"] == 0
