"""uvicorn serves an ASGI application in this process, by its command, over TLS, with workers."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from application import LARGE, app
from programs import (
    HERE,
    Address,
    Certificate,
    check_http,
    connector,
    needs,
    process,
    program,
    python,
    quiet,
    request_concurrently,
    serving_with_uvicorn,
    speak_http,
)
from support.loops import LoopFactory
from support.roles import Loop, in_thread

import uringloop

uvicorn = needs("uvicorn")
needs("h11")
needs("httptools")
websockets = needs("websockets.sync.client")
pytestmark = quiet


@pytest.mark.slow
@pytest.mark.parametrize("parser", ["h11", "httptools"])
@program
async def test_uvicorn_serves_bodies_of_every_kind(each_loop: Loop, parser: str) -> None:
    async with serving_with_uvicorn(app, http=parser) as address:
        await check_http(address)


@pytest.mark.slow
@pytest.mark.parametrize("parser", ["h11", "httptools"])
@program
async def test_uvicorn_serves_over_tls(each_loop: Loop, parser: str, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    files = {"ssl_certfile": certificate.chain, "ssl_keyfile": certificate.key}
    async with serving_with_uvicorn(app, http=parser, **files) as address:
        await check_http(address, certificate.client())


@pytest.mark.slow
@program
async def test_uvicorn_answers_pipelined_requests_in_order(each_loop: Loop) -> None:
    async with serving_with_uvicorn(app) as address:
        reader, writer = await asyncio.open_connection(*address)
        request = b"GET %s HTTP/1.1\r\nHost: here\r\n\r\n"
        writer.write(b"".join(request % path for path in (b"/small", b"/large", b"/absent") * 5))
        for _ in range(5):
            for body in (b"hello", LARGE, b"no such page"):
                head = await reader.readuntil(b"\r\n\r\n")
                assert b"content-length: %d\r\n" % len(body) in head
                assert await reader.readexactly(len(body)) == body
        writer.close()
        await writer.wait_closed()


def talk(address: Address) -> None:
    """Exchange messages of every kind with the application's WebSocket."""
    with websockets.connect("ws://{}:{}/".format(*address), max_size=None) as client:
        for message in ("", "text", b"", b"\x00\xff", "é" * 70_000, LARGE):
            client.send(message)
            assert client.recv() == message
        client.send([b"in ", b"three ", b"fragments"])
        assert client.recv() == b"in three fragments"
        assert client.ping().wait(10)
        client.send("close")
        with pytest.raises(needs("websockets").ConnectionClosedError):
            client.recv()
        assert client.close_code == 4000


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["websockets-sansio", "wsproto"])
@program
async def test_uvicorn_serves_websockets(each_loop: Loop, protocol: str) -> None:
    needs("wsproto")
    async with serving_with_uvicorn(app, ws=protocol, ws_max_size=1 << 24) as address:
        await asyncio.gather(*(asyncio.to_thread(talk, address) for _ in range(4)))


@pytest.mark.slow
def test_uvicorn_runs_in_a_runner(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        async with serving_with_uvicorn(app) as address:
            await asyncio.to_thread(speak_http, connector(address))

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("parser", ["h11", "httptools"])
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_uvicorn_command_accepts_the_loop_by_name(parser: str, end: signal.Signals) -> None:
    command = python("-m", "uvicorn", "application:app", "--app-dir", str(HERE), "--port", "0")
    command.append("--no-access-log")
    command += ["--loop", "uringloop:new_event_loop", "--http", parser, "--lifespan", "on"]
    with process(command) as running:
        port = int(running.read_until(r"running on http://127\.0\.0\.1:(\d+)")[1])
        connect = connector(("127.0.0.1", port))
        speak_http(connect)
        request_concurrently(connect)
        in_thread(lambda: talk(("127.0.0.1", port)))
        # After its shutdown uvicorn raises the signal again.
        assert running.stop(end) in (-end, 0)
        assert "Application shutdown complete" in running.output
        assert "Finished server process" in running.output


@pytest.mark.slow
def test_a_uvicorn_program_runs_with_uringloop_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio, sys, uringloop, uvicorn\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "server = uvicorn.Server(uvicorn.Config('application:app', port=0))\n"
        "async def main():\n"
        "    assert type(asyncio.get_running_loop()) is uringloop.Loop\n"
        "    await server.serve()\n"
        "uringloop.run(main())\n"
    )
    with process(python(str(script))) as running:
        port = int(running.read_until(r"running on http://127\.0\.0\.1:(\d+)")[1])
        speak_http(connector(("127.0.0.1", port)))
        assert running.stop(signal.SIGTERM) in (-signal.SIGTERM, 0)
        assert "Finished server process" in running.output


@pytest.mark.slow
def test_uvicorn_workers_share_a_port() -> None:
    command = python("-m", "uvicorn", "application:app", "--app-dir", str(HERE), "--port", "0")
    command.append("--no-access-log")
    command += ["--loop", "uringloop:new_event_loop", "--workers", "2"]
    # Supervisor and workers do not close the listening socket and their standard input.
    with process(command, environment={"PYTHONWARNINGS": "ignore::ResourceWarning"}) as running:
        port = int(running.read_until(r"running on http://127\.0\.0\.1:(\d+)")[1])
        for _ in range(2):
            running.read_until("Application startup complete")
        connect = connector(("127.0.0.1", port))
        speak_http(connect)
        request_concurrently(connect)
        assert running.stop(signal.SIGTERM) in (-signal.SIGTERM, 0)
        assert running.output.count("Finished server process") == 2


def test_uvicorn_finds_the_loop_by_its_name() -> None:
    config = uvicorn.Config(app, loop="uringloop:new_event_loop")
    assert config.get_loop_factory() is uringloop.new_event_loop
