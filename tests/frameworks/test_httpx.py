"""httpx as a client on the loop, of uvicorn on the same loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from application import LARGE, PIECES, STREAMED, app
from programs import Certificate, needs, program, quiet, serving_with_uvicorn
from support.roles import Loop, silent_listener

from uringloop import tls

httpx = needs("httpx")
needs("uvicorn")
pytestmark = quiet


async def pieces() -> AsyncIterator[bytes]:
    for piece in PIECES:
        yield piece


@pytest.mark.slow
@program
async def test_httpx_sends_and_receives_bodies_of_every_kind(each_loop: Loop) -> None:
    async with (
        serving_with_uvicorn(app) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}") as client,
    ):
        first = await client.get("/small")
        assert (first.status_code, first.content) == (200, b"hello")
        for path, body in (("/large", LARGE), ("/stream", STREAMED)):
            answer = await client.get(path)
            assert answer.content == body
            # The connection is kept alive: the server sees the same port.
            assert answer.headers["x-client-port"] == first.headers["x-client-port"]
        assert (await client.post("/echo", content=LARGE)).content == LARGE
        assert (await client.post("/echo", content=pieces())).content == STREAMED
        assert (await client.get("/absent")).status_code == 404
        async with client.stream("GET", "/stream") as answer:
            assert b"".join([piece async for piece in answer.aiter_raw(1_000)]) == STREAMED


@pytest.mark.slow
@program
async def test_many_requests_of_httpx_run_concurrently(each_loop: Loop) -> None:
    limits = httpx.Limits(max_connections=20)
    async with (
        serving_with_uvicorn(app) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}", limits=limits) as client,
    ):
        answers = await asyncio.gather(
            *(client.post("/echo", content=b"%d" % n * n) for n in range(200))
        )
        assert [answer.content for answer in answers] == [b"%d" % n * n for n in range(200)]
        ports = {answer.headers["x-client-port"] for answer in answers}
        assert 1 < len(ports) <= 20


@pytest.mark.slow
@program
async def test_leaving_a_stream_of_httpx_early_closes_the_connection(each_loop: Loop) -> None:
    async with (
        serving_with_uvicorn(app) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}") as client,
    ):
        async with client.stream("GET", "/large") as answer:
            piece = await anext(answer.aiter_raw())
            assert LARGE.startswith(piece)
        again = await client.get("/large")
        assert again.content == LARGE
        assert again.headers["x-client-port"] != answer.headers["x-client-port"]


@pytest.mark.slow
@program
async def test_httpx_works_over_tls(each_loop: Loop, tmp_path: Path) -> None:
    # httpx uses the TLS of anyio's streams; uvicorn uses the loop's.
    certificate = Certificate(tmp_path)
    files = {"ssl_certfile": certificate.chain, "ssl_keyfile": certificate.key}
    async with (
        serving_with_uvicorn(app, **files) as (_, port),
        httpx.AsyncClient(
            base_url=f"https://localhost:{port}", verify=certificate.client()
        ) as client,
    ):
        assert (await client.get("/large")).content == LARGE
        answers = await asyncio.gather(
            *(client.post("/echo", content=LARGE[:size]) for size in range(0, 100_000, 9_999))
        )
        assert [len(answer.content) for answer in answers] == list(range(0, 100_000, 9_999))
    async with (
        serving_with_uvicorn(app, **files) as (_, port),
        httpx.AsyncClient() as stranger,
    ):
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await stranger.get(f"https://localhost:{port}/small")


@pytest.mark.slow
@program
async def test_httpx_resumes_tls_sessions(each_loop: Loop, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    context = certificate.client()
    tls.reuse_sessions(context)
    found = []
    async with serving_with_uvicorn(
        app, ssl_certfile=certificate.chain, ssl_keyfile=certificate.key
    ) as (_, port):
        for _ in range(3):
            async with httpx.AsyncClient(verify=context) as client:
                answer = await client.get(f"https://localhost:{port}/large")
                assert answer.content == LARGE
                stream = answer.extensions["network_stream"]
                found.append(stream.get_extra_info("ssl_object").session_reused)
    assert found == [False, True, True]


@pytest.mark.slow
@program
async def test_connect_and_read_timeouts_of_httpx_end_requests(each_loop: Loop) -> None:
    with silent_listener(("127.0.0.1", 0)) as (host, port):
        async with httpx.AsyncClient(timeout=0.05) as client:
            with pytest.raises(httpx.ConnectTimeout):
                await client.get(f"http://{host}:{port}/")
    # The kernel completes the connection, and no program answers.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with httpx.AsyncClient(timeout=httpx.Timeout(10, read=0.05)) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.get(f"http://127.0.0.1:{port}/")
