"""FastAPI on uvicorn, with httpx and websockets as clients on the same loop."""

from __future__ import annotations

import asyncio
import json

import pytest
from application import LARGE, STREAMED
from programs import needs, program, quiet, serving_with_uvicorn
from support.roles import Loop, until

needs("fastapi")
needs("uvicorn")
needs("websockets")
httpx = needs("httpx")
websockets = needs("websockets.asyncio.client")
fastapi_application = needs("fastapi_application")
pytestmark = quiet


@pytest.mark.slow
@program
async def test_fastapi_answers_requests_of_every_kind(each_loop: Loop) -> None:
    api, events = fastapi_application.api, fastapi_application.events
    events.clear()
    async with serving_with_uvicorn(api) as (host, port), httpx.AsyncClient() as client:
        url = f"http://{host}:{port}"
        answer = await client.post(f"{url}/orders", json={"name": "tea", "count": 2})
        assert answer.json() == {"name": "tea", "count": 3, "loop": type(each_loop).__module__}
        refused = await client.post(f"{url}/orders", json={"name": "tea", "count": "many"})
        assert refused.status_code == 422
        assert refused.json()["detail"][0]["loc"] == ["body", "count"]
        answers = await asyncio.gather(*(client.get(f"{url}/blocking/{n}") for n in range(40)))
        assert [answer.json() for answer in answers] == [{"n": n, "main": False} for n in range(40)]
        assert (await client.get(f"{url}/later")).json() == "soon"
        assert (await client.get(f"{url}/stream")).content == STREAMED
        assert (await client.post(f"{url}/upload", content=LARGE)).json() == len(LARGE)
        # The background task runs in a thread after the answer is sent.
        await until(lambda: "later" in events)
    assert events == ["start", "later", "end"]


@pytest.mark.slow
@program
async def test_fastapi_serves_websockets(each_loop: Loop) -> None:
    async def talk(url: str, name: str) -> None:
        async with websockets.connect(url) as client:
            for number in range(20):
                await client.send(f"{name} {number}")
                assert json.loads(await client.recv()) == {"got": f"{name} {number}"}

    async with serving_with_uvicorn(fastapi_application.api) as (host, port):
        await asyncio.gather(*(talk(f"ws://{host}:{port}/ws", f"client {n}") for n in range(20)))
