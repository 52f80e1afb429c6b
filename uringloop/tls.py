"""TLS on a stream: asyncio's own SSLProtocol, which speaks to our transport like any protocol.

Nothing here touches a socket. The SSLProtocol holds the records that are incomplete; what it
hands to the program is a transport of asyncio's, on top of ours.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import TYPE_CHECKING

from uringloop._core import secure

if TYPE_CHECKING:
    from uringloop.running import RunningLoop


class Options:
    """What a connection or a server was asked to do about TLS."""

    # Written out: making a dataclass takes as long as importing all that is compiled here.
    def __init__(
        self,
        context: ssl.SSLContext | None,
        server_side: bool,
        server_hostname: str | None = None,
        handshake_timeout: float | None = None,
        shutdown_timeout: float | None = None,
    ) -> None:
        self.context = context
        self.server_side = server_side
        self.server_hostname = server_hostname
        self.handshake_timeout = handshake_timeout
        self.shutdown_timeout = shutdown_timeout


def options(
    argument: ssl.SSLContext | bool | None,
    *,
    server_side: bool,
    server_hostname: str | None = None,
    handshake_timeout: float | None = None,
    shutdown_timeout: float | None = None,
) -> Options | None:
    """Return the Options that an `ssl` argument stands for; None for a plain connection."""
    if not argument:
        return None
    # True stands for a default context, which asyncio makes for the host.
    context = None if isinstance(argument, bool) else argument
    return Options(context, server_side, server_hostname, handshake_timeout, shutdown_timeout)


def wrap(
    loop: RunningLoop,
    protocol: asyncio.BaseProtocol,
    wanted: Options,
    waiter: asyncio.Future[None],
) -> SSLProtocol:
    """Return the protocol that does TLS for *protocol*; *waiter* is told of the handshake's end."""
    return secure.new_protocol(
        loop,
        protocol,
        wanted.context,  # None makes a default one
        waiter,
        wanted.server_side,
        wanted.server_hostname,
        ssl_handshake_timeout=wanted.handshake_timeout,
        ssl_shutdown_timeout=wanted.shutdown_timeout,
    )


def app_transport(protocol: SSLProtocol) -> asyncio.Transport:
    """Return the transport on which the program's protocol works."""
    transport: asyncio.Transport = protocol._app_transport
    return transport


def server_factory(
    loop: RunningLoop,
    protocol_factory: Callable[[], asyncio.BaseProtocol],
    wanted: Options,
) -> Callable[[], asyncio.BaseProtocol]:
    """Return the factory for a server's connections; a failed handshake ends one of them."""

    def make() -> asyncio.BaseProtocol:
        protocol = protocol_factory()
        waiter = loop.create_future()
        wrapped = wrap(loop, protocol, wanted, waiter)
        transport = app_transport(wrapped)

        def handshake_ended(waiter: asyncio.Future[None]) -> None:
            if waiter.cancelled() or waiter.exception() is None:
                return
            # The SSLProtocol has closed the connection; only debug mode wants to know.
            if loop.get_debug():
                loop.call_exception_handler(
                    {
                        "message": "Error on transport creation for incoming connection",
                        "exception": waiter.exception(),
                        "protocol": protocol,
                        "transport": transport,
                    }
                )
            transport.close()

        waiter.add_done_callback(handshake_ended)
        return wrapped

    return make
