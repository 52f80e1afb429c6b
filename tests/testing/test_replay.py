"""The same seed gives the same run: the trace of a loop for tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from uringloop import testing

PROGRAM = """if True:
    import asyncio, sys
    import uringloop
    from uringloop import testing

    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, address):
            if len(data) < 40:
                self.transport.sendto(data + b"x", address)

    async def datagrams():
        loop = asyncio.get_running_loop()
        ends = [
            await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
            for _ in range(2)
        ]
        for number in range(10):
            ends[0][0].sendto(b"%d" % number, ends[1][0].get_extra_info("sockname"))
        await asyncio.sleep(20)
        for transport, _ in ends:
            transport.close()

    async def files(number):
        path = f"file-{number}"
        async with uringloop.open(path, "wb") as file:
            for step in range(20):
                await file.write(bytes(step * 1000))
        async with uringloop.open(path, "rb") as file:
            while await file.read(10_000):
                pass

    async def main():
        others = [files(1), files(2), datagrams(), asyncio.to_thread(sum, (1, 2))]
        await asyncio.gather(streams(), *others)

    async def streams():
        async def serve(reader, writer):
            while data := await reader.read(4096):
                await asyncio.sleep(0.001)
                writer.write(data)
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()

        async def client(number):
            reader, writer = await asyncio.open_connection(*address)
            for step in range(5):
                size = 1 + (number * 37 + step * 101) % 5000
                writer.write(bytes(size))
                await reader.readexactly(size)
            writer.close()
            await writer.wait_closed()

        await asyncio.gather(*(client(number) for number in range(8)))
        server.close()

    faults = testing.Faults(
        late=0.1, short=0.1, stall=0.01, lost=0.1, doubled=0.1, delay=0.1, split=0.1, slow_disk=0.3
    )
    def loop(): return testing.Loop(int(sys.argv[1]), faults=faults, trace=sys.argv[2])
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
"""

BUSY = """if True:
    import os, sys
    os.sched_setaffinity(0, {int(sys.argv[1])})
    while True:
        pass
"""


def trace_of(seed: int, path: Path) -> str:
    command = [sys.executable, "-c", PROGRAM, str(seed), path.name]
    # The program must not depend on the order of sets.
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    subprocess.run(command, cwd=path.parent, env=environment, check=True, timeout=60)
    return path.read_text()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_gives_the_same_trace(seed: int, tmp_path: Path) -> None:
    traces = [trace_of(seed, tmp_path / str(number)) for number in range(5)]
    assert len(traces[0].splitlines()) > 500
    assert len(set(traces)) == 1


def test_other_seeds_give_other_traces(tmp_path: Path) -> None:
    assert len({trace_of(seed, tmp_path / str(seed)) for seed in range(4)}) == 4


def test_a_trace_names_callbacks_and_operations(tmp_path: Path) -> None:
    lines = trace_of(3, tmp_path / "trace").splitlines()
    words = [line.split(maxsplit=1)[1] for line in lines]
    assert "run Task-1 main" in words
    assert any(line.startswith("run Task-") and "client" in line for line in words)
    assert any(line.startswith("timer ") for line in words)
    assert any(line.startswith("recv#") for line in words)
    times = [float(line.split()[0]) for line in lines]
    assert times[0] == 1000
    assert times == sorted(times)


def lag(processor: int) -> None:
    """Let the calling thread run on one processor, and rarely if it is busy."""
    os.sched_setaffinity(0, {processor})
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)


def work(ran: list[int]) -> None:
    """Work for longer than one slice of a processor, and for less than the loop waits."""
    ran.append(sum(range(200_000)))


async def lagging_answers(executor: ThreadPoolExecutor) -> list[bool]:
    """Return for each of some calls in a thread whether the loop has waited for its answer."""
    loop = asyncio.get_running_loop()
    answered = []
    for _ in range(5):
        ran: list[int] = []
        future = loop.run_in_executor(executor, work, ran)
        answered.append(bool(ran))
        await future
    return answered


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_a_loop_waits_for_a_thread_that_waits_for_a_processor() -> None:
    processor = min(os.sched_getaffinity(0))
    with (
        subprocess.Popen([sys.executable, "-c", BUSY, str(processor)]) as busy,
        ThreadPoolExecutor(1, initializer=lag, initargs=(processor,)) as executor,
        asyncio.Runner(loop_factory=lambda: testing.Loop(1)) as runner,
    ):
        try:
            assert runner.run(lagging_answers(executor)) == [True] * 5
        finally:
            busy.kill()
