"""An ASGI application whose answers name the loop and its version."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

PIECES = 20
DOWNLOAD = [bytes(64 * 1024)] * 32


def header() -> tuple[bytes, bytes]:
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    return b"x-loop", f"{loop} {sys.modules[loop].__version__}".encode()


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for _ in range(2):
            message = await receive()
            await send({"type": message["type"] + ".complete"})
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
    else:
        await answer(scope["path"], float(scope["query_string"] or 0), receive, send)


async def answer(path: str, seconds: float, receive: Any, send: Any) -> None:
    pieces = [b"hello"]
    pause = 0.0
    if path == "/slow":
        await asyncio.sleep(seconds)
    elif path == "/stream":
        pieces *= PIECES
        pause = seconds / PIECES
    elif path == "/download":
        pieces = DOWNLOAD
    elif path == "/upload":
        size, more = 0, True
        while more:
            message = await receive()
            size += len(message["body"])
            more = message["more_body"]
        pieces = [b"%d" % size]
    length = b"%d" % sum(map(len, pieces))
    headers = [header(), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in pieces[:-1]:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(pause)
    await send({"type": "http.response.body", "body": pieces[-1]})
