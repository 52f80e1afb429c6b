"""A FastAPI program with the framework's additions to ASGI: threads, models, tasks, streams."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import fastapi
import pydantic
from application import PIECES
from fastapi.responses import StreamingResponse

# Events outside of requests, which the test checks.
events: list[str] = []


@contextlib.asynccontextmanager
async def lifespan(api: fastapi.FastAPI) -> AsyncIterator[None]:
    events.append("start")
    yield
    events.append("end")


api = fastapi.FastAPI(lifespan=lifespan)


class Order(pydantic.BaseModel):
    name: str
    count: int


async def loop_name() -> str:
    return type(asyncio.get_running_loop()).__module__


@api.post("/orders")
async def order(order: Order, loop: str = fastapi.Depends(loop_name)) -> dict[str, object]:
    await asyncio.sleep(0)
    return {"name": order.name, "count": order.count + 1, "loop": loop}


@api.get("/blocking/{n}")
def blocking(n: int) -> dict[str, object]:
    return {"n": n, "main": threading.current_thread() is threading.main_thread()}


@api.get("/later")
async def later(tasks: fastapi.BackgroundTasks) -> str:
    tasks.add_task(events.append, "later")
    return "soon"


@api.get("/stream")
async def stream() -> StreamingResponse:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in PIECES:
            yield piece
            await asyncio.sleep(0)

    return StreamingResponse(pieces(), media_type="application/octet-stream")


@api.post("/upload")
async def upload(request: fastapi.Request) -> int:
    return sum([len(piece) async for piece in request.stream()])


@api.websocket("/ws")
async def echo(websocket: fastapi.WebSocket) -> None:
    await websocket.accept()
    with contextlib.suppress(fastapi.WebSocketDisconnect):
        while True:
            await websocket.send_json({"got": await websocket.receive_text()})
