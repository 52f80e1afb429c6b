"""Protocol methods that fork: the child gets a RuntimeError, the parent receives every byte."""

from __future__ import annotations

import pytest
from support.forks import RUN
from support.roles import run_script

SCRIPT = """
    import asyncio
    import contextlib
    import os
    import socket
    import uringloop

    PAIRS, ROUNDS = 8, 12
    calls = 0
    child = None

    def on_call():
        global calls, child
        calls += 1
        if calls == CALL and child is None:
            child = os.fork()

    class Plain(asyncio.Protocol):
        def data_received(self, data):
            on_call()

    class Buffered(asyncio.BufferedProtocol):
        def get_buffer(self, size):
            return bytearray(100)
        def buffer_updated(self, size):
            on_call()

    class Datagrams(asyncio.DatagramProtocol):
        def datagram_received(self, data, address):
            on_call()

    class Writer(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport
            transport.set_write_buffer_limits(1)
        def data_received(self, data):
            self.transport.write(bytes(500_000))
        def resume_writing(self):
            on_call()

    async def connect(protocol, ours):
        loop = asyncio.get_running_loop()
        if KIND == "Datagrams":
            return await loop.create_datagram_endpoint(protocol, sock=ours)
        if KIND == "Pipe":
            return await loop.connect_read_pipe(protocol, ours)
        return await loop.create_connection(protocol, sock=ours)

    async def main():
        protocol = Plain if KIND == "Pipe" else globals()[KIND]
        type = socket.SOCK_DGRAM if KIND == "Datagrams" else socket.SOCK_STREAM
        pairs = [socket.socketpair(type=type) for _ in range(PAIRS)]
        transports = [await connect(protocol, ours) for ours, _ in pairs]
        for turn in range(ROUNDS):
            for _, theirs in pairs:
                theirs.send(b"x")
            # Turns that do not sleep take several completions at once.
            for _ in range(5):
                await asyncio.sleep(0)
            while calls < PAIRS * (turn + 1):
                await asyncio.sleep(0.001)
                for _, theirs in pairs if KIND == "Writer" else ():
                    with contextlib.suppress(BlockingIOError):
                        theirs.recv(1_000_000, socket.MSG_DONTWAIT)
        print(calls, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("call", [1, 2, 20])
@pytest.mark.parametrize("kind", ["Plain", "Buffered", "Datagrams", "Writer", "Pipe"])
def test_the_child_gets_a_runtime_error_and_the_parent_every_byte(kind: str, call: int) -> None:
    ended = run_script(f"    KIND, CALL = {kind!r}, {call}{SCRIPT}{RUN}\n    run(main)\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "96 3\n", "")
