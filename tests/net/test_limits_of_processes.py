"""Servers with a limit, and paused ones, of several processes on one socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from support.roles import (
    connected,
    on_loop,
    wait_until,
)
from support.sites import (
    LOCALHOST,
)

from uringloop import Loop

# ── several processes ────────────────────────────────────────────────────────────────────────────

# A worker sends its number to each client, and executes the lines of its input.
WORKER = """
import asyncio, os, socket, sys
import uringloop

class Worker(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(bytes([int(sys.argv[1])]))

async def main():
    loop = asyncio.get_running_loop()
    sock = socket.socket(fileno=int(sys.argv[2]))
    server = await loop.create_server(Worker, sock=sock, backlog=1000)

    def obey():
        exec(os.read(0, 1000).decode(), globals() | {"server": server})
        print("done", flush=True)

    loop.add_reader(0, obey)
    print("done", flush=True)
    await asyncio.sleep(600)

uringloop.run(main())
"""
PAUSE, RESUME = "server.pause_accepting()", "server.resume_accepting()"
LIMIT = "server.max_connections = 1"
DRAIN = "draining = asyncio.ensure_future(server.drain())"
TOGGLE = """
async def toggle():
    while True:
        server.pause_accepting()
        await asyncio.sleep(0.001)
        server.resume_accepting()
        await asyncio.sleep(0.001)

server.toggling = asyncio.ensure_future(toggle())
"""


# A wake-up that a paused process has got is found within 0.2 s; the machine may be busy.
SOON_S = 2.0


class Workers:
    """Processes that serve *listener*, numbered from 0 on."""

    def __init__(self, listener: socket.socket, count: int) -> None:
        self.address, self.processes = listener.getsockname(), []
        for number in range(count):
            command = [sys.executable, "-c", WORKER, str(number), str(listener.fileno())]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                text=True,
            )
            self.processes.append(process)
        for number in range(count):
            self.check_done(number)

    def check_done(self, number: int) -> None:
        stdout = self.processes[number].stdout
        assert stdout is not None
        assert stdout.readline() == "done\n"

    def tell(self, number: int, command: str) -> None:
        print(command, end="", file=self.processes[number].stdin, flush=True)
        self.check_done(number)

    def answer(self, client: socket.socket) -> int:
        """Return the number of the process that answers, which it does soon."""
        client.settimeout(SOON_S)
        return client.recv(1)[0]

    def answers(self) -> set[int]:
        """Return the numbers of the processes that answer 40 clients."""
        numbers = set()
        for _ in range(40):
            with connected(self.address) as client:
                numbers.add(self.answer(client))
            time.sleep(0.003)  # Wait until the process is idle again.
        return numbers

    def check_all_answer(self, numbers: set[int]) -> None:
        # On the software ring chance decides which process is the first to accept.
        wait_until(lambda: self.answers() == numbers)

    def held(self, number: int) -> socket.socket:
        """Return a connection of a process."""
        for _ in range(1000):
            client = connected(self.address)
            if self.answer(client) == number:
                return client
            client.close()
        pytest.fail(f"process {number} gets no connection")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def workers(listener: socket.socket) -> Iterator[Workers]:
    with contextlib.closing(Workers(listener, 2)) as started:
        yield started


@pytest.mark.slow
def test_other_processes_get_the_connections_of_a_paused_one(workers: Workers) -> None:
    for paused in (0, 1, 0):
        workers.tell(paused, PAUSE)
        assert workers.answers() == {1 - paused}
        workers.tell(paused, RESUME)
        workers.check_all_answer({0, 1})


@pytest.mark.slow
def test_other_processes_get_the_connections_of_one_at_its_limit(workers: Workers) -> None:
    for full in (0, 1, 0):
        workers.tell(full, LIMIT)
        with workers.held(full):
            assert workers.answers() == {1 - full}
        workers.check_all_answer({0, 1})


@pytest.mark.slow
def test_the_first_process_with_room_gets_a_connection_that_waits(workers: Workers) -> None:
    for number in range(2):
        workers.tell(number, LIMIT)
    holders = [workers.held(number) for number in range(2)]
    for number in (0, 1) * 5:
        waiting = connected(workers.address)
        waiting.settimeout(0.05)
        with pytest.raises(TimeoutError):
            waiting.recv(1)
        holders[number].close()
        assert workers.answer(waiting) == number
        holders[number] = waiting
    for holder in holders:
        holder.close()


@pytest.mark.slow
def test_processes_at_their_limits_lose_no_connection_of_a_crowd(workers: Workers) -> None:
    for number in range(2):
        workers.tell(number, LIMIT)
    for _ in range(10):
        for client in [connected(workers.address) for _ in range(30)]:
            # The oldest that waits is answered as soon as another has left.
            assert workers.answer(client) in (0, 1)
            client.close()


@pytest.mark.slow
def test_no_connection_is_left_with_processes_that_pause_and_resume(workers: Workers) -> None:
    for number in range(2):
        workers.tell(number, TOGGLE)
    for _ in range(10):
        workers.answers()


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [0, 1])
def test_what_waits_for_paused_processes_goes_to_the_first_that_resumes(
    workers: Workers, resumed: int
) -> None:
    for number in range(2):
        workers.tell(number, PAUSE)
    clients = [connected(workers.address) for _ in range(20)]
    workers.tell(resumed, RESUME)
    assert {workers.answer(client) for client in clients} == {resumed}
    for client in clients:
        client.close()
    assert workers.answers() == {resumed}
    workers.tell(1 - resumed, RESUME)
    workers.check_all_answer({0, 1})


@pytest.mark.slow
@pytest.mark.parametrize("before", ["pass", PAUSE, LIMIT])
def test_a_process_that_drains_leaves_no_connection_behind(workers: Workers, before: str) -> None:
    holder = workers.held(0)
    workers.tell(0, before)
    clients = [connected(workers.address) for _ in range(10)]
    workers.tell(0, DRAIN)
    workers.tell(0, "pass")  # In a later turn: the drain has begun.
    clients += [connected(workers.address) for _ in range(10)]
    answers = [workers.answer(client) for client in clients]
    assert answers[10:] == [1] * 10
    for client in [holder, *clients]:
        client.close()
    assert workers.answers() == {1}


@pytest.mark.slow
@on_loop
async def test_a_process_gets_the_connections_of_the_one_that_gave_it_the_socket(
    loop: Loop,
) -> None:
    class Tell(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"\x07")

    server = await loop.create_server(Tell, LOCALHOST, 0, backlog=1000)
    with server.sockets[0].dup() as copy, contextlib.closing(Workers(copy, 1)) as workers:
        for _ in range(2):
            server.pause_accepting()
            assert await asyncio.to_thread(workers.answers) == {0}
            server.resume_accepting()
            await asyncio.to_thread(workers.check_all_answer, {0, 7})
            server.max_connections = 1
            with await asyncio.to_thread(workers.held, 7):
                assert await asyncio.to_thread(workers.answers) == {0}
            await asyncio.to_thread(workers.check_all_answer, {0, 7})
            server.max_connections = None
        await server.drain(0)
        assert await asyncio.to_thread(workers.answers) == {0}
