"""A TCP or UNIX stream connection."""

import asyncio
import socket
from typing import ClassVar, final

from uringloop._transport.write_transport import WriteTransport
from uringloop._turn.turn import LoopCore

@final
class StreamTransport(WriteTransport):
    """The transport of a TCP or UNIX stream connection without TLS."""

    _start_tls_compatible: ClassVar[bool]
    _sendfile_compatible: ClassVar[object]

    def write(self, data: bytes | bytearray | memoryview) -> None: ...
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...
    def detach(self) -> tuple[socket.socket, bytes]:
        """Return a socket of the connection, and the bytes that the protocol has not received yet.

        The socket is a non-blocking duplicate; the caller owns it, and the connection goes on
        there. For this transport the connection has ended: connection_lost(None) is called in the
        next turn. Raises RuntimeError if the transport is closing or has bytes that are not sent
        yet, OSError if no descriptor is free, and the connection's own error if it has broken.
        """

def make_stream(
    loop: LoopCore,
    sock: socket.socket,
    protocol: asyncio.BaseProtocol,
    waiter: asyncio.Future[None] | None = None,
    peername: object = None,
) -> asyncio.Transport: ...
