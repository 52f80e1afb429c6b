"""Loop(sqpoll=): a kernel thread takes the submissions, and only the timing of the loop changes.

An operation completes some time after the turn that started it, so these tests wait for the
expected state instead of counting turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.leaks import open_fds
from support.loops import drain_executor, on_io_uring
from support.processes import thread_names
from support.protocols import Collector, Echo
from support.roles import (
    in_thread,
    narrow_pair,
    noise,
    on_loop,
    released,
    run_script,
    turns,
    until,
    wait_until,
)
from support.sockets import tcp_pair

import uringloop
from uringloop._ring import backends
from uringloop._turn.turn import LoopCore

pytestmark = on_io_uring

LOCALHOST = "127.0.0.1"
# So short that the thread falls asleep in many of these tests, and stays awake in others.
IDLE_MS = 2
# More than the submission queue holds, and more than the completion queue does.
MANY, VERY_MANY = 700, 2500


def kernel_threads() -> dict[int, str]:
    """Return the numbers and states of the threads that take submissions for this process."""
    found: dict[int, str] = {}
    for number, name in thread_names().items():
        if name.startswith("iou-sqp"):
            # The thread may end meanwhile.
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/self/task/{number}/stat").read_text()
                found[number] = stat.rpartition(")")[2].split()[0]
    return found


class RefusesThread(LoopCore):
    """A loop on a kernel whose security policy permits rings, but no threads of rings."""

    def __init__(self, backend: Any, *options: Any) -> None:
        if any(options[2:3]):
            raise PermissionError(errno.EPERM, "io_uring_setup")
        super().__init__(backend, *options)


class Refused(uringloop.Loop, RefusesThread):
    pass


def test_a_refused_kernel_thread_does_not_concern_other_loops() -> None:
    with contextlib.closing(Refused(backend="auto", sqpoll=IDLE_MS, warn_fallback=False)) as loop:
        assert loop.backend == "soft"
        assert "io_uring_setup" in loop.backend_reason
    assert backends.known_refusal() is None
    with contextlib.closing(Refused(backend="auto", warn_fallback=False)) as loop:
        assert loop.backend == "io_uring"


@contextlib.contextmanager
def one_more_thread() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the id of the kernel thread that the block starts and ends."""
    before = set(kernel_threads())

    def number() -> int:
        wait_until(lambda: len(set(kernel_threads()) - before) == 1)
        (found,) = set(kernel_threads()) - before
        return found

    yield number
    wait_until(lambda: not set(kernel_threads()) - before)


@pytest.fixture
def loop() -> Iterator[uringloop.Loop]:
    """A new loop with a kernel thread, checked for leaks afterwards."""
    fds = open_fds()
    with one_more_thread() as thread:
        created = uringloop.Loop(sqpoll=IDLE_MS)
        thread()
        yield created
        if not created.is_closed():
            drain_executor(created)
            created.close()
    assert created._operations_in_flight == 0
    assert created._buffers_out == 0
    assert open_fds() == fds


# ── the options ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [-1, 60_001, 2**70])
def test_time_out_of_range_raises_value_error(value: int) -> None:
    with pytest.raises(ValueError, match="sqpoll must be between 0 and 60,000"):
        uringloop.Loop(sqpoll=value)


@pytest.mark.parametrize("option", ["sqpoll", "sqpoll_cpu"])
@pytest.mark.parametrize("value", ["1", 0.5, []])
def test_option_that_is_no_integer_raises_type_error(option: str, value: Any) -> None:
    with pytest.raises(TypeError):
        uringloop.Loop(**{"sqpoll": 1, option: value})


@pytest.mark.parametrize("number", [-1, os.sysconf("SC_NPROCESSORS_CONF"), 2**70])
def test_nonexistent_processor_raises_value_error(number: int) -> None:
    with pytest.raises(ValueError, match="sqpoll_cpu must be between 0 and"):
        uringloop.Loop(sqpoll=1, sqpoll_cpu=number)


def test_sqpoll_cpu_without_sqpoll_raises_value_error() -> None:
    with pytest.raises(ValueError, match="sqpoll_cpu is only meaningful with sqpoll"):
        uringloop.Loop(sqpoll_cpu=0)


def test_options_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        uringloop.Loop(0, 1)  # type: ignore[call-arg, arg-type]


@pytest.mark.parametrize("off", [0, False])
def test_there_is_no_kernel_thread_without_sqpoll(off: int) -> None:
    with contextlib.closing(uringloop.Loop(sqpoll=off)) as loop:
        loop.run_until_complete(asyncio.sleep(0.001))
        assert kernel_threads() == {}


def test_the_kernel_thread_runs_on_the_given_processor() -> None:
    for cpu in os.sched_getaffinity(0):
        with (
            one_more_thread() as thread,
            contextlib.closing(uringloop.Loop(sqpoll=True, sqpoll_cpu=cpu)) as loop,
        ):
            loop.run_until_complete(asyncio.sleep(0.001))
            assert os.sched_getaffinity(thread()) == {cpu}


def test_loops_leave_no_thread_and_no_descriptor() -> None:
    fds = open_fds()
    for _ in range(10):
        with contextlib.closing(uringloop.Loop(sqpoll=IDLE_MS)) as loop:
            loop.run_until_complete(asyncio.sleep(0))
    uringloop.Loop(sqpoll=IDLE_MS).close()
    wait_until(lambda: not kernel_threads())
    assert open_fds() == fds


# ── bytes ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@on_loop
async def test_many_clients_get_their_own_bytes_back(
    loop: uringloop.Loop, kind: str, tmp_path: Path
) -> None:
    if kind == "tcp":
        server = await loop.create_server(Echo, LOCALHOST, 0)
        address = server.sockets[0].getsockname()
    else:
        server = await loop.create_unix_server(Echo, tmp_path / "echo")

    async def client(number: int) -> None:
        chosen = random.Random(number)
        reader, writer = await (
            asyncio.open_connection(*address)
            if kind == "tcp"
            else asyncio.open_unix_connection(tmp_path / "echo")
        )
        for size in [1, 128, 5000] * 4:
            message = chosen.randbytes(chosen.randint(1, size))
            for start in range(0, len(message), 1000):
                writer.write(message[start : start + 1000])
            assert await reader.readexactly(len(message)) == message
        writer.close()
        await writer.wait_closed()

    async with server:
        await asyncio.gather(*(client(number) for number in range(60)))


@pytest.mark.parametrize("size", [1000, 30_000, 1_000_000])
@on_loop
async def test_a_large_transfer_arrives_whole_and_in_order(loop: uringloop.Loop, size: int) -> None:
    left, right = tcp_pair()
    sender, _ = await loop.connect_accepted_socket(asyncio.Protocol, left)
    receiver, collector = await loop.connect_accepted_socket(lambda: Collector(loop), right)
    data = noise(4_000_000)
    for start in range(0, len(data), size):
        sender.write(data[start : start + size])
    sender.close()
    assert await collector.received(len(data)) == data
    await released(sender)
    receiver.close()
    await released(receiver)


@on_loop
async def test_pausing_and_resuming_loses_nothing(loop: uringloop.Loop) -> None:
    left, right = tcp_pair()
    sender, _ = await loop.connect_accepted_socket(asyncio.Protocol, left)
    receiver, collector = await loop.connect_accepted_socket(lambda: Collector(loop), right)
    chosen = random.Random(5)
    data = noise(400_000)
    for start in range(0, len(data), 2000):
        sender.write(data[start : start + 2000])
        chosen.choice([receiver.pause_reading, receiver.resume_reading])()
        await turns(chosen.randint(0, 3))
    receiver.resume_reading()
    assert await collector.received(len(data)) == data
    for transport in (sender, receiver):
        transport.close()
        await released(transport)


@pytest.mark.parametrize("peers", [1, 3])
@on_loop
async def test_close_sends_what_the_socket_does_not_take_yet(
    loop: uringloop.Loop, peers: int
) -> None:
    pairs = [narrow_pair(4096) for _ in range(peers)]
    data = noise(300_000)
    transports = []
    for ours, _ in pairs:
        transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, ours)
        transports.append(transport)
    for transport in transports:
        transport.write(data[:50_000])
        transport.write(data[50_000:])
        transport.close()
    for _, peer in pairs:
        received = bytearray()
        while part := await loop.sock_recv(peer, 65_536):
            received += part
        assert received == data
        peer.close()
    for transport in transports:
        await released(transport)


@on_loop
async def test_bytes_sent_before_an_abort_are_a_prefix(loop: uringloop.Loop) -> None:
    data = noise(300_000)
    for wait in range(8):
        pairs = [narrow_pair(4096) for _ in range(3)]
        made = [await loop.connect_accepted_socket(asyncio.Protocol, ours) for ours, _ in pairs]
        for transport, _ in made:
            transport.write(data)
        await turns(wait)
        for transport, _ in made:
            transport.abort()
            await released(transport)
        for _, peer in pairs:
            received = bytearray()
            with contextlib.suppress(ConnectionResetError):
                while part := await loop.sock_recv(peer, 65_536):
                    received += part
            assert data.startswith(received)
            peer.close()


@on_loop
async def test_the_socket_is_closed_with_the_connection(loop: uringloop.Loop) -> None:
    # The program blocks after connection_lost, waiting for a peer that waits for EOF.
    class Waiting(asyncio.Protocol):
        heard: bytes | None = None

        def connection_lost(self, exc: Exception | None) -> None:
            loop.call_soon(self.wait)

        def wait(self) -> None:
            right.settimeout(10)
            self.heard = right.recv(1)

    left, right = tcp_pair()
    with right:
        transport, waiting = await loop.connect_accepted_socket(Waiting, left)
        await turns(3)
        transport.abort()
        await until(lambda: waiting.heard is not None)
        assert waiting.heard == b""


@on_loop
async def test_a_cancelled_receive_loses_no_byte(loop: uringloop.Loop) -> None:
    left, right = tcp_pair()
    data = noise(2000)
    received = bytearray()
    with left, right:
        for number in range(len(data)):
            receiving = loop.create_task(loop.sock_recv(left, 10))
            await turns(number % 4)
            right.send(data[number : number + 1])
            await turns(number % 3)
            receiving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                received += await receiving
        while len(received) < len(data):
            received += await loop.sock_recv(left, len(data))
    assert received == data


@on_loop
async def test_datagrams_are_sent_and_received(loop: uringloop.Loop) -> None:
    class Answering(asyncio.DatagramProtocol):
        transport: asyncio.DatagramTransport

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.DatagramTransport)
            self.transport = transport

        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            self.transport.sendto(data, addr)

    transport, _ = await loop.create_datagram_endpoint(Answering, local_addr=(LOCALHOST, 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.setblocking(False)
        peer.connect(transport.get_extra_info("sockname"))
        for number in range(100):
            message = noise(1 + number * 300, number)
            peer.send(message)
            assert await loop.sock_recv(peer, 65_536) == message
    transport.close()
    await released(transport)


# ── full queues, a sleeping thread ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [MANY, VERY_MANY])
@on_loop
async def test_more_submissions_than_a_queue_holds_all_complete(
    loop: uringloop.Loop, count: int
) -> None:
    left, right = tcp_pair()
    with left:
        waiting = [loop.create_task(loop.sock_recv(left, 1)) for _ in range(count)]
        await turns(3)
        assert loop._operations_in_flight >= count
        right.close()
        assert await asyncio.gather(*waiting) == [b""] * count


def test_overflowed_completions_reach_a_loop_that_never_sleeps() -> None:
    # The kernel thread never sleeps either: an enter that wakes it would also flush the overflow.
    busy = uringloop.Loop(sqpoll=60_000)

    async def main() -> None:
        left, right = tcp_pair()
        with left:
            waiting = [busy.create_task(busy.sock_recv(left, 1)) for _ in range(VERY_MANY)]
            await turns(3)
            right.close()
            busy.call_soon(time.sleep, 0.02)
            await until(lambda: all(task.done() for task in waiting))

    with contextlib.closing(busy):
        busy.run_until_complete(main())


@on_loop
async def test_more_cancels_than_a_queue_holds_all_take_effect(loop: uringloop.Loop) -> None:
    left, right = tcp_pair()
    with left, right:
        waiting = [loop.create_task(loop.sock_recv(left, 1)) for _ in range(VERY_MANY)]
        await turns(3)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert all(task.cancelled() for task in waiting)
        await until(lambda: loop._operations_in_flight == 0)


@pytest.mark.slow
@on_loop
async def test_a_sleeping_kernel_thread_is_woken(loop: uringloop.Loop) -> None:
    server = await loop.create_server(Echo, LOCALHOST, 0)
    async with server:
        pairs = [await asyncio.open_connection(*server.sockets[0].getsockname()) for _ in range(3)]
        for pause in [0, 0.0005, 0.001, 0.002, 0.003, 0.01] * 5:
            await asyncio.sleep(pause)
            for _, writer in pairs:
                writer.write(b"message")
            for reader, _ in pairs:
                assert await reader.readexactly(7) == b"message"
        await asyncio.sleep(0.1)
        assert list(kernel_threads().values()) == ["S"]
        for _, writer in pairs:
            writer.close()
            await writer.wait_closed()


@pytest.mark.slow
def test_an_idle_loop_and_its_thread_sleep(loop: uringloop.Loop) -> None:
    loop.run_until_complete(asyncio.sleep(0.05))
    began = time.process_time()
    loop.run_until_complete(asyncio.sleep(0.3))
    # The kernel thread's time counts as the process's.
    assert time.process_time() - began < 0.15


@pytest.mark.parametrize("busy_poll_us", [0, 100])
def test_threads_and_signals_wake_a_loop_with_a_kernel_thread(busy_poll_us: int) -> None:
    woken = uringloop.Loop(sqpoll=IDLE_MS, busy_poll_us=busy_poll_us)

    async def main() -> None:
        for pause in (0.0, 0.0001, 0.005) * 10:
            event = asyncio.Event()

            def wake(pause: float = pause, event: asyncio.Event = event) -> None:
                time.sleep(pause)
                woken.call_soon_threadsafe(event.set)

            thread = threading.Thread(target=wake)
            thread.start()
            await asyncio.wait_for(event.wait(), 5)
            thread.join()
        event = asyncio.Event()
        woken.add_signal_handler(signal.SIGUSR1, event.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(event.wait(), 5)

    with contextlib.closing(woken):
        woken.run_until_complete(main())


# ── runs, threads, processes ─────────────────────────────────────────────────────────────────


def test_a_run_ends_after_its_cancelled_operations(loop: uringloop.Loop) -> None:
    async def main() -> None:
        left, right = tcp_pair()
        with left, right:
            waiting = [loop.create_task(loop.sock_recv(left, 1)) for _ in range(10)]
            await turns(2)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    for _ in range(20):
        loop.run_until_complete(main())
        assert loop._operations_in_flight == 0


def test_close_ends_operations_in_flight(loop: uringloop.Loop) -> None:
    left, right = tcp_pair()
    with left, right:
        waiting = [loop.create_task(loop.sock_recv(left, 1)) for _ in range(VERY_MANY)]
        loop.run_until_complete(turns(3))
        assert loop._operations_in_flight == VERY_MANY
        loop.close()
        # An operation that had not ended would still be counted, and its memory kept.
        assert loop._operations_in_flight == 0
    for task in waiting:
        # As in asyncio, the task stays pending.
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_no_byte_is_lost_while_the_loop_changes_threads(loop: uringloop.Loop) -> None:
    data = noise(600_000)
    left, right = tcp_pair()
    right.setblocking(True)
    _, collector = loop.run_until_complete(
        loop.connect_accepted_socket(lambda: Collector(loop), left)
    )
    thread = threading.Thread(target=right.sendall, args=(data,))
    thread.start()
    ring = open_fds()
    while len(collector.data) < len(data):
        in_thread(lambda: loop.run_until_complete(asyncio.sleep(0.001)))
    thread.join()
    assert collector.data == data
    # No thread owns the ring, so it has not been replaced.
    assert open_fds() == ring
    collector.transport.write(data[:1000])
    collector.transport.close()
    in_thread(lambda: loop.run_until_complete(collector.lost))
    assert right.recv(1000, socket.MSG_WAITALL) == data[:1000]
    assert right.recv(1) == b""
    right.close()


def test_an_operation_outlives_the_thread_that_started_it(loop: uringloop.Loop) -> None:
    left, right = tcp_pair()
    with left, right:
        receiving = in_thread(lambda: loop.create_task(loop.sock_recv(left, 5)))
        in_thread(lambda: loop.run_until_complete(asyncio.sleep(0.001)))
        assert not receiving.done()
        right.send(b"hello")
        assert loop.run_until_complete(receiving) == b"hello"


def test_a_forked_child_can_only_close_the_loop_and_the_parent_goes_on() -> None:
    script = """
        import asyncio
        import os
        import uringloop

        loop = uringloop.Loop(sqpoll=5)
        loop.run_until_complete(asyncio.sleep(0.001))
        pid = os.fork()
        if pid == 0:
            try:
                loop.run_until_complete(asyncio.sleep(0))
            except RuntimeError as exc:
                print(exc, flush=True)
            loop.close()
            with asyncio.Runner(loop_factory=lambda: uringloop.Loop(sqpoll=5)) as runner:
                os._exit(runner.run(asyncio.sleep(0.001, 7)))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        loop.run_until_complete(asyncio.sleep(0.001))
        loop.close()
    """
    # Python 3.12 and later warn about a fork in a process with threads; the kernel's counts as one.
    ended = run_script(script, "-Wignore:This process:DeprecationWarning", "-Wignore:coroutine")
    refusal = "the event loop was inherited through a fork; a child process must create its own"
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{refusal}\n7\n", "")


def test_a_process_may_exit_without_closing_the_loop() -> None:
    script = """
        import asyncio
        import uringloop

        loop = uringloop.Loop(sqpoll=1000)
        asyncio.set_event_loop(loop)

        async def main():
            server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
            global reader, writer
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"x" * 1000)

        loop.run_until_complete(main())
        print("done")
    """
    began = time.monotonic()
    ended = run_script(script, "-Wignore")
    assert (ended.returncode, ended.stdout) == (0, "done\n")
    assert time.monotonic() - began < 20


ANOTHER_USER = """
import asyncio, os, uringloop, uringloop.fs as fs

os.umask(0o022)
shared = os.path.join(folder, "shared")
secret = os.path.join(folder, "secret")
os.mkdir(shared)
os.chmod(folder, 0o755)
os.chmod(shared, 0o777)
os.mkdir(os.path.join(folder, "closed"), 0o700)
hidden = os.path.join(folder, "closed", "hidden")
for path in (secret, hidden):
    with open(path, "w") as file:
        file.write("of root")
os.chmod(secret, 0o600)

async def use(mode):
    async with uringloop.open(secret, mode) as file:
        await (file.read() if mode == "r" else file.write("more"))

calls = [
    lambda: use("r"), lambda: use("a"), lambda: use("w"),
    lambda: fs.read_bytes(secret),
    lambda: fs.write_atomic(os.path.join(folder, "new"), b""),
    lambda: fs.stat(hidden),
    lambda: fs.unlink(secret),
    lambda: fs.rename(secret, secret + "2"),
    lambda: fs.mkdir(os.path.join(folder, "made")),
    lambda: fs.rmdir(shared),
    lambda: fs.link(secret, secret + "3"),
    lambda: fs.symlink(secret, secret + "4"),
]

async def create():
    path = os.path.join(shared, "file")
    async with uringloop.open(path, "x") as file:
        await file.write("of nobody")
    await fs.write_atomic(path + "2", b"of nobody")
    await fs.mkdir(path + "3")
    print({os.stat(path + end).st_uid for end in ("", "2", "3")})

async def main():
    # The kernel's and the executor's threads exist before the change, and all modules are imported.
    await use("r")
    await asyncio.to_thread(str)
    await fs.write_atomic(os.path.join(shared, "first"), b"")
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    refused = 0
    for call in calls:
        try:
            await call()
        except PermissionError:
            refused += 1
    print(refused == len(calls))
    await create()

before = sorted(os.listdir(folder))
with asyncio.Runner(loop_factory=lambda: uringloop.Loop(sqpoll=1000)) as runner:
    runner.run(asyncio.wait_for(main(), 40))
print(sorted(os.listdir(folder)) == before)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_paths_are_used_with_the_rights_of_the_user_that_the_process_has_become() -> None:
    """The kernel thread keeps the rights of the user who made the loop."""
    # Not in pytest's folders, which another user may not enter.
    with tempfile.TemporaryDirectory(prefix="uringloop-") as folder:
        ended = run_script(f"folder = {folder!r}\n{ANOTHER_USER}")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == ["True", "{65534}", "True"]


def test_the_modules_of_threads_are_there_when_rights_are_given_up() -> None:
    """A process that has given up its user may not be able to read the standard library."""
    script = """
        import sys, uringloop

        loop = uringloop.Loop(sqpoll=100)
        print("concurrent.futures.thread" in sys.modules)
        loop.close()
    """
    done = run_script(script)
    assert done.stdout == "True\n", done.stderr
