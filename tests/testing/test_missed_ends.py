"""A simulated kernel whose receives miss ends that come with bytes: each end is told anyway."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from support.protocols import Collector
from support.roles import end, nothing_comes
from support.sockets import tcp_pair, unix_pair

from uringloop import testing

# After so many small messages a connection receives by the ring.
MESSAGES = 9


@pytest.mark.parametrize("how", ["reset", "close", "half"])
@pytest.mark.parametrize("pair", [tcp_pair, unix_pair])
def test_an_end_that_comes_with_bytes_is_told(
    pair: Callable[[], tuple[socket.socket, socket.socket]], how: str
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        protocol = Collector(loop)
        ours, peer = pair()
        await loop.create_connection(lambda: protocol, sock=ours)
        with peer:
            for count in range(MESSAGES):
                peer.send(b"hello")
                await protocol.received(5 * (count + 1))
            await nothing_comes(loop)
            peer.send(b"last")
            end(peer, how)
            await protocol.lost
        assert protocol.data == b"hello" * MESSAGES + b"last"

    loop = testing.Loop(faults=testing.Faults(missed_end=1.0), kernel_sockets=True)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
        assert loop.faults_happened()["missed_end"] > 0
