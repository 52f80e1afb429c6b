"""The loop and the transports by the names they have in uvloop's module `loop`.

Classes of uvloop that stand for parts of libuv have no counterpart and are missing here.
"""

from __future__ import annotations

import uringloop
from uringloop._net.datagram import DatagramTransport as UDPTransport
from uringloop._net.pipe import ReadPipeTransport as ReadUnixTransport
from uringloop._net.pipe import WritePipeTransport as WriteUnixTransport
from uringloop._net.servers import Server
from uringloop._net.stream import StreamTransport as TCPTransport
from uringloop._net.stream import StreamTransport as UnixTransport
from uringloop._process.subprocesses import SubprocessTransport as UVProcessTransport
from uringloop._tls.ssl_protocol import SSLTransport as _SSLProtocolTransport
from uringloop._tls.ssl_protocol import TLSProtocol as SSLProtocol
from uringloop._turn.handles import Handle, TimerHandle

__all__ = [
    "Handle",
    "Loop",
    "ReadUnixTransport",
    "SSLProtocol",
    "Server",
    "TCPTransport",
    "TimerHandle",
    "UDPTransport",
    "UVProcessTransport",
    "UnixTransport",
    "WriteUnixTransport",
    "_SSLProtocolTransport",
]


class Loop(uringloop.Loop):
    """uringloop's loop, for programs that look at the module of a loop's class."""


# uvloop's own loops are of the class `uvloop.Loop`.
Loop.__module__ = "uvloop"


def new_event_loop() -> Loop:
    """Return a new event loop."""
    return Loop()
