"""The software ring's own work, which the kernel does for io_uring.

Every test uses the software ring, also if the rest of the suite uses io_uring. Subjects:
descriptors that are closed, duplicated or replaced without epoll_ctl(), wake-ups, sleeps that must
take no processor time, full queues. The tests of its threads are in test_softring_files.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.datagrams import Mailbox, endpoint, udp
from support.protocols import Collector, Echo
from support.roles import (
    HalfOpen,
    Loop,
    abort_and_wait,
    fill,
    kernel_version,
    link,
    narrow_pair,
    noise,
    on_loop,
    pair,
    read_exactly,
    record_handler_calls,
    reset,
    serving,
    stream,
    turns,
    until,
)
from support.sockets import tcp_pair
from support.software_ring import output, room_for
from support.sources import constant

import uringloop

# <linux/in.h>; Python does not name it.
IP_RECVERR = 11
# The system call of 5.11 that waits in nanoseconds: the same number on every architecture.
EPOLL_PWAIT2 = 441
# How long a test watches a sleeping loop, and the processor time that the loop may take: a loop
# that does not sleep takes all of it.
SLEEP = 0.3
SLEEP_COST_MAX = 0.1
SQ_ENTRIES = constant("_ring/ring.pyx", "SQ_ENTRIES")
CQ_ENTRIES = constant("_ring/ring.pyx", "CQ_ENTRIES")


@pytest.fixture(autouse=True)
def software_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URINGLOOP_BACKEND", "soft")


async def check_sleep() -> None:
    """Check that the loop sleeps while nothing happens."""
    await turns(5)
    began = time.process_time()
    await asyncio.sleep(SLEEP)
    assert time.process_time() - began < SLEEP_COST_MAX


# ── descriptors ──────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_reused_descriptor_numbers_get_only_their_own_bytes(loop: uringloop.Loop) -> None:
    numbers = set()
    for round_number in range(300):
        ours, peer = tcp_pair()
        numbers.add(ours.fileno())
        peer.send(b"%d" % round_number)
        collector = Collector(loop)
        transport, _ = await loop.create_connection(lambda made=collector: made, sock=ours)  # type: ignore[misc]
        assert await collector.received(1) == b"%d" % round_number
        # The next socket gets the same number, while the old peer still sends.
        transport.abort()
        await collector.lost
        with contextlib.suppress(OSError):
            peer.send(b"too late")
        peer.close()
    assert len(numbers) < 10


@on_loop
async def test_dup2_over_a_watched_descriptor_fails_its_reader(
    loop: uringloop.Loop,
) -> None:
    with pair() as (ours, _):
        stale = loop.create_task(loop.sock_recv(ours, 10))
        await turns(3)
        number = ours.fileno()
        with pair() as (theirs, their_peer):
            # Without a call of the loop, the number now refers to another file.
            os.dup2(theirs.fileno(), number)
            fresh = loop.create_task(loop.sock_recv(theirs, 10))
            other = loop.create_task(loop.sock_recv(ours, 10))
            with pytest.raises(OSError, match="Bad file descriptor"):
                await stale
            other.cancel()
            their_peer.send(b"fresh")
            assert await fresh == b"fresh"


@pytest.mark.parametrize("holder", ["process", "copy"])
@on_loop
async def test_a_duplicate_of_a_closed_descriptor_does_not_keep_the_loop_awake(
    loop: uringloop.Loop, holder: str
) -> None:
    ours, peer = tcp_pair()
    fd = ours.fileno()
    collector = Collector(loop)
    with contextlib.ExitStack() as stack:
        stack.enter_context(peer)
        if holder == "process":
            child = subprocess.Popen(  # noqa: ASYNC220
                ["cat"], pass_fds=[fd], stdin=subprocess.PIPE
            )
            assert child.stdin is not None
            # The child ends last, and with it the duplicate.
            stack.callback(child.wait)
            stack.enter_context(child.stdin)
        else:
            stack.callback(os.close, os.dup(fd))
        transport, _ = await loop.create_connection(lambda: collector, sock=ours)
        await turns(3)
        transport.abort()
        await collector.lost
        peer.send(b"for the copy")
        await check_sleep()


@on_loop
async def test_a_descriptor_closed_behind_the_loop_ends_its_connection(
    loop: uringloop.Loop,
) -> None:
    collector = Collector(loop)
    ours, peer = tcp_pair()
    with peer, ours.dup(), pair() as (other, other_peer):
        transport, _ = await loop.create_connection(lambda: collector, sock=ours)
        other_read = loop.create_task(loop.sock_recv(other, 10))
        await turns(3)
        # epoll keeps reporting the duplicate's file, which can no longer be removed from it.
        os.close(ours.detach())
        peer.send(b"for nobody")
        assert isinstance(await collector.lost, OSError)
        await check_sleep()
        # Other waits still end, also those for the threads for files.
        other_peer.send(b"other")
        assert await other_read == b"other"
        assert await uringloop.fs.exists("/proc/self/none") is False
    assert transport.is_closing()


# ── wake-ups ─────────────────────────────────────────────────────────────────────────────────


def test_no_wake_up_of_four_threads_is_lost(loop: uringloop.Loop) -> None:
    each = 25_000
    left = itertools.count(4 * each - 1, -1)

    def count_down() -> None:
        if next(left) == 0:
            loop.stop()

    def call() -> None:
        for _ in range(each):
            loop.call_soon_threadsafe(count_down)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        loop.call_soon(caller.start)
    # A last resort: only the wake-ups end a sleep here.
    failure = loop.call_later(20, loop.stop)
    loop.run_forever()
    failure.cancel()
    for caller in callers:
        caller.join()
    assert next(left) == -1


@on_loop
async def test_every_wake_up_by_a_thread_ends_a_sleep(loop: uringloop.Loop) -> None:
    turn = threading.Semaphore(0)

    def answer() -> None:
        for _ in range(2000):
            turn.acquire()
            loop.call_soon_threadsafe(answered.set)

    answered = asyncio.Event()
    other = threading.Thread(target=answer)
    other.start()
    for _ in range(2000):
        turn.release()
        await answered.wait()
        answered.clear()
    other.join()


@on_loop
async def test_a_loop_that_never_sleeps_gets_all_events(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    spinning = True

    def spin() -> None:
        if spinning:
            loop.call_soon(spin)

    spin()
    signalled = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, signalled.set)
    woken = asyncio.Event()
    with pair() as (ours, peer):
        for number in range(50):
            read = loop.create_task(loop.sock_recv(ours, 10))
            # So many that the loop no longer looks for events in every turn.
            await turns(200)
            peer.send(b"x")
            assert await read == b"x"
            await uringloop.fs.mkdir(tmp_path / str(number))
            threading.Thread(target=loop.call_soon_threadsafe, args=[woken.set]).start()
            await woken.wait()
            woken.clear()
            os.kill(os.getpid(), signal.SIGUSR1)
            await signalled.wait()
            signalled.clear()
    loop.remove_signal_handler(signal.SIGUSR1)
    spinning = False


@on_loop
async def test_signals_interrupt_sleeps_and_lose_nothing(loop: uringloop.Loop) -> None:
    count = 0

    def beat(*_: object) -> None:
        nonlocal count
        count += 1

    before = signal.signal(signal.SIGALRM, beat)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        async with stream(loop, Echo()) as (_, peer):
            for number in range(100):
                peer.send(b"%4d" % number)
                assert await read_exactly(loop, peer, 4) == b"%4d" % number
            began = loop.time()
            await asyncio.sleep(0.05)
            assert loop.time() - began >= 0.05
        await until(lambda: count > 20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ── sleeping ─────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def paused(loop: Loop) -> AsyncIterator[None]:
    async with stream(loop, Collector(loop)) as (transport, peer):
        transport.pause_reading()
        fill(peer.send)
        yield


@contextlib.asynccontextmanager
async def paused_and_half_closed(loop: Loop) -> AsyncIterator[None]:
    async with stream(loop, Collector(loop)) as (transport, peer):
        transport.pause_reading()
        peer.send(b"unread")
        peer.shutdown(socket.SHUT_WR)
        yield


@contextlib.asynccontextmanager
async def half_closed(loop: Loop) -> AsyncIterator[None]:
    collector = HalfOpen(loop)
    async with stream(loop, collector) as (_, peer):
        peer.shutdown(socket.SHUT_WR)
        await collector.eof
        yield


@contextlib.asynccontextmanager
async def half_closed_while_writing(loop: Loop) -> AsyncIterator[None]:
    collector = HalfOpen(loop)
    async with stream(loop, collector, buffer_size=8192) as (transport, peer):
        transport.write(noise(1 << 20))
        peer.shutdown(socket.SHUT_WR)
        await collector.eof
        yield


@contextlib.asynccontextmanager
async def reset_while_paused(loop: Loop) -> AsyncIterator[None]:
    async with stream(loop, Collector(loop)) as (transport, peer):
        transport.pause_reading()
        reset(peer)
        yield


@contextlib.asynccontextmanager
async def hung_up_pipe(loop: Loop) -> AsyncIterator[None]:
    reader, writer = os.pipe()
    writable = loop.create_future()
    loop.add_writer(writer, writable.set_result, None)
    await writable
    loop.remove_writer(writer)
    os.close(reader)
    yield
    os.close(writer)


@contextlib.asynccontextmanager
async def unread_errors(loop: Loop) -> AsyncIterator[None]:
    mailbox = Mailbox()
    with udp() as gone:
        address = gone.getsockname()
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    sock.setblocking(False)
    sock.connect(address)
    transport, _ = await loop.create_datagram_endpoint(lambda: mailbox, sock=sock)
    # The error stays in the socket's error queue, which epoll reports for ever.
    transport.sendto(b"to nobody")
    await mailbox.failed()
    yield
    transport.abort()
    await until(lambda: sock.fileno() == -1)


@contextlib.asynccontextmanager
async def no_descriptor_left(loop: Loop) -> AsyncIterator[None]:
    handler_calls = record_handler_calls(loop)
    async with serving(loop, lambda: Collector(loop)) as address:
        with socket.socket() as client:
            client.setblocking(False)
            with room_for(0):
                client.connect_ex(address)
                await until(lambda: bool(handler_calls))
                yield
    handler_calls.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    "state",
    [
        paused,
        paused_and_half_closed,
        reset_while_paused,
        half_closed,
        half_closed_while_writing,
        hung_up_pipe,
        unread_errors,
        no_descriptor_left,
    ],
)
@on_loop
async def test_events_that_no_operation_consumes_do_not_keep_the_loop_awake(
    loop: uringloop.Loop,
    state: Callable[[Loop], contextlib.AbstractAsyncContextManager[None]],
) -> None:
    async with state(loop):
        await check_sleep()


@pytest.mark.parametrize("refusal", ["", "ENOSYS", "EPERM"])
def test_timers_are_punctual_without_epoll_pwait2(refusal: str) -> None:
    later, plain, echoed = output(f"""
        import asyncio, errno, time
        import uringloop
        from support import seccomp
        if {refusal!r}:
            answer = getattr(errno, {refusal!r}, 0)
            seccomp.refuse(seccomp.SECCOMP_RET_ERRNO | answer, ({EPOLL_PWAIT2},))

        async def echo(reader, writer):
            writer.write(await reader.readexactly(4))
            writer.close()
            await writer.wait_closed()

        async def main():
            late, plain = [], []
            for _ in range(50):
                due = time.monotonic() + 0.0017
                await asyncio.sleep(0.0017)
                late.append(time.monotonic() - due)
                due = time.monotonic() + 0.0017
                time.sleep(0.0017)
                plain.append(time.monotonic() - due)
            late.sort()
            plain.sort()
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            async with server:
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writer.write(b"ping")
                print(late[0], plain[0], await reader.read())
                writer.close()
                await writer.wait_closed()
        uringloop.run(main())
        """).split()
    # Early only by the time between the test's clock and the loop's.
    assert float(later) > -0.0005
    # Without epoll_pwait2 (5.11) timers are rounded up to a millisecond. The smallest of 50, since
    # other processes delay the others.
    rounded = refusal or kernel_version() < (5, 11)
    assert float(later) - float(plain) < (0.0018 if rounded else 0.0006)
    assert echoed == "b'ping'"


# ── bytes ────────────────────────────────────────────────────────────────────────────────────


class Halting(Collector):
    """Pauses reading after every arrival, and resumes some turns later."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.pause_reading()
        self.loop.call_later(0.0005, self.transport.resume_reading)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@on_loop
async def test_large_transfers_through_small_buffers_are_exact(
    loop: uringloop.Loop, kind: str
) -> None:
    left, right = narrow_pair(4096) if kind == "tcp" else socket.socketpair()
    for sock in (left, right):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sender, receiver = HalfOpen(loop), Halting(loop)
    data = noise(1 << 20)
    there, _ = await loop.create_connection(lambda: sender, sock=left)
    here, _ = await loop.connect_accepted_socket(lambda: receiver, right)
    chance = random.Random(2)
    start = 0
    while start < len(data):
        # One sendmsg sends many pieces, and ends in the middle of one of them.
        ends = list(itertools.accumulate(chance.randrange(1, 3000) for _ in range(50)))
        pieces = [data[start + a : start + b] for a, b in itertools.pairwise([0, *ends])]
        there.writelines(pieces)
        start += ends[-1]
        await turns(chance.randrange(3))
    there.write_eof()
    await receiver.eof
    assert receiver.data == data
    await abort_and_wait(here)
    await abort_and_wait(there)


@on_loop
async def test_bytes_between_passed_descriptors_arrive_before_eof(loop: uringloop.Loop) -> None:
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    collector = HalfOpen(loop)
    transport, _ = await loop.create_connection(lambda: collector, sock=ours)
    # A receive stops at each passed descriptor, and epoll reports no further event.
    for _ in range(20):
        socket.send_fds(peer, [b"bytes"], [ours.fileno()])
    peer.close()
    await collector.eof
    assert collector.data == b"bytes" * 20
    await abort_and_wait(transport)


@on_loop
async def test_datagrams_of_all_sizes_and_refusals_arrive_one_by_one(loop: uringloop.Loop) -> None:
    mailbox = Mailbox()
    async with endpoint(loop, mailbox, local_addr=("127.0.0.1", 0)) as (transport, _):
        with udp() as peer:
            peer.connect(transport.get_extra_info("sockname"))
            sent = [b"", b"x", noise(65_507), b"", noise(2000)]
            for data in sent:
                peer.send(data)
            await mailbox.received(len(sent))
            assert mailbox.data == sent
    with udp() as gone:
        address = gone.getsockname()
    refused = Mailbox()
    async with endpoint(loop, refused, remote_addr=address) as (other, _):
        for number in range(3):
            other.sendto(b"to nobody")
            await refused.failed(number + 1)
    assert all(isinstance(exc, ConnectionRefusedError) for exc in refused.errors)


# ── queues ───────────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_no_completion_beyond_the_queue_is_lost_or_doubled(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    # More than twice the queue: completions that arrive during the start are dispatched first.
    count = 2 * CQ_ENTRIES + 500
    done: list[int] = []

    async def make(number: int) -> None:
        await uringloop.fs.mkdir(tmp_path / str(number))
        done.append(number)

    tasks = [loop.create_task(make(number)) for number in range(count)]
    # Block the loop in the turn that starts all of them, until they are done, except those that are
    # submitted when the turn ends.
    await turns()
    while len(os.listdir(tmp_path)) < count - SQ_ENTRIES:
        time.sleep(0.05)  # noqa: ASYNC251
    await asyncio.gather(*tasks)
    assert sorted(done) == list(range(count))
    assert loop.stats()["operations"] == 0
    assert loop.stats()["overflows"] > 0


@on_loop
async def test_more_ready_sockets_than_one_epoll_wait_takes_are_all_served(
    loop: uringloop.Loop,
) -> None:
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(pair()) for _ in range(300)]
        for round_number in range(3):
            reads = [loop.create_task(loop.sock_recv(ours, 100)) for ours, _ in pairs]
            await turns(2)
            for number, (_, peer) in enumerate(pairs):
                peer.send(b"%d %d" % (round_number, number))
            assert await asyncio.gather(*reads) == [
                b"%d %d" % (round_number, number) for number in range(len(pairs))
            ]


@on_loop
async def test_three_hundred_connections_share_a_few_buffers(loop: uringloop.Loop) -> None:
    count, size = 300, 100_000
    data = noise(size)
    async with contextlib.AsyncExitStack() as stack:
        receivers = [Collector(loop) for _ in range(count)]
        links = [
            await stack.enter_async_context(link(loop, Collector(loop), receiver))
            for receiver in receivers
        ]
        # A connection receives its first messages by polls, which take no buffer.
        for messages in range(1, 6):
            for (transport, _), receiver in zip(links, receivers, strict=True):
                transport.write(b"x")
                await receiver.received(messages)
        for number, (transport, _) in enumerate(links):
            transport.write(data[number:] + data[:number])
        for number, receiver in enumerate(receivers):
            received = await receiver.received(5 + size)
            assert received == b"xxxxx" + data[number:] + data[:number]
        assert loop.stats()["starved"] > 0
        assert loop.stats()["buffers_out"] == 0
