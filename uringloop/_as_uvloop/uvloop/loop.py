"""The loop and the transports under their names in uvloop's module `loop`.

uvloop's classes for parts of libuv have no counterpart and are missing.
"""

from __future__ import annotations

import uringloop
from uringloop._net.datagram_transport import DatagramTransport as UDPTransport
from uringloop._net.pipe import ReadPipeTransport as ReadUnixTransport
from uringloop._net.pipe import WritePipeTransport as WriteUnixTransport
from uringloop._net.servers import Server
from uringloop._net.stream_transport import StreamTransport as TCPTransport
from uringloop._net.stream_transport import StreamTransport as UnixTransport
from uringloop._process.subprocesses import SubprocessTransport as UVProcessTransport
from uringloop._tls.ssl_protocol import SSLProtocol
from uringloop._tls.ssl_protocol import SSLTransport as _SSLProtocolTransport
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
    """uringloop's loop, for programs that check the module name of a loop's class."""


# In uvloop too the class is named `uvloop.Loop`.
Loop.__module__ = "uvloop"


def new_event_loop() -> Loop:
    """Return a new event loop."""
    return Loop()
