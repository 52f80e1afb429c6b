"""Loop.adopt(): a connected socket handed to a loop by any thread.

An Adoption owns the socket until a transport does. Only the loop refers to it, so that it is
destroyed when the loop drops its callbacks, and then closes the socket and ends the caller's
future. adopt() runs in any thread, everything else in the loop's, except that destruction.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
from asyncio.log import logger
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from uringloop._net.argument_checks import check_socket, check_stream
from uringloop._net.stream_transport import make_stream
from uringloop._tls import upgrade

if TYPE_CHECKING:
    from uringloop.loop import Loop

P = TypeVar("P", bound=asyncio.BaseProtocol)
Result = concurrent.futures.Future[tuple[asyncio.Transport, P]]


def adopt(
    loop: Loop,
    protocol_factory: Callable[[], P],
    sock: socket.socket,
    tls_options: upgrade.Options | None,
) -> Result[P]:
    check_stream(sock)
    check_socket(sock)
    if tls_options is not None and tls_options.context is None:
        raise ValueError("Server side SSL needs a valid SSLContext")
    sock.setblocking(False)
    future: Result[P] = concurrent.futures.Future()
    adoption = Adoption(loop, protocol_factory, sock, tls_options, future)
    try:
        loop.call_soon_threadsafe(adoption.begin)
    except BaseException:
        # The socket stays the caller's.
        adoption.sock = adoption.future = None
        raise
    return future


class Adoption(Generic[P]):
    """A socket on its way into a transport, and the future that gets the transport."""

    __slots__ = ("factory", "future", "loop", "pair", "sock", "tls_options")

    def __init__(
        self,
        loop: Loop,
        factory: Callable[[], P],
        sock: socket.socket,
        tls_options: upgrade.Options | None,
        future: Result[P],
    ) -> None:
        self.loop = loop
        self.factory = factory
        # Closed by this object until it is None.
        self.sock: socket.socket | None = sock
        self.tls_options = tls_options
        # None once it has a result.
        self.future: Result[P] | None = future
        self.pair: tuple[asyncio.Transport, P] | None = None

    def begin(self) -> None:
        """Create the protocol and the transport, which owns the socket from then on."""
        assert self.future is not None
        if not self.future.set_running_or_notify_cancel():
            self.future = None
            self.close_socket()
            return
        try:
            self.open_transport()
        except BaseException as exc:
            self.close_socket()
            self.fail(exc)
            if isinstance(exc, (KeyboardInterrupt, SystemExit)):
                raise

    def open_transport(self) -> None:
        assert self.sock is not None
        protocol = self.factory()
        if self.tls_options is None:
            transport = make_stream(self.loop, self.sock, protocol)
            # After connection_made(), which make_stream() has scheduled.
            self.loop.call_soon(self.succeed)
        else:
            waiter = self.loop.create_future()
            secured = upgrade.wrap(self.loop, protocol, self.tls_options, waiter)
            make_stream(self.loop, self.sock, secured)
            transport = upgrade.app_transport(secured)
            waiter.add_done_callback(self.handshake_ended)
        self.sock = None
        self.pair = transport, protocol

    def handshake_ended(self, waiter: asyncio.Future[None]) -> None:
        exc = waiter.exception()
        if exc is None:
            self.succeed()
            return
        if self.pair is not None:
            self.pair[0].close()
        self.fail(exc)

    def succeed(self) -> None:
        assert self.future is not None
        assert self.pair is not None
        if self.loop.get_debug():
            logger.debug("%r adopted: %r", *self.pair)
        future, self.future = self.future, None
        future.set_result(self.pair)

    def fail(self, exc: BaseException) -> None:
        future, self.future = self.future, None
        if future is not None:
            future.set_exception(exc)

    def close_socket(self) -> None:
        sock, self.sock = self.sock, None
        if sock is not None:
            sock.close()

    def __del__(self) -> None:
        # The loop was closed before it came to this adoption.
        self.close_socket()
        if self.future is not None and (
            self.pair is not None or self.future.set_running_or_notify_cancel()
        ):
            self.fail(RuntimeError("Event loop is closed"))
