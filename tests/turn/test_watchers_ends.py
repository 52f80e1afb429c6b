"""Watched and awaited descriptors that are removed, cancelled, closed or reused."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from support.roles import (
    Loop,
    narrow_pair,
    nothing_comes,
    on_loop,
    read_exactly,
    record_handler_calls,
    turns,
    until,
)
from support.sockets import tcp_pair

import uringloop

LOCALHOST = "127.0.0.1"
Use = Callable[[Loop, socket.socket], object]


def bind_again(address: tuple[str, int], kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind(address)


def bound(kind: socket.SocketKind) -> socket.socket:
    sock = socket.socket(socket.AF_INET, kind)
    sock.setblocking(False)
    sock.bind((LOCALHOST, 0))
    if kind is socket.SOCK_STREAM:
        sock.listen()
    return sock


# ── a close takes effect at once ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@pytest.mark.parametrize("between", [0, 1, 3])
@on_loop
async def test_a_port_is_free_in_the_turn_of_the_removal(
    each_loop: Loop, kind: socket.SocketKind, between: int
) -> None:
    sock = bound(kind)
    address = sock.getsockname()
    each_loop.add_reader(sock, print)
    await turns(between)
    each_loop.remove_reader(sock)
    sock.close()
    bind_again(address, kind)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@on_loop
async def test_a_port_is_free_after_a_cancelled_wait(
    each_loop: Loop, kind: socket.SocketKind
) -> None:
    sock = bound(kind)
    address = sock.getsockname()
    wait = each_loop.sock_accept if kind is socket.SOCK_STREAM else each_loop.sock_recvfrom
    arguments = () if kind is socket.SOCK_STREAM else (10,)
    try:
        async with asyncio.timeout(0.01):
            await wait(sock, *arguments)
    except TimeoutError:
        # In the turn in which the task gets the TimeoutError.
        sock.close()
    bind_again(address, kind)


@on_loop
async def test_the_peer_sees_eof_in_the_turn_of_the_removal(each_loop: Loop) -> None:
    left, right = tcp_pair()
    each_loop.add_reader(left, print)
    each_loop.add_writer(left, int)
    await turns(2)
    each_loop.remove_reader(left)
    each_loop.remove_writer(left)
    left.close()
    with right:
        assert right.recv(1) == b""


def reading(sock: socket.socket) -> subprocess.Popen[bytes]:
    """Start a program that reads from *sock* and fails at EOF."""
    with sock:
        return subprocess.Popen([sys.executable, "-Ic", "input()"], stdin=sock.fileno())


@on_loop
async def test_a_child_that_reads_until_the_close_can_be_waited_for(each_loop: Loop) -> None:
    ours, theirs = socket.socketpair()
    child = reading(theirs)
    each_loop.add_reader(ours, print)
    await turns(2)
    each_loop.remove_reader(ours)
    ours.close()
    # Only this close can have caused the EOF.
    assert child.wait(20) == 1


@contextlib.contextmanager
def used_again(number: int) -> Iterator[socket.socket]:
    """Give a socket the free descriptor *number*; yield its peer."""
    left, right = sorted(socket.socketpair(), key=lambda end: end.fileno() != number)
    with left, right:
        if left.fileno() != number:
            os.dup2(left.fileno(), number)
        yield right
        if left.fileno() != number:
            os.close(number)


# ── closed while it is watched ──────────────────────────────────────────────────────────────────


@on_loop
async def test_a_closed_descriptor_is_not_watched_any_more(each_loop: Loop) -> None:
    calls: list[str] = []
    left, right = tcp_pair()
    each_loop.add_reader(left, calls.append, "old")
    number = left.fileno()
    await turns(2)
    left.close()
    with right:
        assert right.recv(1) == b""
    with used_again(number) as peer:
        peer.send(b"x")
        await nothing_comes(each_loop)
        assert calls == []
        assert each_loop.remove_reader(number)
    assert record_handler_calls(each_loop) == []


@on_loop
async def test_a_reused_number_is_watched_as_another_file(loop: Loop) -> None:
    # asyncio's selector believes that it still watches the number, and does not call epoll_ctl.
    calls: list[str] = []
    left, right = tcp_pair()
    number = left.fileno()
    loop.add_reader(number, calls.append, "old")
    loop.add_writer(number, calls.append, "old")
    await turns(2)
    left.close()
    right.close()
    calls.clear()
    with used_again(number) as peer:
        peer.send(b"x")
        loop.add_reader(number, calls.append, "new")
        await until(lambda: len(calls) > 3)
        assert set(calls) == {"new"}
        assert loop.remove_reader(number)
        assert not loop.remove_writer(number)


@on_loop
async def test_a_duplicate_of_a_closed_descriptor_does_not_keep_the_loop_busy(
    loop: uringloop.Loop,
) -> None:
    calls: list[str] = []
    left, right = socket.socketpair()
    other, _ = pair = socket.socketpair()
    with left.dup(), right, pair[0], pair[1]:
        loop.add_reader(left, calls.append, "left")
        loop.add_reader(other, calls.append, "other")
        number = left.fileno()
        left.close()
        assert loop.remove_reader(number)
        right.send(b"x")
        await nothing_comes(loop)
        before = loop.stats()["turns"]
        await asyncio.sleep(0.1)
        assert loop.stats()["turns"] - before < 20
        assert calls == []
        pair[1].send(b"x")
        await until(lambda: "other" in calls)
        assert set(calls) == {"other"}
        loop.remove_reader(other)


@on_loop
async def test_a_duplicate_under_the_old_number_is_watched(loop: Loop) -> None:
    calls: list[str] = []
    left, right = socket.socketpair()
    number = left.fileno()
    with left.dup() as twin, right:
        loop.add_reader(left, calls.append, "old")
        left.close()
        assert loop.remove_reader(number)
        os.dup2(twin.fileno(), number)
        loop.add_reader(number, calls.append, "new")
        right.send(b"x")
        await until(lambda: len(calls) > 0)
        assert set(calls) == {"new"}
        assert loop.remove_reader(number)
        os.close(number)


@on_loop
async def test_watching_survives_the_close_of_its_epoll_descriptor(loop: uringloop.Loop) -> None:
    if loop.backend != "io_uring":
        pytest.skip("the software ring has an epoll descriptor of its own, which must stay open")
    calls: list[str] = []
    left, right = socket.socketpair()
    with left, right:
        loop.add_reader(left, lambda: calls.append(left.recv(1).decode()))
        await turns(2)
        names = {int(fd): name for fd in os.listdir("/proc/self/fd") if (name := target(fd))}
        mine = max(fd for fd, name in names.items() if name == "anon_inode:[eventpoll]")
        os.close(mine)
        assert os.open("/dev/null", os.O_RDONLY) == mine
        for letter in "abc":
            right.send(letter.encode())
            await until(lambda letter=letter: calls[-1:] == [letter])  # type: ignore[misc]
        os.close(mine)
        loop.remove_reader(left)


def target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


# ── readiness ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/", __file__])
@on_loop
async def test_a_file_that_is_always_ready_is_refused(each_loop: Loop, path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        for add in (each_loop.add_reader, each_loop.add_writer):
            with pytest.raises(PermissionError, match=r"^\[Errno 1\] Operation not permitted$"):
                add(fd, print)
        assert not each_loop.remove_reader(fd)
    finally:
        os.close(fd)


@on_loop
async def test_a_closed_number_is_refused(each_loop: Loop) -> None:
    fd = os.dup(0)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        each_loop.add_reader(fd, print)
    assert caught.value.errno == errno.EBADF
    assert not each_loop.remove_reader(fd)


@on_loop
async def test_more_descriptors_are_ready_than_one_turn_reports(each_loop: Loop) -> None:
    called: set[int] = set()
    fds = [os.eventfd(1) for _ in range(700)]
    for fd in fds:
        each_loop.add_reader(fd, called.add, fd)
    await until(lambda: len(called) == len(fds))
    for fd in fds:
        assert each_loop.remove_reader(fd)
        os.close(fd)


@on_loop
async def test_a_reader_can_remove_all_others_of_the_same_turn(each_loop: Loop) -> None:
    calls: list[int] = []
    fds = [os.eventfd(1) for _ in range(10)]

    def alone(fd: int) -> None:
        calls.append(fd)
        for other in fds:
            each_loop.remove_reader(other)

    for fd in fds:
        each_loop.add_reader(fd, alone, fd)
    await turns(5)
    assert len(calls) == 1
    for fd in fds:
        os.close(fd)


def test_keyboard_interrupt_in_a_reader_does_not_lose_the_others(each_loop: Loop) -> None:
    called: set[int] = set()
    fds = [os.eventfd(1, os.EFD_NONBLOCK) for _ in range(5)]

    def read(fd: int) -> None:
        called.add(fd)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(fd)
        if len(called) == 1:
            raise KeyboardInterrupt

    for fd in fds:
        each_loop.add_reader(fd, read, fd)
    with pytest.raises(KeyboardInterrupt):
        each_loop.run_forever()
    each_loop.call_later(0.01, each_loop.stop)
    each_loop.run_forever()
    assert called == set(fds)
    for fd in fds:
        assert each_loop.remove_reader(fd)
        os.close(fd)


# ── a peer that has shut down its side ──────────────────────────────────────────────────────────


async def sends_all(loop: Loop, sock: socket.socket, data: bytes) -> None:
    await loop.sock_sendall(sock, data)


async def writes(loop: Loop, sock: socket.socket, data: bytes) -> None:
    done = loop.create_future()
    left = memoryview(data)

    def send() -> None:
        nonlocal left
        left = left[sock.send(left) :]
        if not left:
            loop.remove_writer(sock)
            done.set_result(None)

    loop.add_writer(sock, send)
    await done


@pytest.mark.parametrize("send", [sends_all, writes])
@on_loop
async def test_sending_to_a_half_closed_peer_does_not_pause(
    each_loop: Loop, send: Callable[..., object]
) -> None:
    data = os.urandom(4_000_000)
    ours, theirs = narrow_pair(8192)
    with ours, theirs:
        theirs.shutdown(socket.SHUT_WR)
        received = asyncio.ensure_future(read_exactly(each_loop, theirs, len(data)))
        began = time.monotonic()
        await send(each_loop, ours, data)  # type: ignore[misc]
        assert await received == data
        # The socket is full hundreds of times: 10 ms for each would be too long.
        assert time.monotonic() - began < 2


# ── a forked child ──────────────────────────────────────────────────────────────────────────────


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# Python 3.12+ warns about pytest's timeout thread.
@pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")
@on_loop
async def test_a_forked_child_cannot_change_its_parents_watchers(loop: uringloop.Loop) -> None:
    calls: list[bytes] = []
    left, right = socket.socketpair()
    with left, right:
        loop.add_reader(left, lambda: calls.append(left.recv(1)))
        await turns(2)
        pid = os.fork()
        if pid == 0:
            refused = 0
            for touch in (
                lambda: loop.remove_reader(left),
                lambda: loop.add_writer(left, print),
                lambda: loop.add_reader(right, print),
            ):
                try:
                    touch()
                except RuntimeError:
                    refused += 1
            os._exit(refused)
        assert exit_code(pid) == 3
        right.send(b"x")
        await until(lambda: calls == [b"x"])
        loop.remove_reader(left)


def test_signals_still_end_a_wait(each_loop: Loop) -> None:
    left, right = socket.socketpair()
    with left, right:
        each_loop.add_reader(left, print)
        each_loop.add_signal_handler(signal.SIGUSR1, each_loop.stop)
        each_loop.call_later(0.01, os.kill, os.getpid(), signal.SIGUSR1)
        each_loop.run_forever()
        each_loop.remove_signal_handler(signal.SIGUSR1)
        each_loop.remove_reader(left)
