"""A child forked in a callback takes nothing from the parent's sockets, and sends nothing on them.

The parent waits, in the same callback, until the child has ended: whatever the child does with the
sockets that they share comes before the parent's next step.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.forks import RUN
from support.roles import run_script

PRELUDE = (
    """
    import asyncio
    import os
    import select
    import socket
    import uringloop

    child = None

    def fork():
        global child
        if child is not None:
            return
        child = os.fork()
        if child:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status == 3, status

    def streams(count):
        pairs = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            for _ in range(count):
                theirs = socket.create_connection(server.getsockname())
                pairs.append((server.accept()[0], theirs))
        for ours, theirs in pairs:
            ours.setblocking(False)
            theirs.setblocking(False)
        return pairs

    async def turns():
        for _ in range(5):
            await asyncio.sleep(0)

    def waiting(sock):
        try:
            return sock.recv(1_000_000, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
"""
    + RUN
)

DATAGRAMS = """
    received = []

    class Protocol(asyncio.DatagramProtocol):
        def datagram_received(self, data, address):
            received.append(data)
            fork()

    async def main():
        ours, theirs = socket.socketpair(type=socket.SOCK_DGRAM)
        for index in range(5):
            theirs.send(b"%d" % index)
        await asyncio.get_running_loop().create_datagram_endpoint(Protocol, sock=ours)
        async with asyncio.timeout(10):
            while len(received) < 5:
                await asyncio.sleep(0.001)
        assert received == [b"0", b"1", b"2", b"3", b"4"]

    run(main)
"""

# The messages are large, so the socket is polled, and recv(2) is called until it is empty.
LARGE_MESSAGES = """
    TOTAL = 4_000_000
    received = bytearray()

    class Plain(asyncio.Protocol):
        def data_received(self, data):
            received.extend(data)
            if len(received) > TOTAL // 2:
                fork()

    class Buffered(asyncio.BufferedProtocol):
        memory = bytearray(100_000)
        def get_buffer(self, size):
            return self.memory
        def buffer_updated(self, size):
            received.extend(self.memory[:size])
            if len(received) > TOTAL // 2:
                fork()

    async def main():
        loop = asyncio.get_running_loop()
        [(ours, theirs)] = streams(1)
        data = os.urandom(TOTAL)
        await loop.create_connection(globals()[KIND], sock=ours)
        sending = asyncio.ensure_future(loop.sock_sendall(theirs, data))
        async with asyncio.timeout(10):
            while len(received) < TOTAL:
                await asyncio.sleep(0.001)
        await sending
        assert received == data

    run(main)
"""

CONNECTIONS = """
    class Greeter(asyncio.Protocol):
        def __init__(self):
            fork()
        def connection_made(self, transport):
            transport.write(b"hello")

    async def main():
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            clients = [socket.create_connection(listening.getsockname()) for _ in range(5)]
            async with await loop.create_server(Greeter, sock=listening.dup()):
                for client in clients:
                    client.setblocking(False)
                    async with asyncio.timeout(10):
                        assert await loop.sock_recv(client, 100) == b"hello"
                    client.close()

    run(main)
"""

# What one callback has written is sent at the end of the turn, in which a later callback forks.
WRITTEN_BEFORE = """
    transports = []
    calls = 0

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport):
            transports.append(transport)
        def data_received(self, data):
            global calls
            calls += 1
            if calls == 1:
                transports[0].write(b"answer")
            else:
                fork()

    async def main():
        loop = asyncio.get_running_loop()
        first, second = streams(2)
        for ours in first[0], second[0]:
            await loop.create_connection(Protocol, sock=ours)
        if KIND == "completion":
            first[1].send(b"x")
            second[1].send(b"x")
        elif KIND == "timer":
            loop.call_later(0, transports[0].write, b"answer")
            loop.call_later(0, fork)
        else:
            loop.call_soon(transports[0].write, b"answer")
            loop.call_soon(fork)
        await turns()
        assert child, "no callback has forked"
        assert waiting(first[1]) == b"answer"

    run(main)
"""

# Two datagrams are queued. The first fails, and error_received() forks before the second is sent.
QUEUED_DATAGRAMS = """
    class Protocol(asyncio.DatagramProtocol):
        def error_received(self, exc):
            fork()

    def receiver(name):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.bind(name)
        return sock

    async def main():
        loop = asyncio.get_running_loop()
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        full, free = receiver("\\0full-%d" % os.getpid()), receiver("\\0free-%d" % os.getpid())
        to_full, to_free = full.getsockname(), free.getsockname()
        transport, _ = await loop.create_datagram_endpoint(Protocol, sock=sender)
        while not transport.get_write_buffer_size():
            transport.sendto(b"x", to_full)
        transport.sendto(b"once", to_free)
        full.close()
        async with asyncio.timeout(10):
            while transport.get_write_buffer_size():
                await asyncio.sleep(0.001)
        assert child, "no error was received"
        assert waiting(free) == b"once"
        assert waiting(free) == b""

    run(main)
"""

# Two transports deliver in one turn what they have stashed; the protocol of the first one forks.
STASHES = """
    received = []
    forking = False

    class Stream(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport
        def data_received(self, data):
            received.append(data)
            if forking:
                self.transport.pause_reading()
                fork()
                if child == 0 and len(received) > 13:
                    os._exit(4)
                loop.call_soon(self.transport.resume_reading)

    class Datagrams(Stream, asyncio.DatagramProtocol):
        def datagram_received(self, data, address):
            self.data_received(data)

    async def main():
        global forking, loop
        loop = asyncio.get_running_loop()
        if KIND == "Stream":
            pairs = streams(2)
            connect = loop.create_connection
        else:
            pairs = []
            connect = loop.create_datagram_endpoint
            for _ in range(2):
                pair = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(2)]
                pair[0].bind(("127.0.0.1", 0))
                pair[1].connect(pair[0].getsockname())
                pairs.append(pair)
        transports = [(await connect(globals()[KIND], sock=ours))[0] for ours, _ in pairs]
        # After four messages the ring receives.
        for count in range(6):
            for _, theirs in pairs:
                theirs.send(b"x")
            async with asyncio.timeout(10):
                while len(received) < 2 * (count + 1):
                    await asyncio.sleep(0)
        for _, theirs in pairs:
            theirs.send(b"one")
            theirs.send(b"two")
        await asyncio.sleep(0)
        # The ring has received before this turn began.
        for transport in transports:
            transport.pause_reading()
        await turns()
        assert len(received) == 12
        forking = True
        for transport in transports:
            transport.resume_reading()
        async with asyncio.timeout(10):
            while len(b"".join(received)) < 12 + 2 * len(b"onetwo"):
                await asyncio.sleep(0)
        assert child

    run(main)
"""

CALLS = {
    "write": "transport.write(bytes(100_000))",
    "writelines": "transport.writelines([bytes(100_000)])",
    "write_eof": "transport.write_eof()",
    "abort": "transport.write(b'x'), transport.abort()",
    "close": "transport.write(b'x'), transport.close()",
    "sendto": "endpoint.sendto(b'x')",
    "pipe": "pipe.write(b'x')",
    "sock_recv": "loop.sock_recv(theirs, 1).send(None)",
    "sock_recv_into": "loop.sock_recv_into(theirs, bytearray(1)).send(None)",
    "sock_recvfrom": "loop.sock_recvfrom(theirs, 1).send(None)",
    "sock_sendall": "loop.sock_sendall(theirs, b'x').send(None)",
    "sock_sendto": "loop.sock_sendto(datagrams, b'x', datagrams.getsockname()).send(None)",
    "sock_accept": "loop.sock_accept(listening).send(None)",
}

CHILD_CALLS = """
    async def main():
        loop = asyncio.get_running_loop()
        [(ours, theirs)] = streams(1)
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        mine, yours = socket.socketpair(type=socket.SOCK_DGRAM)
        yours.setblocking(False)
        endpoint, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, sock=mine)
        datagrams = socket.socket(type=socket.SOCK_DGRAM)
        datagrams.bind(("127.0.0.1", 0))
        datagrams.setblocking(False)
        reader, writer = os.pipe()
        pipe, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(writer, "wb"))
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        client = socket.create_connection(listening.getsockname())
        transport.write(b"bytes for sock_recv()")
        await turns()

        def in_child():
            fork()
            if child == 0:
                try:
                    CALL
                except RuntimeError as exc:
                    if "inherited through a fork" in str(exc):
                        os._exit(3)
                    raise
                os._exit(4)

        loop.call_soon(in_child)
        await turns()
        assert child, "no callback has forked"
        assert waiting(theirs) == b"bytes for sock_recv()"
        assert waiting(yours) == waiting(datagrams) == b""
        assert not select.select([reader], [], [], 0)[0]
        connection, _ = listening.accept()
        transport.write(b"still open")
        await turns()
        assert waiting(theirs) == b"still open"
        for sock in theirs, yours, datagrams, listening, client, connection:
            sock.close()
        os.close(reader)

    run(main)
"""


# The child calls loop.close() in the callback: as in asyncio, a loop that runs cannot be closed.
CLOSES = """
    class Plain(asyncio.Protocol):
        def data_received(self, data):
            fork_and_close()

    class Buffered(asyncio.BufferedProtocol):
        memory = bytearray(100)
        def get_buffer(self, size):
            if KIND == "get_buffer":
                fork_and_close()
            return self.memory
        def buffer_updated(self, size):
            fork_and_close()

    def fork_and_close():
        fork()
        if child == 0:
            try:
                loop.close()
            except RuntimeError as exc:
                assert str(exc) == "Cannot close a running event loop"
            else:
                os._exit(4)

    async def main():
        global loop
        loop = asyncio.get_running_loop()
        [(ours, theirs)] = streams(1)
        if KIND == "reader":
            def read():
                ours.recv(100)
                fork_and_close()
            loop.add_reader(ours, read)
        elif KIND == "writer":
            def write():
                loop.remove_writer(ours)
                fork_and_close()
            loop.add_writer(ours, write)
        elif KIND == "Plain":
            await loop.create_connection(Plain, sock=ours)
        else:
            await loop.create_connection(Buffered, sock=ours)
        theirs.send(b"x")
        async with asyncio.timeout(10):
            while not child:
                await asyncio.sleep(0.001)

    run(main)
"""

# A handler of the signal module forks when the loop has slept, and a callback is ready: the child
# does not run it.
SIGNAL_HANDLER = """
    import signal
    import threading
    import time

    async def main():
        global child
        loop = asyncio.get_running_loop()
        [(ours, theirs)] = streams(1)

        def from_thread():
            time.sleep(0.02)
            loop.call_soon_threadsafe(ours.send, b"once;")
            os.kill(os.getpid(), signal.SIGUSR1)

        for _ in range(5):
            child = None
            thread = threading.Thread(target=from_thread)
            thread.start()
            await asyncio.sleep(0.1)
            thread.join()
            assert child, "the handler has not forked"
            assert waiting(theirs) == b"once;"

    signal.signal(signal.SIGUSR1, lambda signum, frame: fork())
    run(main)
"""

# The child closes the suspended calls: the position of an open file is shared with the parent.
POSITIONS = """
    import gc
    import sys

    SIZE = 32 * 1024 * 1024
    kept = []

    async def main():
        loop = asyncio.get_running_loop()
        data = os.urandom(SIZE)
        with open(PATH, "wb") as file:
            file.write(data)
        [(ours, theirs)] = streams(1)
        received = bytearray()
        if KIND == "sendfile":
            file = open(PATH, "rb")
            call = asyncio.ensure_future(loop.sock_sendfile(ours, file))
        else:
            file = await uringloop.open(PATH, "rb", buffering=0)
            call = asyncio.ensure_future(file.read(SIZE if KIND == "read" else -1))
        kept.append(file)

        def busy():
            # Other work, for which a large read makes room.
            if not call.done():
                loop.call_soon(busy)

        def in_callback():
            position = os.lseek(file.fileno(), 0, os.SEEK_CUR)
            fork()
            moved.append(os.lseek(file.fileno(), 0, os.SEEK_CUR) - position)

        moved = []
        loop.call_soon(busy)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not call.done()
        loop.call_soon(in_callback)
        while KIND == "sendfile" and len(received) < SIZE:
            received += await loop.sock_recv(theirs, 1_000_000)
        result = await call
        assert moved == [0]
        assert (received or result) == data

    try:
        uringloop.run(main())
    except RuntimeError as exc:
        if child != 0:
            raise
        del exc
        gc.collect()
        sys.exit(3)
"""

# The child's signals are its own, and those of the parent are not taken by the child.
SIGNALS = """
    import signal

    async def main():
        loop = asyncio.get_running_loop()
        got = []
        loop.add_signal_handler(signal.SIGUSR1, got.append, "usr1")

        def in_child():
            fork()
            if child == 0:
                os.kill(os.getpid(), signal.SIGUSR1)
                try:
                    loop.add_signal_handler(signal.SIGUSR2, got.append, "usr2")
                except RuntimeError:
                    os._exit(3)
                os._exit(4)

        loop.call_soon(in_child)
        await turns()
        await asyncio.sleep(0.01)
        assert child and got == [], got
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0.01)
        assert got == ["usr1"], got

    run(main)
"""


def check(script: str) -> None:
    ended = run_script(PRELUDE + script)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_child_takes_no_datagram_of_the_parent() -> None:
    check(DATAGRAMS)


@pytest.mark.parametrize("kind", ["Plain", "Buffered"])
def test_the_child_takes_no_bytes_of_a_large_message(kind: str) -> None:
    check(f"\n    KIND = {kind!r}\n{LARGE_MESSAGES}")


def test_the_child_takes_no_connection_of_the_parent() -> None:
    check(CONNECTIONS)


@pytest.mark.parametrize("kind", ["completion", "timer", "callback"])
def test_the_child_does_not_send_what_the_parent_has_written(kind: str) -> None:
    check(f"\n    KIND = {kind!r}\n{WRITTEN_BEFORE}")


@pytest.mark.parametrize("kind", ["Stream", "Datagrams"])
def test_the_child_is_given_nothing_that_another_transport_has_stashed(kind: str) -> None:
    check(f"\n    KIND = {kind!r}\n{STASHES}")


def test_the_child_sends_no_queued_datagram_of_the_parent() -> None:
    check(QUEUED_DATAGRAMS)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_in_the_child_raises_and_leaves_the_socket_alone(call: str) -> None:
    check(CHILD_CALLS.replace("CALL", CALLS[call]))


@pytest.mark.parametrize("kind", ["Plain", "Buffered", "get_buffer", "reader", "writer"])
def test_the_child_cannot_close_the_loop_in_the_callback(kind: str) -> None:
    check(f"\n    KIND = {kind!r}\n{CLOSES}")


def test_the_child_of_a_signal_handler_runs_no_callback() -> None:
    # Python may print two messages: from 3.12 on os.fork() warns while a second thread is running,
    # and from 3.14 on asyncio reports a fork during a step of a task.
    ended = run_script(PRELUDE + SIGNAL_HANDLER)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("kind", ["read", "read all", "sendfile"])
def test_the_end_of_the_child_does_not_move_the_position_of_a_file(
    kind: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "file")
    ended = run_script(f"{PRELUDE}\n    KIND, PATH = {kind!r}, {path!r}\n{POSITIONS}")
    assert ended.returncode == 0, ended.stderr


def test_the_signals_of_the_child_are_not_those_of_the_parent() -> None:
    check(SIGNALS)
