"""Short sends, resets while many connections write, and runs that an exception ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading

import pytest
from support.protocols import Collector
from support.roles import on_loop, released
from support.sockets import tcp_pair

import uringloop

Loop = asyncio.AbstractEventLoop

# More than the narrow sockets hold, so that sends are short; less than the high-water mark, so that
# they wait for the flush.
PIECE = b"0123456789" * 6000


def narrow_pair(kind: str) -> tuple[socket.socket, socket.socket]:
    left, right = tcp_pair() if kind == "tcp" else socket.socketpair()
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    left.setblocking(False)
    right.setblocking(False)
    return left, right


async def read_all(loop: Loop, sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        data += await loop.sock_recv(sock, 65536)
    return bytes(data)


async def connect_all(
    loop: Loop, pairs: list[tuple[socket.socket, socket.socket]]
) -> tuple[list[asyncio.Transport], list[Collector]]:
    """Give the first socket of each pair a transport; the second becomes a non-blocking peer."""
    transports, collectors = [], []
    for ours, peer in pairs:
        peer.setblocking(False)
        made, collector = await loop.connect_accepted_socket(lambda: Collector(loop), ours)
        transports.append(made)
        collectors.append(collector)
    return transports, collectors


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize("connections", [1, 3])
@on_loop
async def test_a_short_send_is_completed_on_an_idle_loop(
    each_loop: Loop, kind: str, connections: int
) -> None:
    pairs = [narrow_pair(kind) for _ in range(connections)]
    transports = []
    for ours, _ in pairs:
        made, _ = await each_loop.connect_accepted_socket(lambda: Collector(each_loop), ours)
        transports.append(made)
    for transport in transports:
        transport.write(PIECE)

    def drain(sock: socket.socket, received: list[bytes]) -> None:
        # Runs in a thread, so that only the completion of its own send wakes the loop.
        sock.setblocking(True)
        while sum(map(len, received)) < len(PIECE):
            received.append(sock.recv(65536))
        each_loop.call_soon_threadsafe(done.release)

    done = asyncio.Semaphore(0)
    received: list[list[bytes]] = [[] for _ in pairs]
    threads = [
        threading.Thread(target=drain, args=(peer, chunks))
        for (_, peer), chunks in zip(pairs, received, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        await done.acquire()
        del thread
    for thread in threads:
        thread.join()
    assert [b"".join(chunks) for chunks in received] == [PIECE] * connections
    for transport, (_, peer) in zip(transports, pairs, strict=True):
        transport.close()
        peer.close()
        await released(transport)


@pytest.mark.parametrize("narrow", [True, False])
@on_loop
async def test_many_writers_in_one_turn_lose_and_repeat_no_byte(
    each_loop: Loop, narrow: bool
) -> None:
    # Each turn submits all sends together: some are complete, some are short, some send nothing.
    pairs = [narrow_pair("tcp") if narrow or not n % 3 else tcp_pair() for n in range(12)]
    expected = [bytes([65 + n]) * 9000 + b"%d|" % n for n in range(12)]
    transports, _ = await connect_all(each_loop, pairs)
    reading = [
        asyncio.ensure_future(read_all(each_loop, peer, 20 * len(text)))
        for (_, peer), text in zip(pairs, expected, strict=True)
    ]
    for _ in range(20):
        for transport, text in zip(transports, expected, strict=True):
            transport.write(text[:5000])
            transport.writelines([text[5000:7000], text[7000:]])
        await asyncio.sleep(0)
    assert await asyncio.gather(*reading) == [20 * text for text in expected]
    assert [transport.get_write_buffer_size() for transport in transports] == [0] * 12
    for transport, (_, peer) in zip(transports, pairs, strict=True):
        transport.close()
        peer.close()


@pytest.mark.parametrize("end", ["close", "abort", "write_eof"])
@on_loop
async def test_connections_may_close_in_the_turn_of_their_writes(each_loop: Loop, end: str) -> None:
    pairs = [tcp_pair() for _ in range(8)]
    transports, collectors = await connect_all(each_loop, pairs)
    for transport in transports:
        transport.write(b"first")
    await asyncio.sleep(0)
    for transport in transports:
        transport.write(b"second")
    for transport in transports:
        getattr(transport, end)()
    for _, peer in pairs:
        data = await each_loop.sock_recv(peer, 100)
        while more := await each_loop.sock_recv(peer, 100):
            data += more
        assert data == b"firstsecond" or (end == "abort" and b"firstsecond".startswith(data))
        peer.close()
    for collector in collectors:
        assert await collector.lost is None


@on_loop
async def test_a_reset_while_many_write_affects_no_other_connection(each_loop: Loop) -> None:
    pairs = [tcp_pair() for _ in range(6)]
    transports, collectors = await connect_all(each_loop, pairs)
    for _, peer in pairs[::2]:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
    for transport in transports:
        transport.write(b"x" * 1000)
    for _, peer in pairs[1::2]:
        assert await read_all(each_loop, peer, 1000) == b"x" * 1000
    for collector in collectors[::2]:
        assert isinstance(await collector.lost, OSError)
    assert [collector.lost.done() for collector in collectors[1::2]] == [False] * 3
    for transport, (_, peer) in list(zip(transports, pairs, strict=True))[1::2]:
        transport.close()
        peer.close()


@on_loop
async def test_a_reset_before_a_queued_eof_is_sent_closes_the_connection(
    each_loop: Loop,
) -> None:
    ours, peer = narrow_pair("tcp")
    transport, collector = await each_loop.connect_accepted_socket(
        lambda: Collector(each_loop), ours
    )
    transport.write(PIECE * 20)
    transport.write_eof()
    await asyncio.sleep(0)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    assert isinstance(await collector.lost, OSError)


@on_loop
async def test_a_reader_is_called_only_when_there_is_something_to_read(each_loop: Loop) -> None:
    pairs = [socket.socketpair() for _ in range(20)]
    empty: list[int] = []
    messages = 0
    finished = each_loop.create_future()

    def on_readable(sock: socket.socket) -> None:
        nonlocal messages
        try:
            messages += len(sock.recv(1))
        except BlockingIOError:
            empty.append(sock.fileno())
        if messages == 200:
            finished.set_result(None)

    for left, right in pairs:
        left.setblocking(False)
        each_loop.add_reader(left, on_readable, left)
        right.send(b"0123456789")
    await finished
    assert empty == []
    for left, right in pairs:
        each_loop.remove_reader(left)
        left.close()
        right.close()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_connection_goes_on_after_an_interrupt_in_its_protocol(
    each_loop: Loop, kind: str, interrupt: type[BaseException]
) -> None:
    class Leaving(Collector):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if bytes(self.data) == b"first":
                raise interrupt

    ours, peer = narrow_pair(kind)
    transport, protocol = each_loop.run_until_complete(
        each_loop.connect_accepted_socket(lambda: Leaving(each_loop), ours)
    )
    peer.send(b"first")
    with pytest.raises(interrupt):
        each_loop.run_forever()
    peer.send(b"second")
    assert each_loop.run_until_complete(protocol.received(11)) == b"firstsecond"
    transport.close()
    each_loop.run_until_complete(protocol.lost)
    peer.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_send_in_flight_is_not_repeated_in_the_next_thread(
    loop: uringloop.Loop, kind: str
) -> None:
    # Each change of thread ends the send that waits for room: sent bytes must not be sent again.
    ours, peer = narrow_pair(kind)
    transport, protocol = loop.run_until_complete(
        loop.connect_accepted_socket(lambda: Collector(loop), ours)
    )
    expected = b"".join(b"%07d\n" % number for number in range(50_000))
    transport.write(expected)
    received = bytearray()
    while len(received) < len(expected):
        thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.sleep(0)))
        thread.start()
        thread.join()
        with contextlib.suppress(BlockingIOError):
            received += peer.recv(20_000)
    assert received == expected
    transport.close()
    loop.run_until_complete(protocol.lost)
    peer.close()
