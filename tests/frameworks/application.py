"""The web application that ASGI servers serve in the tests.

Servers import it by name, in processes that cannot import tests/support."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


# Larger than a connection's buffers in the kernel, so that it is written and read in many pieces.
LARGE = random.Random(0).randbytes(1 << 20)

# The pieces of a streamed body: single bytes, odd lengths, more than a receive buffer.
PIECES = [LARGE[:size] for size in (1, 2, 1_000, 65_536, 70_001, 3, 200_000)]
STREAMED = b"".join(PIECES)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer as `programs.speak_http` expects; echo messages of a WebSocket."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
    elif scope["type"] == "websocket":
        await echo_messages(receive, send)
    else:
        await answer(scope, receive, send)


async def lifespan(receive: Receive, send: Send) -> None:
    assert (await receive())["type"] == "lifespan.startup"
    await send({"type": "lifespan.startup.complete"})
    assert (await receive())["type"] == "lifespan.shutdown"
    await send({"type": "lifespan.shutdown.complete"})


async def echo_messages(receive: Receive, send: Send) -> None:
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        if message.get("text") == "close":
            await send({"type": "websocket.close", "code": 4000})
            return
        await send({**message, "type": "websocket.send"})


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    path = scope["path"]
    if path == "/stream":
        await begin(scope, send)
        for piece in PIECES:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})
        return
    pages = {"/small": b"hello", "/large": LARGE}
    body = await read(receive) if path == "/echo" else pages.get(path, b"no such page")
    status = 200 if path == "/echo" or path in pages else 404
    await begin(scope, send, status=status, length=len(body))
    await send({"type": "http.response.body", "body": body})


async def begin(scope: Scope, send: Send, *, status: int = 200, length: int | None = None) -> None:
    headers = [(b"x-client-port", str(scope["client"][1]).encode())]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def read(receive: Receive) -> bytes:
    body = bytearray()
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)
