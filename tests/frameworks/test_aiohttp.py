"""aiohttp at both ends: server, client, WebSockets, limits of the connector, files."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from application import LARGE, PIECES, STREAMED
from programs import Address, Certificate, check_http, needs, process, program, python, quiet
from support.roles import Loop, noise

from uringloop import tls

aiohttp = needs("aiohttp")
web = needs("aiohttp.web")
pytestmark = quiet


# ── the server ────────────────────────────────────────────────────────────────────────────────


def client_port(request: Any) -> dict[str, str]:
    return {"x-client-port": str(request.transport.get_extra_info("peername")[1])}


async def fixed(request: Any) -> Any:
    body = {"/small": b"hello", "/large": LARGE}[request.path]
    return web.Response(body=body, headers=client_port(request))


async def stream(request: Any) -> Any:
    response = web.StreamResponse(headers=client_port(request))
    await response.prepare(request)
    for piece in PIECES:
        await response.write(piece)
    await response.write_eof()
    return response


async def echo(request: Any) -> Any:
    return web.Response(body=await request.read(), headers=client_port(request))


async def websocket(request: Any) -> Any:
    socket = web.WebSocketResponse(max_msg_size=0)
    await socket.prepare(request)
    async for message in socket:
        if message.type is aiohttp.WSMsgType.TEXT:
            if message.data == "close":
                await socket.close(code=4000, message=b"as you wish")
            else:
                await socket.send_str(message.data)
        else:
            await socket.send_bytes(message.data)
    return socket


async def absent(request: Any, handler: Any) -> Any:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return web.Response(status=404, body=b"no such page")


@contextlib.asynccontextmanager
async def serving(path: Path | None = None, **site: Any) -> AsyncIterator[Address]:
    """Serve the pages that `programs.speak_http` requests, and the file at *path*."""

    async def served(request: Any) -> Any:
        return web.FileResponse(path)

    app = web.Application(client_max_size=1 << 24, middlewares=[web.middleware(absent)])
    app.add_routes([web.get("/small", fixed), web.get("/large", fixed), web.get("/stream", stream)])
    app.add_routes([web.post("/echo", echo), web.get("/ws", websocket)])
    if path is not None:
        app.add_routes([web.get("/file", served)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, **site).start()
        host, port = runner.addresses[0]
        yield host, port
    finally:
        await runner.cleanup()


@pytest.mark.slow
@program
async def test_the_server_serves_bodies_of_every_kind(each_loop: Loop) -> None:
    async with serving() as address:
        await check_http(address)


@pytest.mark.slow
@program
async def test_the_server_serves_over_tls(each_loop: Loop, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    async with serving(ssl_context=certificate.server()) as address:
        await check_http(address, certificate.client())


# ── the client ────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def session(address: Address, **settings: Any) -> AsyncIterator[Any]:
    connector = aiohttp.TCPConnector(**settings)
    url = "http://{}:{}".format(*address)
    async with aiohttp.ClientSession(url, connector=connector) as client:
        yield client


async def read(client: Any, path: str, **options: Any) -> bytes:
    async with client.get(path, **options) as answer:
        assert answer.status == 200
        body = await answer.read()
        assert isinstance(body, bytes)
        return body


async def pieces() -> AsyncIterator[bytes]:
    for piece in PIECES:
        yield piece


@pytest.mark.slow
@program
async def test_the_client_resumes_tls_sessions(each_loop: Loop, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    server, context = certificate.server(), certificate.client()
    tls.reuse_sessions(context)
    async with serving(ssl_context=server) as (_, port):
        for _ in range(3):
            connector = aiohttp.TCPConnector(ssl=context)
            async with aiohttp.ClientSession(connector=connector) as client:
                assert await read(client, f"https://localhost:{port}/large") == LARGE
    counted = server.session_stats()
    assert (counted["accept_good"], counted["hits"]) == (3, 2)


@pytest.mark.slow
@program
async def test_the_client_sends_and_receives_bodies_of_every_kind(each_loop: Loop) -> None:
    async with serving() as address, session(address, limit=1) as client:
        assert await read(client, "/small") == b"hello"
        assert await read(client, "/large") == LARGE
        assert await read(client, "/stream") == STREAMED
        for sent, body in ((b"", b""), (LARGE, LARGE), (pieces(), STREAMED)):
            async with client.post("/echo", data=sent) as answer:
                assert await answer.read() == body
        async with client.get("/stream") as answer:
            got = [piece async for piece in answer.content.iter_chunked(1_000)]
            assert b"".join(got) == STREAMED
        async with client.get("/absent") as answer:
            assert (answer.status, await answer.read()) == (404, b"no such page")


@pytest.mark.slow
@program
async def test_many_requests_run_concurrently(each_loop: Loop) -> None:
    async def ask(client: Any, n: int) -> str:
        async with client.post("/echo", data=b"%d" % n * n) as answer:
            assert await answer.read() == b"%d" % n * n
            port = answer.headers["x-client-port"]
            assert isinstance(port, str)
            return port

    async with serving() as address, session(address, limit=25) as client:
        ports = await asyncio.gather(*(ask(client, n) for n in range(300)))
        assert 1 < len(set(ports)) <= 25


@pytest.mark.slow
@program
async def test_the_client_works_over_tls(each_loop: Loop, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    async with serving(ssl_context=certificate.server()) as (_, port):
        async with aiohttp.ClientSession(f"https://localhost:{port}") as client:
            trusting = {"ssl": certificate.client()}
            assert await read(client, "/large", **trusting) == LARGE
            bodies = await asyncio.gather(*(read(client, "/stream", **trusting) for _ in range(20)))
            assert set(bodies) == {STREAMED}
            async with client.ws_connect("/ws", **trusting) as socket:
                await socket.send_bytes(LARGE[:100_000])
                assert await socket.receive_bytes() == LARGE[:100_000]
        async with aiohttp.ClientSession() as stranger:
            with pytest.raises(aiohttp.ClientConnectorCertificateError) as refusal:
                await stranger.get(f"https://localhost:{port}/small")
            assert isinstance(refusal.value.certificate_error, ssl.SSLCertVerificationError)


@pytest.mark.slow
@program
async def test_a_timeout_and_a_cancel_end_requests(each_loop: Loop) -> None:
    asked = asyncio.Event()

    async def hang(request: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    server = web.Server(hang, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with session(runner.addresses[0]) as client:
        with pytest.raises(asyncio.TimeoutError):
            await client.get("/", timeout=aiohttp.ClientTimeout(total=0.05))
        asked.clear()
        task = asyncio.create_task(read(client, "/"))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await runner.cleanup()


# ── files, by sendfile where the loop has it ──────────────────────────────────────────────────


@pytest.mark.slow
@program
async def test_a_file_is_served_in_whole_and_in_parts(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = noise(3_000_001)
    path.write_bytes(content)
    async with serving(path) as address, session(address) as client:
        assert await read(client, "/file") == content
        for first, last in ((0, 0), (1, 100_000), (2_999_000, 3_000_000)):
            headers = {"Range": f"bytes={first}-{last}"}
            async with client.get("/file", headers=headers) as answer:
                assert answer.status == 206
                assert await answer.read() == content[first : last + 1]


@pytest.mark.slow
@program
async def test_a_file_is_served_over_tls(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = noise(3_000_001)
    path.write_bytes(content)
    certificate = Certificate(tmp_path)
    async with (
        serving(path, ssl_context=certificate.server()) as (_, port),
        aiohttp.ClientSession(f"https://localhost:{port}") as client,
    ):
        assert await read(client, "/file", ssl=certificate.client()) == content


# ── WebSockets ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@program
async def test_websockets_carry_messages_of_every_size(each_loop: Loop) -> None:
    async with (
        serving() as address,
        session(address) as client,
        client.ws_connect("/ws", max_msg_size=0) as socket,
    ):
        for text in ("", "text", "é" * 70_000):
            await socket.send_str(text)
            assert await socket.receive_str() == text
        for data in (b"", b"\x00\xff", LARGE):
            await socket.send_bytes(data)
            assert await socket.receive_bytes() == data
        await socket.ping(b"still there?")
        await socket.send_str("close")
        end = await socket.receive()
        assert (end.type, end.data) == (aiohttp.WSMsgType.CLOSE, 4000)
        assert end.extra == "as you wish"


@pytest.mark.slow
@program
async def test_many_websockets_are_used_concurrently(each_loop: Loop) -> None:
    async def talk(client: Any, name: int) -> None:
        async with client.ws_connect("/ws") as socket:
            for number in range(20):
                await socket.send_str(f"{name} {number}")
                assert await socket.receive_str() == f"{name} {number}"

    async with serving() as address, session(address, limit=0) as client:
        await asyncio.gather(*(talk(client, name) for name in range(50)))


# ── as a program ──────────────────────────────────────────────────────────────────────────────

PROGRAM = """
import asyncio
import signal
import aiohttp
import uringloop
from aiohttp import web

async def hello(request):
    return web.Response(text=type(asyncio.get_running_loop()).__module__)

async def main():
    app = web.Application()
    app.add_routes([web.get("/", hello)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    async with aiohttp.ClientSession() as client:
        async with client.get("http://{}:{}/".format(*runner.addresses[0])) as answer:
            print("answer:", await answer.text())
    await end.wait()
    await runner.cleanup()
    print("bye")

uringloop.run(main())
"""


@pytest.mark.slow
def test_a_program_with_server_and_client_ends_without_warnings() -> None:
    with process(python("-X", "dev", "-c", PROGRAM)) as running:
        running.read_until("answer: uringloop.loop$")
        assert running.stop(signal.SIGTERM) == 0
        assert running.output.endswith("bye\n")


@pytest.mark.slow
def test_run_app_accepts_the_loop(tmp_path: Path) -> None:
    script = (
        "import uringloop\n"
        "from aiohttp import web\n"
        "web.run_app(web.Application(), host='127.0.0.1', port=0,"
        " loop=uringloop.new_event_loop())\n"
    )
    with process(python("-c", script)) as running:
        running.read_until("Running on http://127.0.0.1")
        assert running.stop(signal.SIGINT) == 0
