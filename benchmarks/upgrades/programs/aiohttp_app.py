"""The same application for aiohttp, without the websocket."""

from __future__ import annotations

import asyncio

from aiohttp import web

from upgrades.programs.asgi import DOWNLOAD, PIECES, header


async def answer(request: web.Request) -> web.StreamResponse:
    pieces = [b"hello"]
    pause = 0.0
    seconds = float(request.query_string or 0)
    if request.path == "/slow":
        await asyncio.sleep(seconds)
    elif request.path == "/stream":
        pieces *= PIECES
        pause = seconds / PIECES
    elif request.path == "/download":
        pieces = DOWNLOAD
    elif request.path == "/upload":
        pieces = [b"%d" % len(await request.read())]
    name, value = header()
    response = web.StreamResponse(headers={name.decode(): value.decode()})
    response.content_length = sum(map(len, pieces))
    await response.prepare(request)
    for piece in pieces[:-1]:
        await response.write(piece)
        await asyncio.sleep(pause)
    await response.write(pieces[-1])
    return response


app = web.Application(client_max_size=1 << 30)
app.router.add_route("*", "/{path:.*}", answer)
