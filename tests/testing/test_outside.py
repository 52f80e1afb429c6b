"""What may come from outside: as long as something works, the clock goes on as real time does."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import functools
import multiprocessing
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.tls_contexts import CERTIFICATES, Contexts

from uringloop import testing
from uringloop.testing import peers, proc, thread_states

T = TypeVar("T")

# What works takes so long; the time-outs of the program are far longer.
WORK_S = 0.15
PATIENCE_S = 20


def run(main: Coroutine[Any, Any, T], **options: Any) -> tuple[T, float]:
    """Return the result, and how far the clock has advanced."""

    async def timed() -> tuple[T, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        result = await asyncio.wait_for(main, PATIENCE_S)
        return result, loop.time() - began

    with asyncio.Runner(loop_factory=lambda: testing.Loop(**options)) as runner:
        return runner.run(timed())


def nap(seconds: float) -> int:
    """Sleep in another process."""
    time.sleep(seconds)
    return os.getpid()


def answer_later(peer: socket.socket) -> None:
    peer.recv(100)
    time.sleep(WORK_S)
    peer.sendall(b"x")


async def in_thread() -> object:
    command = [sys.executable, "-c", f"import time; time.sleep({WORK_S})"]
    return await asyncio.to_thread(subprocess.run, command, check=True)


async def in_a_pool_of_processes() -> object:
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, nap, WORK_S)


def send_later(peer: Any) -> None:
    time.sleep(WORK_S)
    peer.send("x")


async def by_a_process_of_multiprocessing(method: str, *, duplex: bool) -> object:
    """The program keeps its copy of the child's end, as most do."""
    ours, theirs = multiprocessing.Pipe(duplex)
    context: Any = multiprocessing.get_context(method)
    child = context.Process(target=send_later, args=(theirs,))
    loop = asyncio.get_running_loop()
    with ours, theirs:
        child.start()
        readable = loop.create_future()
        loop.add_reader(ours.fileno(), readable.set_result, None)
        await readable
        loop.remove_reader(ours.fileno())
        child.join()
        return ours.recv()


async def by_a_blocking_client() -> object:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", "import socket, sys, time; s = socket.socket(fileno=0);"]
    command[2] += f"s.recv(9); time.sleep({WORK_S}); s.sendall(b'x')"

    def ask() -> bytes:
        ours.sendall(b"q")
        return ours.recv(1)

    with ours, subprocess.Popen(command, stdin=theirs.fileno()):  # noqa: ASYNC220  # as programs do
        theirs.close()
        return await asyncio.to_thread(ask)


async def by_a_child_that_only_its_pipe_tells_of() -> object:
    command = [sys.executable, "-c", f"import time; time.sleep({WORK_S}); print('x')"]
    loop = asyncio.get_running_loop()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:  # noqa: ASYNC220  # the same
        assert child.stdout is not None
        readable = loop.create_future()
        loop.add_reader(child.stdout, readable.set_result, None)
        await readable
        loop.remove_reader(child.stdout)
        return child.stdout.read()


async def by_unix_socket() -> object:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", "import socket, time; s = socket.socket(fileno=0);"]
    command[2] += f"s.recv(9); time.sleep({WORK_S}); s.sendall(b'x')"
    loop = asyncio.get_running_loop()
    with ours, subprocess.Popen(command, stdin=theirs.fileno()):  # noqa: ASYNC220  # as programs do
        theirs.close()
        ours.setblocking(False)
        await loop.sock_sendall(ours, b"q")
        return await loop.sock_recv(ours, 1)


# A program that is no child of this one: it serves one client.
STRANGER = f"""if True:
    import os, socket, time
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)
    if os.fork():
        os._exit(0)
    os.close(1)
    client, _ = server.accept()
    client.recv(9)
    time.sleep({WORK_S})
    client.sendall(b"x")
"""


def ask_stranger() -> socket.socket:
    """Return a socket by which a stranger has been asked."""
    done = subprocess.run([sys.executable, "-c", STRANGER], stdout=subprocess.PIPE, check=True)
    sock = socket.create_connection(("127.0.0.1", int(done.stdout)))
    sock.sendall(b"q")
    sock.setblocking(False)
    return sock


async def by_a_stranger() -> object:
    reader, writer = await asyncio.open_connection(sock=ask_stranger())
    try:
        return await reader.readexactly(1)
    finally:
        writer.close()


async def by_a_stranger_who_is_watched() -> object:
    loop = asyncio.get_running_loop()
    with ask_stranger() as sock:
        readable = loop.create_future()
        loop.add_reader(sock, readable.set_result, None)
        await readable
        loop.remove_reader(sock)
        return sock.recv(1)


async def by_a_grandchild() -> object:
    command = [sys.executable, "-c", f"import time; time.sleep({WORK_S}); print('x')"]
    code = f"import subprocess; subprocess.Popen({command})"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    await child.wait()
    assert child.stdout is not None
    return await child.stdout.read()


async def by_signal() -> object:
    loop = asyncio.get_running_loop()
    came = loop.create_future()
    loop.add_signal_handler(signal.SIGALRM, came.set_result, None)
    signal.setitimer(signal.ITIMER_REAL, WORK_S)
    try:
        return await came
    finally:
        loop.remove_signal_handler(signal.SIGALRM)


async def seen_by_a_program_that_spins() -> object:
    # Ten thousand turns are no spinning yet: on a busy machine they take as long as other work.
    task = asyncio.ensure_future(asyncio.to_thread(time.sleep, 10 * WORK_S))
    while not task.done():  # noqa: ASYNC110  # it spins
        await asyncio.sleep(0)
    await task
    return None


@pytest.mark.parametrize(
    "work",
    [
        in_thread,
        in_a_pool_of_processes,
        functools.partial(by_a_process_of_multiprocessing, "spawn", duplex=False),
        functools.partial(by_a_process_of_multiprocessing, "spawn", duplex=True),
        functools.partial(by_a_process_of_multiprocessing, "forkserver", duplex=True),
        by_a_blocking_client,
        by_a_child_that_only_its_pipe_tells_of,
        by_unix_socket,
        by_a_grandchild,
        by_a_stranger,
        by_a_stranger_who_is_watched,
        by_signal,
        seen_by_a_program_that_spins,
    ],
)
def test_work_takes_its_time(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    _, took = run(work())
    # The loop may take a part of that time to begin.
    assert WORK_S * 0.5 <= took < PATIENCE_S / 2


# Transports and servers.
Opened = list[Any]


async def handler_of_a_signal(folder: Path) -> Opened:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print)
    return []


async def unix_server(folder: Path) -> Opened:
    return [await asyncio.start_unix_server(lambda *_: None, folder / "socket")]


async def unix_datagrams(folder: Path) -> Opened:
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        asyncio.DatagramProtocol, local_addr=str(folder / "datagrams"), family=socket.AF_UNIX
    )
    return [transport]


async def pair_of_its_own(folder: Path) -> Opened:
    loop = asyncio.get_running_loop()
    ends = socket.socketpair()
    return [(await loop.create_connection(asyncio.Protocol, sock=end))[0] for end in ends]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    "beside", [handler_of_a_signal, unix_server, unix_datagrams, pair_of_its_own]
)
def test_the_clock_does_not_wait_for_an_idle_pool(
    beside: Callable[[Path], Coroutine[Any, Any, Opened]], method: str, tmp_path: Path
) -> None:
    context = multiprocessing.get_context(method)

    async def main() -> None:
        opened = await beside(tmp_path)
        with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
            await asyncio.get_running_loop().run_in_executor(pool, nap, 0)
            await asyncio.sleep(PATIENCE_S)
        for one in opened:
            one.close()

    began = time.monotonic()
    with asyncio.Runner(loop_factory=testing.Loop) as runner:
        runner.run(main())
    assert time.monotonic() - began < PATIENCE_S / 2


@contextlib.contextmanager
def other_program(*, encrypts: bool = False) -> Iterator[tuple[str, int]]:
    """Run a server that answers each byte: 0 at once, 1 after WORK_S."""
    code = f"""
import socket, ssl, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain({str(CERTIFICATES / "server.pem")!r})
while True:
    connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if {encrypts}:
        connection = context.wrap_socket(connection, server_side=True)
    with connection:
        while question := connection.recv(1):
            time.sleep(ord(question) * {WORK_S})
            connection.sendall(b"x")
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield "127.0.0.1", int(process.stdout.readline())
        finally:
            process.kill()


def test_another_program_that_has_answered_does_not_hold_the_clock() -> None:
    async def main(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(10):
            writer.write(b"\0")
            await reader.readexactly(1)
            await asyncio.sleep(1)
        writer.close()

    # It begins before the loop: a child that begins later counts as long as it runs.
    with other_program() as address:
        began = time.monotonic()
        run(main(address))
        assert time.monotonic() - began < 5


def test_a_connection_that_was_never_used_does_not_hold_the_clock_for_long() -> None:
    async def main(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        _, unused = await asyncio.open_connection(*address)
        for _ in range(10):
            writer.write(b"\0")
            await reader.readexactly(1)
            await asyncio.sleep(0.9)
        writer.close()
        unused.close()

    with other_program() as address:
        began = time.monotonic()
        run(main(address))
        assert time.monotonic() - began < 5


def test_another_program_that_is_asked_again_at_once_is_waited_for() -> None:
    async def main(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(5):
            writer.write(b"\0")
            await reader.readexactly(1)
            writer.write(b"\1")
            await reader.readexactly(1)
        writer.close()

    with other_program() as address:
        _, took = run(main(address))
    assert 5 * WORK_S * 0.9 <= took < PATIENCE_S / 2


def test_tickets_of_tls_are_no_answer(contexts: Contexts) -> None:
    """A server sends them behind the handshake, when the client may have asked already."""

    async def main(address: tuple[str, int]) -> None:
        for _ in range(10):
            reader, writer = await asyncio.open_connection(
                *address, ssl=contexts.client, server_hostname="localhost"
            )
            writer.write(b"\1")
            await asyncio.wait_for(reader.readexactly(1), PATIENCE_S / 2)
            writer.close()
            await writer.wait_closed()

    with other_program(encrypts=True) as address:
        run(main(address))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_connection_that_nobody_accepts_does_not_hold_the_clock(family: int) -> None:
    async def main(address: tuple[str, int]) -> None:
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"question")
        await asyncio.sleep(15)
        writer.close()

    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((host, 0), family=family) as server:
        began = time.monotonic()
        run(main(server.getsockname()[:2]))
        assert time.monotonic() - began < 10


def test_loops_for_tests_in_two_threads_do_not_wait_for_each_other() -> None:
    began = time.monotonic()
    threads = [threading.Thread(target=run, args=(asyncio.sleep(15),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 10


@contextlib.contextmanager
def in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Give a loop for tests that runs in another thread."""
    loop = testing.Loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def note_thread() -> int:
    return threading.get_ident()


def test_a_loop_is_called_by_a_callback_of_a_loop_of_another_thread() -> None:
    """A callback is no sleep: the other loop is not deadlocked, however long it takes."""

    async def main() -> None:
        for _ in range(20):
            time.sleep(0.01)  # noqa: ASYNC251  # as programs do
            future = asyncio.run_coroutine_threadsafe(note_thread(), other)
            assert future.result(PATIENCE_S) != threading.get_ident()

    with in_a_thread() as other:
        run(main())


def test_a_loop_waits_for_a_thread_that_works_before_it_calls() -> None:
    """While it computes it waits for the GIL now and then, at the same place as at the start."""

    def call_often() -> None:
        for _ in range(100):
            sum(range(50_000))
            assert asyncio.run_coroutine_threadsafe(note_thread(), loop).result(PATIENCE_S)

    with in_a_thread() as loop:
        call_often()


async def sleep_elsewhere(other: asyncio.AbstractEventLoop, seconds: float) -> None:
    future = asyncio.run_coroutine_threadsafe(asyncio.sleep(seconds), other)
    await asyncio.wrap_future(future)


def test_a_loop_waits_for_a_timer_of_a_loop_of_another_thread() -> None:
    async def main() -> None:
        for _ in range(20):
            await sleep_elsewhere(other, 1)

    with in_a_thread() as other, asyncio.Runner(loop_factory=testing.Loop) as runner:
        runner.run(main())


def test_loops_that_call_each_other_share_the_time() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        began, other_began = loop.time(), other.time()
        for _ in range(20):
            await asyncio.wait_for(sleep_elsewhere(other, 1), 1.5)
            await asyncio.sleep(0.5)
        assert loop.time() - began == pytest.approx(30, abs=1)
        assert other.time() - other_began == pytest.approx(30, abs=1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sleep_elsewhere(other, 60), 50)

    with in_a_thread() as other, asyncio.Runner(loop_factory=testing.Loop) as runner:
        runner.run(main())


def test_a_program_that_spins_shares_the_time_with_the_loop_that_it_has_called() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        timeout = loop.call_later(60, pytest.fail, "the clock has jumped")
        sleeping = asyncio.ensure_future(sleep_elsewhere(other, 30))
        while not sleeping.done():  # noqa: ASYNC110  # it spins
            await asyncio.sleep(0)
        assert loop.time() - began == pytest.approx(30, abs=1)
        timeout.cancel()

    with in_a_thread() as other, asyncio.Runner(loop_factory=testing.Loop) as runner:
        runner.run(main())


def test_a_socket_that_another_thread_closes_meanwhile_is_nobodys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        fd = os.dup(server.fileno())
    os.close(fd)
    assert peers.backlog_at(fd) is None
    with asyncio.Runner(loop_factory=testing.Loop) as runner:
        loop = runner.get_loop()
        assert peers.Peers(loop).traffic([(fd, select.POLLIN)], asked_lately=True) == 0  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_waits_for_no_loop_of_its_parent() -> None:
    with in_a_thread() as other:
        other.call_soon_threadsafe(other.call_later, 3600, print)
        asyncio.run_coroutine_threadsafe(note_thread(), other).result(PATIENCE_S)
        child = os.fork()
        if not child:
            with asyncio.Runner(loop_factory=testing.Loop) as runner:
                try:
                    runner.run(asyncio.Event().wait())
                except testing.DeadlockError:
                    os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize(("state", "sleeps"), [("R (running)", False), ("S (sleeping)", True)])
def test_a_thread_that_was_woken_runs_although_it_still_shows_its_call(
    monkeypatch: pytest.MonkeyPatch, state: str, sleeps: bool
) -> None:
    """On a real machine that lasts for some microseconds."""
    line = f"{thread_states.FUTEX} 0x7f00 0x189 0x0 0x0 0x0 0xffffffff 0x7f10 0x7f20\n"
    files = {
        "syscall": line,
        "status": f"Name:\tpython\nState:\t{state}\nThreads:\t2\nvoluntary_ctxt_switches:\t5\n",
    }
    monkeypatch.setattr(proc, "read", lambda path: files[Path(path).name])
    call = thread_states.look_at("7")
    assert call == thread_states.Call(line if sleeps else thread_states.RUNNING)


def test_a_thread_that_was_blocked_before_the_loop_does_not_count() -> None:
    read, write = os.pipe()
    thread = threading.Thread(target=os.read, args=(read, 1))
    thread.start()
    time.sleep(0.1)

    async def sleep_often() -> None:
        for _ in range(500):
            await asyncio.sleep(0.01)

    try:
        began = time.monotonic()
        run(sleep_often())
        assert time.monotonic() - began < 5
    finally:
        os.write(write, b"x")
        thread.join()
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("size", [1, 10])
def test_a_busy_program_does_not_spin(size: int) -> None:
    """However many turns it takes, no time passes."""

    async def exchange() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue(size)

        async def put() -> None:
            for number in range(15_000):
                await queue.put(number)

        putting = asyncio.create_task(put())
        for number in range(15_000):
            assert await queue.get() == number
        await putting

    _, took = run(exchange())
    assert took < 1e-6


def test_a_program_that_spins_by_timers() -> None:
    async def spin() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def again() -> None:
            if not done.done():
                loop.call_later(0, again)

        again()
        loop.call_later(1, done.set_result, None)
        await done

    _, took = run(spin())
    assert took == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("seconds", [9.3e9, 1e300, threading.TIMEOUT_MAX])
def test_a_deadline_at_the_end_of_the_clock_is_a_deadlock(seconds: float) -> None:
    async def main() -> None:
        await asyncio.sleep(seconds)

    with (
        asyncio.Runner(loop_factory=testing.Loop) as runner,
        pytest.raises(testing.DeadlockError),
    ):
        runner.run(main())


def test_the_time_limit_holds_while_something_works() -> None:
    with pytest.raises(testing.TimeLimitError):
        run(asyncio.to_thread(time.sleep, 0.5), time_limit=0.1)


def test_an_alarm_that_is_far_away_is_a_watchdog() -> None:
    signal.alarm(60)
    try:
        began = time.monotonic()
        run(asyncio.sleep(15))
        assert time.monotonic() - began < 10
    finally:
        signal.alarm(0)


def timerfd(seconds: float) -> int:
    """Return a timerfd that expires in so many seconds; os has none before Python 3.13."""
    library = ctypes.CDLL(None, use_errno=True)
    fd = int(library.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
    value = struct.pack("qqqq", 0, 0, int(seconds), int(seconds % 1 * 1e9))
    assert library.timerfd_settime(fd, 0, value, None) == 0
    return fd


async def expires(fd: int) -> None:
    loop = asyncio.get_running_loop()
    expired = asyncio.Event()
    loop.add_reader(fd, expired.set)
    try:
        await expired.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def test_a_timer_of_the_kernel_takes_its_time() -> None:
    _, took = run(expires(timerfd(WORK_S)))
    assert WORK_S * 0.5 <= took < PATIENCE_S / 2


def test_a_timer_of_the_kernel_that_never_expires_is_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        run(expires(timerfd(0)))
    assert time.monotonic() - began < PATIENCE_S / 2


def test_what_the_loop_looks_at_is_no_blocking_call_of_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """blockbuster replaces the functions of os, to find such calls."""

    def refuse(*args: object) -> None:
        raise AssertionError("a blocking call")

    async def main() -> None:
        path = str(tmp_path / "socket")
        server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), path)
        with monkeypatch.context() as patch:
            for name in ("listdir", "stat", "read", "write"):
                patch.setattr(os, name, refuse)
            patch.setattr("builtins.open", refuse)
            reader, writer = await asyncio.open_unix_connection(path)
            assert await reader.read() == b""
            await asyncio.to_thread(time.sleep, WORK_S)
        writer.close()
        server.close()

    run(main(), trace=tmp_path / "trace")


def test_a_test_may_freeze_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with socket.create_server(("localhost", 0)) as server:
            thread = threading.Thread(target=lambda: server.accept()[0].close())
            thread.start()
            frozen = time.monotonic()
            with monkeypatch.context() as patch:
                patch.setattr(time, "monotonic", lambda: frozen)
                await asyncio.sleep(10)
            socket.create_connection(server.getsockname()).close()
            thread.join()

    run(main())


def seconds_of_exchanges(*, beside_a_thread: bool) -> float:
    """Return for how long, in real time, a client and a server talk that have timers of 10 ms."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Also if the program ends first, which cancels this.
        with contextlib.closing(writer):
            while data := await reader.read(1):
                await asyncio.sleep(0.01)
                writer.write(data)

    async def main() -> None:
        asking, asked = os.pipe()
        thread = threading.Thread(target=select.select, args=([asking], [], []))
        if beside_a_thread:
            thread.start()
        server = await asyncio.start_server(answer, "localhost", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        for _ in range(1000):
            writer.write(b"x")
            assert await reader.read(1) == b"x"
        writer.close()
        server.close()
        os.write(asked, b"x")
        if beside_a_thread:
            thread.join()
        os.close(asking)
        os.close(asked)

    began = time.monotonic()
    run(main())
    return time.monotonic() - began


def test_a_thread_that_waits_to_be_asked_costs_no_time() -> None:
    """Such as pycares': it waits in epoll_wait(2) as long as nobody asks for a name."""
    alone = seconds_of_exchanges(beside_a_thread=False)
    # 20 ms for each of 1,000 waits would be 20 s more.
    assert seconds_of_exchanges(beside_a_thread=True) < 5 * alone + 10
