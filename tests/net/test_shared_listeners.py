"""Processes that accept from one listening socket: which one gets a connection, and when."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.loops import each_ring
from support.roles import (
    BUSY_ROUNDS,
    PATIENCE,
    Loop,
    close_server,
    connected,
    converse,
    on_loop,
    record_handler_calls,
    run_script,
    until,
    wait_until,
)

import uringloop

LOCALHOST = "127.0.0.1"

# A worker sends its number to each client, then echoes. argv: number, habit, descriptors.
WORKER = """
import asyncio, os, resource, signal, socket, sys, time
import uringloop

number, habit, descriptors = int(sys.argv[1]), sys.argv[2], list(map(int, sys.argv[3:]))

def block(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass

class Worker(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
        if habit == "works":
            block(0.002)
        transport.write(bytes([number]))

    def data_received(self, data):
        if data == b"block":
            block(1.5)
        if data == b"unlock":
            os.close(os.dup(descriptors[0]))
        self.transport.write(data)

async def main():
    for descriptor in descriptors:
        sock = socket.socket(fileno=descriptor)
        server = await asyncio.get_running_loop().create_server(Worker, sock=sock, backlog=1000)
    # In the signal's handler, not in the next turn: the process may be awake for a connection.
    signal.signal(signal.SIGUSR1, lambda *_: server.close())
    if habit == "full" and number == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        while True:
            try:
                os.open("/dev/null", os.O_RDONLY)
            except OSError:
                break
    print("ready", flush=True)
    if habit == "spins":
        while True:
            await asyncio.sleep(0)
    await server.serve_forever()

with asyncio.Runner(loop_factory=uringloop.new_event_loop) as runner:
    runner.run(main())
"""


class Workers:
    """Processes that serve *listener* and *others*, numbered from *first* on."""

    def __init__(
        self,
        listener: socket.socket,
        count: int,
        habit: str = "waits",
        *others: socket.socket,
        first: int = 0,
    ) -> None:
        self.address = listener.getsockname()
        self.processes = []
        descriptors = [sock.fileno() for sock in (listener, *others)]
        for number in range(first, first + count):
            command = [sys.executable, "-c", WORKER, str(number), habit, *map(str, descriptors)]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, pass_fds=descriptors, text=True
            )
            self.processes.append(process)
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def ask(address: tuple[str, int]) -> int:
    """Connect, and return the number of the worker that answers."""
    with socket.create_connection(address, PATIENCE) as client:
        return client.recv(1)[0]


def counted_answers(address: tuple[str, int], count: int) -> collections.Counter[int]:
    """Return how many of *count* connections, eight at a time, each worker has answered."""
    answers: list[int] = []

    def load() -> None:
        answers.extend(ask(address) for _ in range(count // 8))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == count
    return collections.Counter(answers)


def ask_and_stay(address: tuple[str, int]) -> tuple[int, socket.socket]:
    """Connect; return the number of the worker that answers, and the connection, still open."""
    client = socket.create_connection(address, PATIENCE)
    return client.recv(1)[0], client


# ── distribution of connections ──────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4, 8])
def test_idle_processes_take_turns(listener: socket.socket, count: int) -> None:
    with contextlib.closing(Workers(listener, count)) as workers:
        for _ in range(3):
            answers: collections.Counter[int] = collections.Counter()
            for _ in range(20 * count):
                answers[ask(workers.address)] += 1
                # Wait until the process is idle again.
                time.sleep(0.002)
            if min(answers[number] for number in range(count)) >= 10:
                break
            # The machine was busy, and some processes were never idle.
        else:
            pytest.fail(f"unfair: {answers}")


def turns_taken(address: tuple[str, int]) -> collections.Counter[int]:
    """Return how many of 40 successive connections each worker has answered."""
    answers: collections.Counter[int] = collections.Counter()
    for _ in range(40):
        answers[ask(address)] += 1
        time.sleep(0.003)
    return answers


@pytest.mark.slow
def test_a_process_shares_with_a_process_started_later(listener: socket.socket) -> None:
    with contextlib.closing(Workers(listener, 1)) as first:
        assert turns_taken(first.address) == {0: 40}
        with contextlib.closing(Workers(listener, 1, first=1)):
            for _ in range(5):
                answers = turns_taken(first.address)
                if min(answers[number] for number in range(2)) >= 10:
                    break
            else:
                pytest.fail(f"unfair: {answers}")
        wait_until(lambda: turns_taken(first.address) == {0: 40})


@pytest.mark.slow
def test_a_process_takes_a_lost_lock_on_the_socket_again(
    listener: socket.socket,
) -> None:
    inode = f":{os.fstat(listener.fileno()).st_ino}"

    def signed() -> set[int]:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        return {int(words[4]) for words in lines if words[5].endswith(inode)}

    with contextlib.closing(Workers(listener, 2)) as workers:
        processes = {process.pid for process in workers.processes}
        assert signed() == processes
        # POSIX: a process that closes any descriptor of a file loses all its locks on the file.
        number, client = ask_and_stay(workers.address)
        with client:
            client.send(b"unlock")
            assert client.recv(6) == b"unlock"
            assert signed() == processes - {workers.processes[number].pid}
        wait_until(lambda: ask(workers.address) == number)
        wait_until(lambda: signed() == processes)


@each_ring
def test_loops_of_one_process_share_a_socket(backend: str, listener: socket.socket) -> None:
    async def serve(number: int, stop: asyncio.Event) -> None:
        def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes([number]))
            writer.close()

        server = await asyncio.start_server(greet, sock=listener.dup())
        started.append((asyncio.get_running_loop(), stop))
        await stop.wait()
        await close_server(server)

    def run(number: int) -> None:
        loop = uringloop.Loop(backend=backend)  # type: ignore[arg-type, unused-ignore]
        loop.run_until_complete(serve(number, asyncio.Event()))
        loop.close()

    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(started) == 2)
    for _ in range(5):
        answers = turns_taken(listener.getsockname())
        if min(answers[number] for number in range(2)) >= 10:
            break
    for loop, stop in started:
        loop.call_soon_threadsafe(stop.set)
    for thread in threads:
        thread.join()
    assert min(answers[number] for number in range(2)) >= 10, answers


# `count` is what four processes answer in about 0.3 s: with time slices of 3 ms a shorter test
# measures the kernel's scheduler.
@pytest.mark.slow
@pytest.mark.parametrize(("habit", "count"), [("waits", 4800), ("works", 480)])
def test_no_process_gets_less_than_half_of_its_share_under_load(
    listener: socket.socket, habit: str, count: int
) -> None:
    shares: collections.Counter[int] = collections.Counter()
    with contextlib.closing(Workers(listener, 4, habit)) as workers:
        # One round is enough unless other programs use the processors.
        for _ in range(10):
            shares += counted_answers(workers.address, count)
            if min(shares[number] for number in range(4)) >= shares.total() / 8:
                break
        else:
            pytest.fail(f"unfair: {shares}")


@pytest.mark.slow
def test_loops_that_never_sleep_accept(listener: socket.socket) -> None:
    # With fewer processors than processes, a process takes the connections that arrive as it runs.
    shares: collections.Counter[int] = collections.Counter()
    with contextlib.closing(Workers(listener, 4, "spins")) as workers:
        for _ in range(10):
            shares += counted_answers(workers.address, 480)
            if min(shares[number] for number in range(4)) >= shares.total() / 40:
                break
        else:
            pytest.fail(f"unfair: {shares}")


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [0, BUSY_ROUNDS])
def test_a_process_that_computes_takes_no_connections(listener: socket.socket, rounds: int) -> None:
    with contextlib.closing(Workers(listener, 2)) as workers:
        busy, client = ask_and_stay(workers.address)
        with client:
            converse(client, rounds)
            began = time.monotonic()
            client.send(b"block")
            time.sleep(0.1)  # Wait until the worker has received that.
            answers = [ask(workers.address) for _ in range(20)]
            assert time.monotonic() - began < 1
            assert answers == [1 - busy] * 20
            assert client.recv(5) == b"block"
        wait_until(lambda: ask(workers.address) == busy)


@pytest.mark.slow
def test_simultaneous_connections_are_shared(listener: socket.socket) -> None:
    # On uvloop and asyncio the first process that runs takes most of them.
    with contextlib.closing(Workers(listener, 4)) as workers:
        for _ in range(10):
            clients = [connected(workers.address) for _ in range(40)]
            shares = collections.Counter(client.recv(1)[0] for client in clients)
            for client in clients:
                client.close()
            assert shares.total() == 40
            if len(shares) >= 3 and max(shares.values()) <= 30:
                break
            time.sleep(0.05)
        else:
            pytest.fail(f"unfair: {shares}")


@on_loop
async def test_connections_made_before_the_server_have_tcp_nodelay_too(
    each_loop: Loop,
) -> None:
    nodelay: list[int] = []
    # asyncio sets TCP_NODELAY for IPPROTO_TCP only; socket.create_server() leaves proto 0.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind((LOCALHOST, 0))
    listener.listen()
    address = listener.getsockname()

    class Recorder(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            sock = transport.get_extra_info("socket")
            nodelay.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()

    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(connected(address))
        server = await each_loop.create_server(Recorder, sock=listener)
        await until(lambda: len(nodelay) == 5)
        for _ in range(5):
            stack.enter_context(connected(address))
        await until(lambda: len(nodelay) == 10)
        await close_server(server)
    assert all(nodelay)


@pytest.mark.slow
def test_a_crowd_at_one_socket_does_not_delay_another(listener: socket.socket) -> None:
    other = socket.create_server((LOCALHOST, 0), backlog=100)
    with other, contextlib.closing(Workers(listener, 2, "works", other)) as workers:
        over = threading.Event()
        asked: list[int] = []

        def crowd() -> None:
            while not over.is_set():
                clients = [connected(workers.address) for _ in range(10)]
                asked.extend(client.recv(1)[0] for client in clients)
                for client in clients:
                    client.close()

        threads = [threading.Thread(target=crowd) for _ in range(20)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(asked) > 200)
            # The crowd goes on until these connections are answered.
            for _ in range(20):
                assert ask(other.getsockname()) in (0, 1)
        finally:
            over.set()
            for thread in threads:
                thread.join()


@pytest.mark.slow
def test_a_process_without_descriptors_leaves_its_connections_to_others(
    listener: socket.socket,
) -> None:
    with contextlib.closing(Workers(listener, 2, "full")) as workers:
        # The full process accepts with the descriptor in its reserve, once a second at most.
        began = time.monotonic()
        answers = collections.Counter(ask(workers.address) for _ in range(100))
        assert answers[0] <= 2 + (time.monotonic() - began)
        assert answers.total() == 100


def test_a_loop_without_descriptors_sleeps_beside_another_one(
    loop: uringloop.Loop, listener: socket.socket
) -> None:
    reports = record_handler_calls(loop)
    other = uringloop.new_event_loop()

    async def starve() -> None:
        server = await loop.create_server(asyncio.Protocol, sock=listener.dup())
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with connected(listener.getsockname()), connected(listener.getsockname()):
            lowest = os.dup(0)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                await until(lambda: reports != [])
                before = loop.stats()["turns"]
                await asyncio.sleep(0.2)
                assert loop.stats()["turns"] - before < 20
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        server.abort_clients()
        await close_server(server)

    with contextlib.closing(other):
        theirs = other.run_until_complete(
            other.create_server(asyncio.Protocol, sock=listener.dup())
        )
        loop.run_until_complete(starve())
        other.run_until_complete(close_server(theirs))
    assert {report["message"] for report in reports} == {"socket.accept() out of system resource"}


@pytest.mark.slow
def test_a_single_process_accepts_a_crowd_at_once(listener: socket.socket) -> None:
    with contextlib.closing(Workers(listener, 1)) as workers:
        clients = [connected(workers.address) for _ in range(500)]
        for client in clients:
            assert client.recv(1) == b"\0"
            client.close()


@pytest.mark.slow
def test_a_process_that_ends_leaves_waiting_connections_to_the_others(
    listener: socket.socket,
) -> None:
    with contextlib.closing(Workers(listener, 3)) as workers:
        clients = []
        for number in (0, 1):
            clients += [connected(workers.address) for _ in range(20)]
            workers.processes[number].send_signal(signal.SIGSTOP)
            clients += [connected(workers.address) for _ in range(20)]
        # The stopped processes keep what they have accepted, and accept no more.
        late = [ask(workers.address) for _ in range(20)]
        assert late == [2] * 20
        for process in workers.processes[:2]:
            process.send_signal(signal.SIGCONT)
        for client in clients:
            assert len(client.recv(1)) == 1
            client.close()


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1])
def test_a_connection_whose_wakeup_is_lost_with_a_process_goes_to_another(
    listener: socket.socket, end: signal.Signals
) -> None:
    # On a busy machine the processes may answer before the signal, in all turns of a round.
    assert any(lose_wakeups(listener, end) for _ in range(10))


def lose_wakeups(listener: socket.socket, end: signal.Signals) -> int:
    """Send a signal to three workers that are woken for a connection; return how many lost it."""
    with contextlib.closing(Workers(listener, 4)) as workers, one_processor(workers):
        # Processes take turns: the one whose last answer is the oldest is woken next.
        turns = [ask_later(workers.address) for _ in range(40)]
        turns = sorted(set(turns), key=lambda number: turns[::-1].index(number), reverse=True)
        lost = 0
        for number in turns[:3]:
            began = time.monotonic()
            with connected(workers.address) as client:
                # The process has been woken and has not run yet.
                workers.processes[number].send_signal(end)
                in_time = not select.select([client], [], [], 0)[0]
                answer = client.recv(1)
            assert time.monotonic() - began < 1
            if answer:
                assert answer[0] != number or not in_time
                lost += in_time
            else:
                # The process had accepted the connection, and was killed before it answered.
                assert end is signal.SIGKILL
            time.sleep(0.1)
        return lost


def ask_later(address: tuple[str, int]) -> int:
    time.sleep(0.003)
    return ask(address)


@contextlib.contextmanager
def one_processor(workers: Workers) -> Iterator[None]:
    """Pin *workers* and this process to one processor: a woken worker runs when this one sleeps."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        for process in workers.processes:
            os.sched_setaffinity(process.pid, {min(processors)})
            os.sched_setscheduler(process.pid, os.SCHED_BATCH, os.sched_param(0))
        yield
    finally:
        os.sched_setaffinity(0, processors)


FORKED = """
    import asyncio, os, socket, sys, time, warnings
    import uringloop

    # os.fork() warns when there are threads; this child does not use what they hold.
    warnings.simplefilter("ignore", DeprecationWarning)

    class Tell(asyncio.Protocol):
        def connection_made(self, transport):
            transport.write(b"%d\\n" % os.getpid())
            transport.close()

    def pid(address):
        with socket.create_connection(address, 10) as client:
            return int(client.makefile().readline())

    async def child(sock, ready):
        await asyncio.get_running_loop().create_server(Tell, sock=sock)
        os.write(ready, b"x")
        await asyncio.sleep(60)

    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Tell, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        assert await loop.run_in_executor(None, pid, address) == os.getpid()
        copy = socket.socket(fileno=os.dup(server.sockets[0].fileno()))
        told, ready = os.pipe()
        number = os.fork()
        if not number:
            try:
                asyncio._set_running_loop(None)
                with asyncio.Runner(loop_factory=uringloop.new_event_loop) as runner:
                    runner.run(child(copy, ready))
            finally:
                os._exit(1)
        try:
            os.read(told, 1)
            one_by_one = lambda: [(pid(address), time.sleep(0.005))[0] for _ in range(40)]
            for _ in range(5):
                seen = await loop.run_in_executor(None, one_by_one)
                fair = min(seen.count(os.getpid()), seen.count(number)) >= 10
                if fair:
                    break
            print(fair)
            # This loop is blocked: the child takes all connections, without delay.
            began = time.monotonic()
            print(one_by_one() == [number] * 40, time.monotonic() - began < 5)
        finally:
            os.kill(number, 9)
            os.waitpid(number, 0)
        server.close()

    uringloop.run(main())
"""


@pytest.mark.slow
def test_a_child_forked_by_a_server_shares_its_connections() -> None:
    done = run_script(FORKED)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["True"] * 3


@pytest.mark.slow
@on_loop
async def test_a_listening_socket_passed_to_another_process_is_shared(
    each_loop: Loop,
) -> None:
    class Tell(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"\x63")
            transport.close()

    server = await each_loop.create_server(Tell, LOCALHOST, 0, backlog=1000)
    ours = socket.socket(fileno=os.dup(server.sockets[0].fileno()))
    with ours, contextlib.closing(Workers(ours, 1)) as workers:
        # This loop is blocked: it must not keep connections that the other process could accept.
        assert {ask(workers.address) for _ in range(20)} == {0}
        workers.processes[0].send_signal(signal.SIGSTOP)
        assert await each_loop.run_in_executor(None, ask, workers.address) == 0x63
        workers.processes[0].send_signal(signal.SIGCONT)
    await close_server(server)


# Serves as number 9 on a socket of its own, and passes it to a WORKER after a line of input. The
# hooks of os.fork() do not run for a program that subprocess starts.
HANDS_ON = """
import asyncio, subprocess, sys
import uringloop

class Tell(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(bytes([9]))

async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Tell, "127.0.0.1", 0, backlog=1000)
    sock = server.sockets[0]
    print(sock.getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    number = sock.fileno()
    process = subprocess.Popen(
        [sys.executable, "-c", sys.argv[1], "0", "waits", str(number)], pass_fds=[number]
    )
    try:
        await loop.run_in_executor(None, sys.stdin.readline)
    finally:
        process.kill()
        process.wait()

uringloop.run(main())
"""


@pytest.mark.slow
def test_a_program_started_with_the_socket_of_a_server_shares_its_connections() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HANDS_ON, WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        address = (LOCALHOST, int(process.stdout.readline()))
        # Busy before and after: the server has no idle moment to look for other processes.
        assert counted_answers(address, 480) == {9: 480}
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "ready\n"
        for _ in range(3):
            loaded = counted_answers(address, 480)
            # 20 each unless other programs run. If one process polled the socket, instead of using
            # its epoll instance, the distribution would be random.
            rested = [turns_taken(address) for _ in range(4)]
            if min(loaded[0], loaded[9]) >= 120 and all(
                min(answers[0], answers[9]) >= 16 for answers in rested
            ):
                break
        else:
            pytest.fail(f"unfair: {loaded}, at rest {rested}")
        print(file=process.stdin, flush=True)


@pytest.mark.slow
def test_processes_with_sockets_of_their_own_share_a_port() -> None:
    with socket.socket() as first, socket.socket() as second:
        for sock in (first, second):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        first.bind((LOCALHOST, 0))
        second.bind(first.getsockname())
        first.listen()
        second.listen()
        with contextlib.closing(Workers(second, 1, "works")) as workers:
            ours = [connected(workers.address) for _ in range(50)]
            # The kernel distributes the connections; those of the first socket wait in its backlog.
            theirs = 0
            first.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    first.accept()[0].close()
                    theirs += 1
            assert 5 < theirs < 45
            assert sum(len(client.recv(1)) for client in ours) == 50 - theirs
            for client in ours:
                client.close()
