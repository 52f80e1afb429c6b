"""What the server for uvicorn tells its clients when it ends: the last data on a connection."""

from __future__ import annotations

import pytest
from programs import needs_elsewhere
from support.roles import run_script

# The script sets OPTIONS, and defines the application after this part.
SERVER = """
    import asyncio
    import uringloop
    import uvicorn
    from uringloop.workers.uvicorn_serving import Server

    async def started_server():
        config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", **OPTIONS)
        config.load()
        server = Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        return server

    REQUEST = b"GET / HTTP/1.1\\r\\nHost: here\\r\\n\\r\\n"
    HANDSHAKE = REQUEST[:-2] + (
        b"Connection: Upgrade\\r\\nUpgrade: websocket\\r\\nSec-WebSocket-Version: 13\\r\\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n"
    )
"""

# One connection has a request in progress when the server begins to end, and another none.
ENDING = """
    async def app(scope, receive, send):
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await receive()
            return
        started.set()
        await over.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def main():
        global started, over
        started, over = asyncio.Event(), asyncio.Event()
        server = await started_server()
        address = server.servers[0].sockets[0].getsockname()
        busy_reader, busy_writer = await asyncio.open_connection(*address)
        idle_reader, idle_writer = await asyncio.open_connection(*address)
        busy_writer.write(REQUEST)
        await started.wait()
        while len(server.server_state.connections) < 2:
            await asyncio.sleep(0)
        # uvicorn does so each second.
        await server.on_tick(0)
        ending = asyncio.create_task(server.shutdown())
        await asyncio.sleep(0)
        if "ws" in OPTIONS:
            idle_writer.write(HANDSHAKE)
            print((await idle_reader.readuntil(b"\\r\\n\\r\\n")).decode().lower())
        idle_writer.close()
        over.set()
        answer = (await busy_reader.read()).decode().lower()
        busy_writer.close()
        await ending
        if "ws" not in OPTIONS:
            print(answer)

    uringloop.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("parser", ["h11", "httptools"])
def test_uvicorn_tells_the_client_of_a_request_in_progress_of_the_end(parser: str) -> None:
    needs_elsewhere("uvicorn")
    needs_elsewhere(parser)
    ended = run_script(f"    OPTIONS = {{'http': {parser!r}}}{SERVER}{ENDING}")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("http/1.1 204")
    assert ended.stdout.splitlines().count("connection: close") == 1


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["websockets-sansio", "wsproto"])
def test_the_handshake_of_a_last_websocket_does_not_end_it(protocol: str) -> None:
    for package in ("uvicorn", "h11", "websockets", "wsproto"):
        needs_elsewhere(package)
    ended = run_script(f"    OPTIONS = {{'http': 'h11', 'ws': {protocol!r}}}{SERVER}{ENDING}")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("http/1.1 101")
    lines = ended.stdout.splitlines()
    assert [line for line in lines if line.startswith("connection:")] == ["connection: upgrade"]


# A response has begun, without `Connection: close`, and goes on after the wait for last requests.
LONG_RESPONSE = """
    async def app(scope, receive, send):
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        started.set()
        await over.wait()
        await send({"type": "http.response.body", "body": b"2"})

    async def main():
        global started, over
        started, over = asyncio.Event(), asyncio.Event()
        server = await started_server()
        reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
        writer.write(REQUEST)
        await started.wait()
        ending = asyncio.create_task(server.shutdown())
        await asyncio.sleep(0.8)
        over.set()
        print(b"close" in await reader.readuntil(b"\\r\\n\\r\\n"), await reader.readexactly(2))
        if ASKS:
            writer.write(REQUEST)
            print(b"close" in await reader.readuntil(b"\\r\\n\\r\\n"), await reader.readexactly(2))
        print(await reader.read())
        writer.close()
        await ending

    uringloop.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("parser", ["h11", "httptools"])
@pytest.mark.parametrize("asks", [True, False])
def test_uvicorn_answers_a_last_request_after_a_long_response(parser: str, asks: bool) -> None:
    needs_elsewhere("uvicorn")
    needs_elsewhere(parser)
    done = run_script(f"    OPTIONS, ASKS = {{'http': {parser!r}}}, {asks}{SERVER}{LONG_RESPONSE}")
    last = "True b'12'\n" if asks else ""
    assert (done.stdout, done.stderr) == (f"False b'12'\n{last}b''\n", "")


# The client sends two messages after the server's close frame: one before it has read the frame.
WEBSOCKET = """
    import os
    import socket
    import tempfile

    async def app(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    def frame(opcode, payload):
        return bytes([0x80 | opcode, 0x80 | len(payload), 0, 0, 0, 0]) + payload

    async def receive(client, size):
        data = b""
        while len(data) < size and (part := await loop.sock_recv(client, size - len(data))):
            data += part
        return data

    async def main():
        global loop
        loop = asyncio.get_running_loop()
        server = await started_server()
        listening = server.servers[0].sockets[0]
        client = socket.socket(listening.family)
        client.setblocking(False)
        await loop.sock_connect(client, listening.getsockname())
        await loop.sock_sendall(client, HANDSHAKE)
        while not (await loop.sock_recv(client, 4096)).endswith(b"\\r\\n\\r\\n"):
            pass
        ending = asyncio.create_task(server.shutdown())
        while server.server_state.connections and not ended(client):
            await asyncio.sleep(0.01)
        await loop.sock_sendall(client, frame(1, b"message"))
        print(await receive(client, 4))
        if ANSWERS:
            await loop.sock_sendall(client, frame(8, bytes([3, 244])))
        print(await receive(client, 1))
        if ANSWERS:
            client.close()
        await ending
        print(len(server.server_state.connections))
        client.close()

    def ended(client):
        try:
            return bool(client.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    with tempfile.TemporaryDirectory() as folder:
        if UNIX:
            OPTIONS["uds"] = os.path.join(folder, "socket")
        uringloop.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["websockets-sansio", "wsproto"])
@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
@pytest.mark.parametrize("answers", [False, True], ids=["silent", "answers"])
def test_a_client_that_sends_can_read_the_close_frame(
    protocol: str, unix: bool, answers: bool
) -> None:
    for package in ("uvicorn", "h11", "websockets", "wsproto"):
        needs_elsewhere(package)
    options = {"http": "h11", "ws": protocol}
    settings = f"    OPTIONS, UNIX, ANSWERS = {options}, {unix}, {answers}"
    ended = run_script(f"{settings}{SERVER}{WEBSOCKET}")
    # The close frame with the code 1012 (RFC 6455), the end, and no connection.
    lines = [repr(bytes([0x88, 2, 3, 244])), repr(b""), "0", ""]
    assert (ended.stdout, ended.stderr) == ("\n".join(lines), "")
