"""add_reader, add_writer and their removal: level-triggered watching of descriptors."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import tempfile
from collections.abc import Callable, Iterator

import pytest
from support.loops import run_turns
from support.roles import (
    Loop,
    fill,
    narrow_pair,
    on_loop,
    record_handler_calls,
    released,
    reset,
    turns,
    until,
)
from support.sockets import tcp_pair, unix_pair

Pair = tuple[socket.socket, socket.socket]

# A watcher reports within two turns of being armed; tests allow for these in addition.
LATENCY = 2


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two connected, non-blocking sockets."""
    left, right = unix_pair()
    with left, right:
        yield left, right


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The ends of a non-blocking pipe; a test may close them."""
    ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    yield ends
    for fd in ends:
        if os.path.exists(f"/proc/self/fd/{fd}"):
            os.close(fd)


# ── level-triggered ───────────────────────────────────────────────────────────────────────


def test_unread_data_fires_again_in_each_turn(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    calls: list[int] = []
    each_loop.add_reader(left, calls.append, 1)
    run_turns(each_loop, 10)
    assert calls == []
    right.send(b"x")
    run_turns(each_loop, 20)
    assert 20 - LATENCY <= len(calls) <= 20
    left.recv(1)
    run_turns(each_loop, LATENCY)
    seen = len(calls)
    run_turns(each_loop, 10)
    assert len(calls) == seen
    right.send(b"x")
    run_turns(each_loop, LATENCY + 1)
    assert len(calls) > seen
    assert each_loop.remove_reader(left)


def test_a_writable_socket_fires_in_each_turn(each_loop: Loop, pair: Pair) -> None:
    left, _ = pair
    calls: list[int] = []
    each_loop.add_writer(left, calls.append, 1)
    run_turns(each_loop, 20)
    assert 20 - LATENCY <= len(calls) <= 20
    assert each_loop.remove_writer(left)
    seen = len(calls)
    run_turns(each_loop, 10)
    assert len(calls) == seen


@on_loop
async def test_a_reader_sees_every_message_once(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    seen: list[bytes] = []
    each_loop.add_reader(left, lambda: seen.append(left.recv(100)))
    for number in range(200):
        right.send(b"%03d" % number)
        if number % 3 == 0:
            await until(lambda: b"".join(seen).endswith(b"%03d" % number))  # noqa: B023
    await until(lambda: len(b"".join(seen)) == 600)
    assert b"".join(seen) == b"".join(b"%03d" % number for number in range(200))
    each_loop.remove_reader(left)


@on_loop
async def test_a_full_socket_is_not_writable_until_it_is_read(each_loop: Loop) -> None:
    left, right = narrow_pair(16_384)
    calls: list[int] = []
    with left, right:
        fill(left.send)
        each_loop.add_writer(left, calls.append, 1)
        await turns(10)
        assert calls == []
        each_loop.add_reader(right, right.recv, 65_536)
        await until(lambda: len(calls) > 0)
        assert each_loop.remove_reader(right)
        assert each_loop.remove_writer(left)


# ── registering ───────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_closed_socket_is_removed_by_its_object(each_loop: Loop) -> None:
    left, right = socket.socketpair()
    each_loop.add_reader(left, print)
    each_loop.add_writer(right, print)
    right.close()
    left.close()
    assert each_loop.remove_reader(left)
    assert each_loop.remove_writer(right)
    with pytest.raises(ValueError, match=r"^Invalid file descriptor: -1$"):
        each_loop.remove_reader(left)


@on_loop
async def test_arguments_are_passed(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    calls: list[tuple[object, ...]] = []

    def note(*args: object) -> None:
        calls.append(args)
        each_loop.remove_reader(left)

    each_loop.add_reader(left, note, 1, "two", None)
    right.send(b"x")
    await until(lambda: len(calls) > 0)
    assert calls == [(1, "two", None)]


@on_loop
async def test_numbers_and_objects_name_the_same_descriptor(each_loop: Loop, pair: Pair) -> None:
    left, right = pair

    class Wrapped:
        def fileno(self) -> int:
            return left.fileno()

    right.send(b"x")
    for add, remove in (
        (left.fileno(), left),
        (left, Wrapped()),
        (Wrapped(), left.fileno()),
    ):
        called = asyncio.Event()
        each_loop.add_reader(add, called.set)
        await called.wait()
        assert each_loop.remove_reader(remove) is True
        assert each_loop.remove_reader(add) is False


@on_loop
async def test_removing_returns_whether_the_descriptor_was_watched(
    each_loop: Loop, pair: Pair
) -> None:
    left, _ = pair
    assert each_loop.remove_reader(left) is False
    assert each_loop.remove_writer(left) is False
    each_loop.add_reader(left, lambda: None)
    assert each_loop.remove_writer(left) is False
    assert each_loop.remove_reader(left) is True
    assert each_loop.remove_reader(left) is False
    each_loop.add_writer(left, lambda: None)
    assert each_loop.remove_reader(left) is False
    assert each_loop.remove_writer(left) is True


@on_loop
async def test_a_second_callback_replaces_the_first(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    calls: list[str] = []
    each_loop.add_reader(left, calls.append, "first")
    await turns(3)
    each_loop.add_reader(left, calls.append, "second")
    right.send(b"x")
    await until(lambda: len(calls) >= 3)
    assert set(calls) == {"second"}
    each_loop.add_reader(left, calls.append, "third")
    calls.clear()
    await until(lambda: len(calls) >= 3)
    assert set(calls) == {"third"}
    assert each_loop.remove_reader(left) is True
    assert each_loop.remove_reader(left) is False


@on_loop
async def test_a_reader_and_a_writer_share_a_descriptor(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    calls: list[str] = []
    each_loop.add_reader(left, calls.append, "read")
    each_loop.add_writer(left, calls.append, "write")
    await until(lambda: calls.count("write") >= 3)
    assert "read" not in calls
    right.send(b"x")
    await until(lambda: calls.count("read") >= 3)
    assert each_loop.remove_writer(left)
    calls.clear()
    await until(lambda: calls.count("read") >= 3)
    assert "write" not in calls
    assert each_loop.remove_reader(left)


@on_loop
async def test_a_callback_can_remove_itself(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    calls: list[bool] = []
    each_loop.add_reader(left, lambda: calls.append(each_loop.remove_reader(left)))
    right.send(b"x")
    await until(lambda: len(calls) > 0)
    await turns(10)
    assert calls == [True]


@on_loop
async def test_a_callback_can_register_its_successor(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    calls: list[str] = []

    def first() -> None:
        calls.append("first")
        each_loop.remove_reader(left)
        each_loop.add_reader(left, second)

    def second() -> None:
        calls.append("second")
        each_loop.add_reader(left, third)

    def third() -> None:
        calls.append("third")
        each_loop.remove_reader(left)

    each_loop.add_reader(left, first)
    right.send(b"x")
    await until(lambda: "third" in calls)
    await turns(10)
    assert calls == ["first", "second", "third"]


def test_a_reader_that_registers_itself_again_does_not_starve_a_writer(
    each_loop: Loop, pair: Pair
) -> None:
    left, right = pair
    calls: list[str] = []

    def again() -> None:
        calls.append("reader")
        each_loop.add_reader(left, again)

    each_loop.add_reader(left, again)
    each_loop.add_writer(left, calls.append, "writer")
    right.send(b"never read")
    run_turns(each_loop, 20)
    assert calls.count("reader") >= 20 - LATENCY
    assert calls.count("writer") >= 20 - LATENCY
    assert each_loop.remove_reader(left)
    assert each_loop.remove_writer(left)


@on_loop
async def test_a_reader_can_remove_the_writer_of_the_same_turn(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    calls: list[str] = []

    def read() -> None:
        calls.append("read")
        each_loop.remove_writer(left)
        each_loop.remove_reader(left)

    def write() -> None:
        calls.append("write")
        each_loop.remove_reader(left)
        each_loop.remove_writer(left)

    right.send(b"x")
    each_loop.add_reader(left, read)
    each_loop.add_writer(left, write)
    await until(lambda: len(calls) > 0)
    await turns(10)
    assert len(calls) == 1


@on_loop
async def test_a_callback_does_not_run_after_its_removal(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    calls: list[int] = []
    for number in range(50):
        each_loop.add_reader(left, calls.append, number)
        await turns(number % 4)
        right.send(b"x")
        if number % 3:
            await turns(number % 3)
        assert each_loop.remove_reader(left)
        calls.clear()
        await turns(3)
        assert calls == []
        left.recv(10)


@on_loop
async def test_an_error_in_a_callback_is_reported_and_watching_goes_on(
    each_loop: Loop, pair: Pair
) -> None:
    left, right = pair
    error = ValueError("watcher")

    def fail() -> None:
        raise error

    handler_calls = record_handler_calls(each_loop)
    each_loop.add_reader(left, fail)
    right.send(b"x")
    await until(lambda: len(handler_calls) >= 3)
    assert each_loop.remove_reader(left)
    assert {id(call["exception"]) for call in handler_calls} == {id(error)}
    assert str(handler_calls[0]["message"]).startswith("Exception in callback ")


@on_loop
async def test_each_of_many_descriptors_runs_its_own_callback(each_loop: Loop) -> None:
    pairs = [socket.socketpair() for _ in range(200)]
    seen: list[int] = []

    def note(number: int) -> None:
        pairs[number][0].recv(1)
        seen.append(number)

    for number, (left, _) in enumerate(pairs):
        left.setblocking(False)
        each_loop.add_reader(left, note, number)
    for number in range(0, 200, 3):
        pairs[number][1].send(b"x")
    await until(lambda: len(seen) == 67)
    await turns(5)
    assert sorted(seen) == list(range(0, 200, 3))
    for left, right in pairs:
        assert each_loop.remove_reader(left)
        left.close()
        right.close()


# ── closing and reusing descriptors ───────────────────────────────────────────────────────


@on_loop
async def test_a_closed_and_reused_number_is_a_new_descriptor(each_loop: Loop) -> None:
    calls: list[str] = []
    for number in range(30):
        old_read, old_write = os.pipe()
        each_loop.add_reader(old_read, calls.append, "old")
        await turns(number % 3)
        os.write(old_write, b"x")
        assert each_loop.remove_reader(old_read)
        os.close(old_read)
        os.close(old_write)
        calls.clear()
        new_read, new_write = os.pipe()
        assert (new_read, new_write) == (old_read, old_write)
        each_loop.add_reader(new_read, calls.append, "new")
        await turns(3)
        assert calls == []
        os.write(new_write, b"x")
        await until(lambda: len(calls) > 0)
        assert set(calls) == {"new"}
        assert each_loop.remove_reader(new_read)
        os.close(new_read)
        os.close(new_write)


@on_loop
async def test_removing_lets_a_close_reach_the_peer(each_loop: Loop) -> None:
    left, right = tcp_pair()
    each_loop.add_reader(left, lambda: None)
    each_loop.add_writer(left, lambda: None)
    await turns(3)
    each_loop.remove_reader(left)
    each_loop.remove_writer(left)
    left.close()
    with right:
        assert await each_loop.sock_recv(right, 1) == b""


# ── hang-ups ──────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_the_end_of_a_pipe_wakes_its_reader(each_loop: Loop, pipe: tuple[int, int]) -> None:
    read, write = pipe
    called = asyncio.Event()
    each_loop.add_reader(read, called.set)
    await turns(3)
    assert not called.is_set()
    os.close(write)
    await called.wait()
    assert os.read(read, 1) == b""
    assert each_loop.remove_reader(read)


@on_loop
async def test_closing_the_read_end_wakes_both_watchers_of_a_full_pipe(
    each_loop: Loop, pipe: tuple[int, int]
) -> None:
    read, write = pipe
    fill(lambda data: os.write(write, data))
    calls: set[str] = set()
    each_loop.add_writer(write, calls.add, "writer")
    each_loop.add_reader(write, calls.add, "reader")
    await turns(5)
    assert calls == set()
    os.close(read)
    await until(lambda: calls == {"writer", "reader"})
    with pytest.raises(BrokenPipeError):
        os.write(write, b"x")
    assert each_loop.remove_writer(write)
    assert each_loop.remove_reader(write)


@on_loop
async def test_a_reset_wakes_both_watchers(each_loop: Loop) -> None:
    left, right = narrow_pair(16_384)
    with left:
        fill(left.send)
        calls: set[str] = set()
        each_loop.add_reader(left, calls.add, "reader")
        each_loop.add_writer(left, calls.add, "writer")
        await turns(5)
        assert calls == set()
        reset(right)
        await until(lambda: calls == {"writer", "reader"})
        assert each_loop.remove_writer(left)
        assert each_loop.remove_reader(left)


# ── kinds of descriptors ──────────────────────────────────────────────────────────────────


@on_loop
async def test_an_eventfd_can_be_watched(each_loop: Loop) -> None:
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    values: list[int] = []
    each_loop.add_reader(fd, lambda: values.append(os.eventfd_read(fd)))
    os.eventfd_write(fd, 3)
    await until(lambda: values == [3])
    os.eventfd_write(fd, 4)
    await until(lambda: values == [3, 4])
    assert each_loop.remove_reader(fd)
    os.close(fd)


@on_loop
async def test_an_epoll_descriptor_can_be_watched(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    with select.epoll() as inner:
        inner.register(left, select.EPOLLIN)
        called = asyncio.Event()
        each_loop.add_reader(inner, called.set)
        await turns(3)
        assert not called.is_set()
        right.send(b"x")
        await called.wait()
        assert each_loop.remove_reader(inner)


@on_loop
async def test_a_listening_socket_is_readable_when_a_client_waits(each_loop: Loop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        called = asyncio.Event()
        each_loop.add_reader(listener, called.set)
        with socket.create_connection(listener.getsockname()):
            await called.wait()
        assert each_loop.remove_reader(listener)


@pytest.mark.parametrize("direction", ["add_reader", "add_writer"])
@on_loop
async def test_a_regular_file_cannot_be_watched(each_loop: Loop, direction: str) -> None:
    add: Callable[..., None] = getattr(each_loop, direction)
    with tempfile.TemporaryFile() as file:
        with pytest.raises(PermissionError) as caught:
            add(file, print)
        assert caught.value.errno == errno.EPERM
        assert each_loop.remove_reader(file) is False


# ── misuse ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("direction", ["add_reader", "add_writer"])
@on_loop
async def test_an_invalid_descriptor_is_refused(each_loop: Loop, direction: str) -> None:
    add: Callable[..., None] = getattr(each_loop, direction)
    with pytest.raises(ValueError, match=r"^Invalid file descriptor: -1$"):
        add(-1, print)
    for wrong in ("text", None, 1.5):
        with pytest.raises(ValueError, match=r"^Invalid file object: "):
            add(wrong, print)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        add(19_999, print)
    assert caught.value.errno == errno.EBADF
    sock = socket.socket()
    sock.close()
    with pytest.raises(ValueError, match=r"^Invalid file descriptor: -1$"):
        add(sock, print)


@on_loop
async def test_the_descriptor_of_a_transport_is_refused(each_loop: Loop) -> None:
    ours, peer = tcp_pair()
    with peer:
        transport, _ = await each_loop.create_connection(asyncio.Protocol, sock=ours)
        fd = ours.fileno()
        for call in (
            lambda: each_loop.add_reader(fd, print),
            lambda: each_loop.add_writer(fd, print),
            lambda: each_loop.remove_reader(fd),
            lambda: each_loop.remove_writer(fd),
        ):
            with pytest.raises(RuntimeError) as caught:
                call()
            assert str(caught.value) == f"File descriptor {fd} is used by transport {transport!r}"
        transport.close()
        await released(transport)
        assert each_loop.remove_reader(fd) is False


def test_a_closed_loop_watches_nothing(each_loop: Loop, pair: Pair) -> None:
    left, _ = pair
    each_loop.add_reader(left, print)
    each_loop.close()
    with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
        each_loop.add_reader(left, print)
    with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
        each_loop.add_writer(left, print)
    assert each_loop.remove_reader(left) is False
    assert each_loop.remove_writer(left) is False


def test_watchers_survive_between_two_runs_of_the_loop(each_loop: Loop, pair: Pair) -> None:
    left, right = pair
    seen: list[bytes] = []
    each_loop.add_reader(left, lambda: seen.append(left.recv(10)))
    run_turns(each_loop, 3)
    right.send(b"between")
    each_loop.run_until_complete(until(lambda: len(seen) == 1))
    assert seen == [b"between"]
    assert each_loop.remove_reader(left)
