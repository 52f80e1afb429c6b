"""Other owners of a file clear its O_NONBLOCK, or are faster: neither the loop nor a thread waits.

The flag belongs to the open file, which children and other processes share: a pipe that a shell has
made blocking again, a terminal, a listening socket. Where asyncio's own loop would wait, the tests
are of uringloop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from support.pipes import (
    CAPACITY,
    KINDS,
    PLENTY,
    Ends,
    a_fifo,
    a_pipe,
    drain,
    peek,
    reading,
    terminal,
    writing,
)
from support.protocols import Collector
from support.roles import (
    PATIENCE,
    Guests,
    close_server,
    connected,
    nothing_comes,
    on_loop,
    turns,
    until,
)

import uringloop

LOCALHOST = "127.0.0.1"
# Seconds for which a close with SO_LINGER waits for a peer that does not read.
LINGER = 8


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """Interrupt a system call in which the loop stands still, with TimeoutError."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the loop stood still")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 2 * PATIENCE)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


# ── pipes ─────────────────────────────────────────────────────────────────────────────────


def a_terminal() -> Ends:
    master, slave = terminal()
    return slave, master


EVERY_KIND = pytest.mark.parametrize("make", [*KINDS.args[1], a_terminal])


@EVERY_KIND
@on_loop
async def test_another_reader_that_is_faster_does_not_stop_the_loop(
    loop: uringloop.Loop, make: Callable[[], Ends]
) -> None:
    source, sink = make()
    twin = os.dup(source.fileno())

    def steal() -> None:
        # The poll has completed, and its completion is dispatched after this callback.
        assert os.read(twin, 1) == b"x"
        os.set_blocking(twin, True)

    async with reading(loop, source) as reader:
        await turns(3)
        loop.call_soon(os.write, sink.fileno(), b"x")
        loop.call_soon(loop.call_soon, steal)
        await turns(5)
        await nothing_comes(loop)
        assert reader.data == b""
        os.write(sink.fileno(), b"late")
        assert await reader.received(4) == b"late"
    os.close(twin)
    sink.close()


@EVERY_KIND
@on_loop
async def test_a_reader_of_a_blocking_file_gets_every_byte(
    loop: uringloop.Loop, make: Callable[[], Ends]
) -> None:
    source, sink = make()
    async with reading(loop, source) as reader:
        os.set_blocking(source.fileno(), True)
        for number in range(20):
            os.write(sink.fileno(), b"%02d" % number)
            assert len(await reader.received(2 * number + 2)) == 2 * number + 2
        assert reader.data == b"".join(b"%02d" % number for number in range(20))
    sink.close()


@pytest.mark.parametrize("lines", [False, True], ids=["write", "writelines"])
@EVERY_KIND
@on_loop
async def test_a_writer_to_a_blocking_file_does_not_wait_for_room(
    loop: uringloop.Loop, make: Callable[[], Ends], lines: bool
) -> None:
    source, sink = make()
    data = os.urandom(PLENTY // 8)
    async with writing(loop, sink) as writer:
        await turns(3)
        os.set_blocking(sink.fileno(), True)
        if lines:
            writer.pipe.writelines([data[:10], data[10:CAPACITY], data[CAPACITY:]])
        else:
            writer.pipe.write(data)
        await nothing_comes(loop)
        # Nobody has read so far.
        assert writer.pipe.get_write_buffer_size() > 0
        got = bytearray()
        while len(got) < len(data):
            got += peek(source) or b""
            await turns()
        assert bytes(got) == data
    source.close()


@pytest.mark.parametrize("make", [a_pipe, a_fifo])
@on_loop
async def test_another_writer_that_takes_the_room_does_not_stop_the_loop(
    loop: uringloop.Loop, make: Callable[[], Ends]
) -> None:
    source, sink = make()
    twin = os.dup(sink.fileno())

    def fill() -> None:
        # The poll for room has completed, and its completion is dispatched after this callback.
        os.set_blocking(twin, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(twin, b"y" * 4096)
        os.set_blocking(twin, True)

    async with writing(loop, sink) as writer:
        await turns(3)
        writer.pipe.write(b"x" * 2 * CAPACITY)
        assert writer.pipe.get_write_buffer_size() > 0
        await turns(3)
        loop.call_soon(os.read, source.fileno(), CAPACITY)
        loop.call_soon(loop.call_soon, fill)
        await turns(5)
        await nothing_comes(loop)
        left = writer.pipe.get_write_buffer_size()
        assert left > 0
        os.close(twin)
        writer.pipe.close()
        rest = await drain(source)
        assert rest.count(b"x") == left
    source.close()


# ── listening sockets ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@on_loop
async def test_another_process_that_accepts_first_does_not_stop_the_loop(
    loop: uringloop.Loop, shared: bool
) -> None:
    guests = Guests(loop)
    sock = socket.create_server((LOCALHOST, 0)) if shared else None
    if sock is None:
        server = await loop.create_server(guests, LOCALHOST, 0)
    else:
        server = await loop.create_server(guests, sock=sock)
    address = server.sockets[0].getsockname()
    twin = socket.socket(fileno=os.dup(server.sockets[0].fileno()))
    clients: list[socket.socket] = []
    stolen: list[socket.socket] = []

    def steal() -> None:
        # The poll has completed, and its completion is dispatched after this callback.
        with contextlib.suppress(BlockingIOError):
            stolen.append(twin.accept()[0])
        os.set_blocking(twin.fileno(), True)

    twin.setblocking(False)
    await turns(3)
    loop.call_soon(lambda: clients.append(connected(address)))
    loop.call_soon(loop.call_soon, steal)
    await turns(5)
    await nothing_comes(loop)
    # The socket blocks from now on, and the server goes on.
    clients += [connected(address) for _ in range(5)]
    await guests.arrived(6 - len(stolen))
    await guests.end()
    for each in (*clients, *stolen, twin):
        each.close()
    await close_server(server)


# ── closing ───────────────────────────────────────────────────────────────────────────────


class Full(Collector):
    """Write more than the peer takes."""

    full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(b"x" * PLENTY)

    def pause_writing(self) -> None:
        self.full = True


@on_loop
async def test_other_threads_run_while_the_close_of_a_connection_lingers(
    loop: uringloop.Loop,
) -> None:
    made: list[Full] = []
    lost = threading.Event()

    class Aborted(Full):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    def factory() -> Full:
        made.append(Aborted(loop))
        return made[-1]

    with socket.socket() as sock, socket.socket() as peer:
        # Connections inherit it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER))
        sock.bind((LOCALHOST, 0))
        server = await loop.create_server(factory, sock=sock)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        peer.connect(sock.getsockname())

        def hang_up() -> None:
            assert lost.wait(PATIENCE)
            peer.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        await until(lambda: bool(made))
        await made[0].made
        await until(lambda: made[0].full)
        began = time.monotonic()
        made[0].transport.abort()
        await made[0].lost
        await close_server(server)
        # The close has ended because the thread has run.
        assert time.monotonic() - began < LINGER - 1
        thread.join()
