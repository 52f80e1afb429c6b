"""HTTP servers with a fixed response: a parser on a protocol, uvicorn and aiohttp.

The packages are imported where they are used: a missing one affects its own server only.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from uringloop.bench.echo import BACKLOG

BODY = b"Hello, world!"

_RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%s" % (
    len(BODY),
    BODY,
)


class Answering(asyncio.Protocol):
    """Answers every request when the parser has reached its end."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        from httptools import HttpRequestParser

        self.transport = transport  # type: ignore[assignment]  # as in echo
        self.parser = HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.transport.write(_RESPONSE)


async def serve_raw(listener: socket.socket) -> None:
    """Serve with asyncio.Protocol and httptools' parser: the least that HTTP costs."""
    import httptools  # noqa: F401  # fails before the first connection if it is missing

    loop = asyncio.get_running_loop()
    await loop.create_server(Answering, sock=listener, backlog=BACKLOG)


async def application(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Answer as an ASGI application does."""
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})


async def serve_uvicorn(listener: socket.socket) -> None:
    """Serve an ASGI application with uvicorn and httptools."""
    await _serve_application(listener, application)


async def serve_sync_endpoint(listener: socket.socket) -> None:
    """Serve a `def` endpoint of starlette, which anyio calls in a thread, with uvicorn."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    def answer(_request: Request) -> PlainTextResponse:
        return PlainTextResponse(BODY)

    await _serve_application(listener, Starlette(routes=[Route("/", answer)]))


async def _serve_application(listener: socket.socket, app: Any) -> None:
    import httptools  # noqa: F401  # without it uvicorn prints a long traceback
    import uvicorn

    config = uvicorn.Config(
        app,
        http="httptools",
        lifespan="off",
        log_level="error",
        access_log=False,
        backlog=BACKLOG,
    )
    config.load()
    server = uvicorn.Server(config)
    # Not by serve(), which would install its own handler of SIGTERM.
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    # The task stays referenced by the timer of its sleep().
    asyncio.get_running_loop().create_task(server.main_loop())


async def serve_aiohttp(listener: socket.socket) -> None:
    """Serve with aiohttp's own server."""
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=BODY, content_type="text/plain")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listener, backlog=BACKLOG).start()
