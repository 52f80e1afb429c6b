"""Puts TLS on a stream: for clients, servers and start_tls().

An SSLProtocol is the protocol of the transport below, holds incomplete records, and gives the
program a transport of its own. Nothing here touches a socket.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uringloop._cpython import stdlib
from uringloop._tls.ssl_protocol import SSLProtocol

if TYPE_CHECKING:
    from uringloop._loop.base_loop import BaseLoop


class Options:
    """The TLS arguments of a connection or a server."""

    # Not a dataclass: creating one takes as long as importing the compiled modules of this package.
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
    """Return the Options for an `ssl` argument; None for a plain connection."""
    if not argument:
        return None
    # True means a default context, which asyncio creates for the host.
    context = None if isinstance(argument, bool) else argument
    return Options(context, server_side, server_hostname, handshake_timeout, shutdown_timeout)


def server_options(
    argument: ssl.SSLContext | bool | None,
    handshake_timeout: float | None,
    shutdown_timeout: float | None,
) -> Options | None:
    """Return the Options of a server. Raises TypeError for a bool: a server needs a context."""
    if isinstance(argument, bool):
        raise TypeError("ssl argument must be an SSLContext or None")
    return options(
        argument,
        server_side=True,
        handshake_timeout=handshake_timeout,
        shutdown_timeout=shutdown_timeout,
    )


def wrap(
    loop: BaseLoop,
    protocol: asyncio.BaseProtocol,
    wanted: Options,
    waiter: asyncio.Future[None],
    *,
    call_connection_made: bool = True,
) -> SSLProtocol:
    """Return the protocol that does TLS for *protocol*; the handshake's end resolves *waiter*."""
    return SSLProtocol(
        loop,
        protocol,
        wanted.context,  # None for a default context
        waiter,
        wanted.server_side,
        wanted.server_hostname,
        call_connection_made,
        ssl_handshake_timeout=wanted.handshake_timeout,
        ssl_shutdown_timeout=wanted.shutdown_timeout,
    )


def app_transport(protocol: SSLProtocol) -> asyncio.Transport:
    """Return the transport that the program's protocol uses."""
    transport: asyncio.Transport = protocol._app_transport
    return transport


def server_factory(
    loop: BaseLoop,
    protocol_factory: Callable[[], asyncio.BaseProtocol],
    wanted: Options,
) -> Callable[[], asyncio.BaseProtocol]:
    """Return the protocol factory for a server; a failed handshake ends one connection only."""

    def make() -> asyncio.BaseProtocol:
        protocol = protocol_factory()
        waiter = loop.create_future()
        wrapped = wrap(loop, protocol, wanted, waiter)
        transport = app_transport(wrapped)

        def handshake_ended(waiter: asyncio.Future[None]) -> None:
            if waiter.cancelled() or waiter.exception() is None:
                return
            # The SSLProtocol has closed the connection; only debug mode reports it.
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


# ── start_tls() ──────────────────────────────────────────────────────────────────────────────


async def start(
    loop: BaseLoop,
    transport: Any,
    protocol: asyncio.BaseProtocol,
    wanted: Options,
) -> asyncio.Transport:
    """Put TLS between *transport* and *protocol*, which are connected already.

    As in asyncio, any object will do whose attribute says so.
    """
    if not isinstance(wanted.context, ssl.SSLContext):
        raise TypeError(
            f"sslcontext is expected to be an instance of ssl.SSLContext, got {wanted.context!r}"
        )
    if not getattr(transport, "_start_tls_compatible", False):
        raise TypeError(f"transport {transport!r} is not supported by start_tls()")
    waiter = loop.create_future()
    secured = wrap(loop, protocol, wanted, waiter, call_connection_made=False)
    # No bytes may be delivered before connection_made().
    transport.pause_reading()
    if stdlib.START_TLS_MOVES_READ_AHEAD and wanted.server_side:
        move_read_ahead(protocol, secured)
    secured.replace(transport)
    steps = (
        loop.call_soon(secured.connection_made, transport),
        loop.call_soon(transport.resume_reading),
    )
    try:
        await waiter
    except BaseException:
        transport.close()
        for step in steps:
            step.cancel()
        raise
    finally:
        # The traceback of the waiter's exception refers to this frame, a reference cycle.
        del waiter
    return app_transport(secured)


def move_read_ahead(protocol: asyncio.BaseProtocol, secured: SSLProtocol) -> None:
    """Move bytes that a client has sent ahead out of the StreamReader: they are TLS records."""
    reader = getattr(protocol, "_stream_reader", None)
    if not isinstance(protocol, asyncio.StreamReaderProtocol) or reader is None:
        return
    if reader._buffer:
        secured.take_ahead(bytes(reader._buffer))
        reader._buffer.clear()
