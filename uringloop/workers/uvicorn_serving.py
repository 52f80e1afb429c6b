"""uvicorn's server on uringloop, which answers one last request on each connection when it ends.

Importing this module changes nothing in uvicorn: gunicorn's main process imports it, and may later
start workers that are not uringloop's, on another loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import logging
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from uringloop import policy
from uringloop._ring import backends
from uringloop.loop import Loop
from uringloop.workers.serving import LAST_REQUEST_S, draining

# The factory of the loop, as uvicorn finds it.
LOOP = "uringloop.workers.uvicorn_serving:new_event_loop"
# The header of the last response on a connection.
CLOSE = (b"connection", b"close")

logger = logging.getLogger("uvicorn.error")


def new_event_loop() -> Loop:
    """Return a new loop for a worker, and log which ring it uses."""
    loop = policy.new_event_loop()
    logger.info(backends.startup_line(loop.backend, loop.backend_reason))
    return loop


class Server(uvicorn.Server):
    """uvicorn's server, which answers one last request on each connection when it ends."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ws_protocol_class is not None:
            self.config.ws_protocol_class = functools.partial(
                make_websocket, self.config.ws_protocol_class
            )
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, answer one last request on each connection, then do as uvicorn does."""
        # Requests in progress may have an older list: uvicorn makes a new one each second.
        state = self.server_state
        state.default_headers = [*state.default_headers, CLOSE]
        for connection in state.connections:
            cycle: Any = getattr(connection, "cycle", None)
            # Without these private names, the client is not told that its connection ends.
            with contextlib.suppress(AttributeError):
                if not cycle.response_started:
                    cycle.default_headers = [*cycle.default_headers, CLOSE]
        async with draining(self.servers, self.config.timeout_keep_alive):
            for connection in state.connections:
                if is_answering_unannounced(connection):
                    # If it ended with this response, the client might just have sent a request.
                    connection.timeout_keep_alive = min(
                        connection.timeout_keep_alive, LAST_REQUEST_S
                    )
                    connection.shutdown = leave_open
            await super().shutdown(sockets)


def is_answering_unannounced(connection: Any) -> bool:
    """Return whether a response is in progress that does not say that its connection ends."""
    cycle = getattr(connection, "cycle", None)
    # Without these private names, the connection is closed after the response.
    return (
        getattr(cycle, "response_started", False)
        and not getattr(cycle, "response_complete", True)
        and CLOSE not in getattr(cycle, "default_headers", [CLOSE])
    )


def leave_open() -> None:
    """Leave a connection to uvicorn's timer of idle connections, and to its next response."""


def make_websocket(kind: Callable[..., Any], *, server_state: Any, **others: Any) -> Any:
    """Return a protocol for a websocket, whose handshake does not end the connection."""
    own = copy.copy(server_state)
    own.default_headers = [header for header in own.default_headers if header != CLOSE]
    websocket = kind(server_state=own, **others)
    websocket.shutdown = functools.partial(end_websocket, websocket, websocket.shutdown)
    return websocket


def end_websocket(websocket: Any, shutdown: Callable[[], None]) -> None:
    """Let uvicorn send its close frame, and give the client time to read it.

    If uvicorn closed the connection at once, a client that is just sending a message would have an
    error in place of the close frame.
    """
    websocket.transport = LastTransport(websocket.transport, websocket)
    shutdown()


class LastTransport:
    """The transport of a websocket at its end: close() waits until the client has closed, too."""

    def __init__(self, transport: Any, websocket: Any) -> None:
        self._transport = transport
        self._websocket = websocket
        self._is_closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._is_closed or bool(self._transport.is_closing())

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Send the end of the data, and read until the client's, or for LAST_REQUEST_S."""
        if self.is_closing():
            return
        self._is_closed = True
        self._transport.set_protocol(LastWords(self._websocket))
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        asyncio.get_running_loop().call_later(LAST_REQUEST_S, self._transport.close)


class LastWords(asyncio.Protocol):
    """Ignores what the client of a closed websocket sends, until the client closes as well."""

    def __init__(self, websocket: asyncio.Protocol) -> None:
        self._websocket = websocket

    def connection_lost(self, exc: Exception | None) -> None:
        self._websocket.connection_lost(exc)

    def pause_writing(self) -> None:
        self._websocket.pause_writing()

    def resume_writing(self) -> None:
        self._websocket.resume_writing()
