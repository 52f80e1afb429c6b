"""The end of a UNIX peer's stream: it comes behind every byte, and always comes.

A multishot receive of io_uring may miss it, so that a poll watches for it
(docs/decisions/0021-unix-sockets.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from support.loops import on_io_uring
from support.protocols import Collector
from support.roles import PATIENCE, in_thread, nothing_comes, on_loop, run_script, until

import uringloop
from uringloop._ring import features

Loop = asyncio.AbstractEventLoop
End = Callable[[socket.socket], None]

ENDS: dict[str, End] = {
    "close": socket.socket.close,
    "shut_wr": lambda peer: peer.shutdown(socket.SHUT_WR),
    "shut_rdwr": lambda peer: peer.shutdown(socket.SHUT_RDWR),
}
# 64 KiB is a receive buffer; the last size is as much as a socket holds.
SIZES = [0, 1, 100, 4096, 64 * 1024, 200_000]
ROUNDS = 20
# More than the receive buffers of a new loop.
MANY = 100


class HalfOpen(Collector):
    """Keep the connection open after the peer's EOF."""

    def eof_received(self) -> bool:
        super().eof_received()
        return True


async def opened(
    loop: Loop, protocol: Callable[[Loop], Collector] = Collector
) -> tuple[asyncio.Transport, Collector, socket.socket]:
    """Return a transport of one end of a pair of sockets, its protocol, and the other end."""
    ours, peer = socket.socketpair()
    transport, made = await loop.create_connection(lambda: protocol(loop), sock=ours)
    return transport, made, peer


async def exchange_some(peer: socket.socket, protocol: Collector) -> None:
    """Send more messages than a connection receives by polls at its beginning."""
    for count in range(1, 10):
        peer.send(b"x")
        await protocol.received(count)


@contextlib.contextmanager
def ending_in_thread(end: End) -> Iterator[Callable[[socket.socket, bytes], None]]:
    """Yield a function that lets a thread send bytes and end the stream at once."""
    asked: queue.SimpleQueue[tuple[socket.socket, bytes] | None] = queue.SimpleQueue()

    def serve() -> None:
        while (request := asked.get()) is not None:
            peer, data = request
            peer.sendall(data)
            end(peer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield lambda peer, data: asked.put((peer, data))
    finally:
        asked.put(None)
        thread.join()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ENDS)
@on_loop
async def test_every_end_comes_behind_every_byte(each_loop: Loop, name: str, size: int) -> None:
    with ending_in_thread(ENDS[name]) as send_and_end:
        for _ in range(ROUNDS):
            data = os.urandom(size)
            _, protocol, peer = await opened(each_loop)
            with peer:
                send_and_end(peer, data)
                assert await asyncio.wait_for(protocol.lost, PATIENCE) is None
            assert protocol.data == data
            assert protocol.eof.done()


@pytest.mark.parametrize("name", ENDS)
@on_loop
async def test_an_end_comes_while_receives_wait_for_buffers(each_loop: Loop, name: str) -> None:
    connections = [await opened(each_loop) for _ in range(MANY)]
    await asyncio.sleep(0)
    for _, _, peer in connections:
        # In one turn, so that the receives of most connections find no buffer.
        peer.send(b"last words")
        ENDS[name](peer)
    for _, protocol, peer in connections:
        assert await asyncio.wait_for(protocol.lost, PATIENCE) is None
        assert protocol.data == b"last words"
        peer.close()


@on_loop
async def test_a_peer_that_has_ended_its_stream_gets_what_is_written_later(
    each_loop: Loop,
) -> None:
    transport, protocol, peer = await opened(each_loop, HalfOpen)
    with peer:
        peer.setblocking(False)
        peer.send(b"last words")
        peer.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(protocol.eof, PATIENCE)
        assert protocol.data == b"last words"
        data = os.urandom(1 << 20)
        transport.write(data)
        transport.write_eof()
        received = bytearray()
        while chunk := await each_loop.sock_recv(peer, 1 << 16):
            received += chunk
        assert received == data
        transport.close()
        assert await protocol.lost is None


@pytest.mark.parametrize("name", ENDS)
@on_loop
async def test_an_end_comes_after_a_pause(each_loop: Loop, name: str) -> None:
    transport, protocol, peer = await opened(each_loop)
    with peer:
        transport.pause_reading()
        peer.send(b"last ")
        await nothing_comes(each_loop)
        peer.send(b"words")
        ENDS[name](peer)
        await nothing_comes(each_loop)
        assert protocol.data == b""
        transport.resume_reading()
        assert await asyncio.wait_for(protocol.lost, PATIENCE) is None
        assert protocol.data == b"last words"


@pytest.mark.parametrize("name", ENDS)
@on_loop
async def test_an_end_comes_behind_large_messages(each_loop: Loop, name: str) -> None:
    # Large messages are received by a poll and recv(2), small ones by the ring again.
    with ending_in_thread(ENDS[name]) as send_and_end:
        for small in (0, 200):
            _, protocol, peer = await opened(each_loop)
            with peer:
                expected = bytearray()
                for size in 20 * [20_000] + small * [10]:
                    expected += os.urandom(size)
                    await asyncio.to_thread(peer.sendall, expected[-size:])
                    await protocol.received(len(expected))
                send_and_end(peer, b"last words")
                assert await asyncio.wait_for(protocol.lost, PATIENCE) is None
                assert protocol.data == expected + b"last words"


@pytest.mark.parametrize("name", ENDS)
def test_an_end_between_two_runs_comes_in_another_thread(each_loop: Loop, name: str) -> None:
    async def connect() -> tuple[Collector, socket.socket]:
        _, protocol, peer = await opened(each_loop)
        peer.send(b"first")
        await protocol.received(5)
        return protocol, peer

    async def wait(protocol: Collector) -> None:
        assert await asyncio.wait_for(protocol.lost, PATIENCE) is None

    protocol, peer = each_loop.run_until_complete(connect())
    in_thread(lambda: each_loop.run_until_complete(asyncio.sleep(0)))
    with peer:
        peer.send(b" and last")
        ENDS[name](peer)
        in_thread(lambda: each_loop.run_until_complete(wait(protocol)))
    assert protocol.data == b"first and last"


@on_io_uring
@on_loop
async def test_the_poll_for_the_end_goes_with_the_multishot_receive(loop: uringloop.Loop) -> None:
    def in_flight() -> int:
        return loop._operations_in_flight - before

    before = loop._operations_in_flight
    transport, protocol, peer = await opened(loop, HalfOpen)
    await until(lambda: in_flight() == 1)
    await exchange_some(peer, protocol)
    await until(lambda: in_flight() == 2)
    peer.shutdown(socket.SHUT_WR)
    await protocol.eof
    # The transport stays open, and nothing more can come.
    await until(lambda: in_flight() == 0)
    transport.close()
    await protocol.lost
    peer.close()

    transport, protocol, peer = await opened(loop)
    await exchange_some(peer, protocol)
    await until(lambda: in_flight() == 2)
    transport.pause_reading()
    await until(lambda: in_flight() == 1)
    transport.resume_reading()
    await until(lambda: in_flight() == 2)
    transport.abort()
    await protocol.lost
    await until(lambda: in_flight() == 0)
    peer.close()


@on_io_uring
@on_loop
async def test_without_the_feature_no_poll_is_armed(loop: uringloop.Loop) -> None:
    features.disable(frozenset({"unix_multishot"}))
    try:
        before = loop._operations_in_flight
        _, protocol, peer = await opened(loop)
        with peer:
            await exchange_some(peer, protocol)
            await until(lambda: loop._operations_in_flight == before + 1)
            for _ in range(3):
                await asyncio.sleep(0)
            assert loop._operations_in_flight == before + 1
            ENDS["close"](peer)
            assert await protocol.lost is None
    finally:
        features.disable(frozenset())


@pytest.mark.parametrize("method", ["close", "abort"])
def test_a_forked_child_leaves_the_poll_to_its_parent(method: str) -> None:
    script = f"""
        import asyncio, contextlib, os, socket, uringloop

        class Protocol(asyncio.Protocol):
            def __init__(self): self.lost = asyncio.get_running_loop().create_future()
            def connection_lost(self, exc): self.lost.set_result(exc)

        async def main():
            loop = asyncio.get_running_loop()
            ours, peer = socket.socketpair()
            transport, protocol = await loop.create_connection(Protocol, sock=ours)
            await asyncio.sleep(0.01)
            pid = os.fork()
            if not pid:
                peer.close()
                with contextlib.suppress(RuntimeError):
                    transport.{method}()
                os._exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            peer.close()
            print(await asyncio.wait_for(protocol.lost, {PATIENCE}))

        uringloop.run(main())
    """
    done = run_script(script)
    assert (done.stdout.split(), done.returncode) == (["7", "None"], 0), done.stderr
