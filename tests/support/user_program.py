"""A user's program, checked by `make lint` with mypy and pyright in strict mode, and run by a test.

The package's annotations and stubs must cover every name that it uses.
"""

import asyncio
import socket
import sys
from pathlib import Path

import uringloop
from uringloop import fs, prometheus, tempfile


class Echo(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(100))
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def files(folder: Path) -> int:
    async with uringloop.open(folder / "text", "w+", encoding="utf-8") as text:
        await text.write("one\ntwo\n")
        await text.seek(0)
        lines = [line.upper() async for line in text]
    async with uringloop.open(folder / "data", "wb") as data:
        written = await data.write(b"x")
    async with uringloop.open(folder / "data", "rb", buffering=0) as raw:
        first = await raw.read(1)
    async with tempfile.TemporaryDirectory() as name:
        await fs.write_text(Path(name) / "a", "text")
        assert (await fs.read_text(Path(name) / "a")).isascii()
        assert (await fs.stat(name)).st_mode
    async with tempfile.NamedTemporaryFile("wb") as named:
        await named.write(b"x")
    await fs.mkdir(folder / "new", 0o755)
    assert sorted(await fs.listdir(folder)) == ["data", "new", "text"]
    await fs.rmdir(folder / "new")
    return len(lines) + written + len(first or b"")


async def main(folder: Path) -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, uringloop.Loop)
    # `python -X dev` reports a callback that takes 100 ms, as one may on a busy machine.
    loop.slow_callback_duration = 10.0
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    transport, protocol = await loop.create_connection(Echo, host, port)
    transport.write(b"x")
    assert protocol.transport is transport
    handle = loop.call_later(1.0, print, "late", 1)
    handle.cancel()
    transport.close()
    server.close()
    ours, theirs = socket.socketpair()
    adopted, echo = await asyncio.wrap_future(loop.adopt(ours, Echo))
    assert echo.transport is adopted
    adopted.abort()
    theirs.close()
    streams = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*streams.sockets[0].getsockname())
    writer.write(b"ping")
    assert await reader.read() == b"ping"
    writer.close()
    streams.close()
    stats = loop.stats()
    text = prometheus.text(loop)
    assert stats["turns"] + 1 > 0
    assert text.startswith("# HELP")
    assert loop.backend in ("io_uring", "soft")
    assert loop.backend_reason
    return await asyncio.wait_for(files(folder), 60)


if __name__ == "__main__":
    here = Path(sys.argv[1])
    total: int = uringloop.run(main(here))
    with asyncio.Runner(loop_factory=uringloop.new_event_loop) as runner:
        total += runner.run(main(here), context=None)
    total += sum(uringloop.run_threads(lambda: main(here), 1))
    last = uringloop.Loop(backend="soft", batch_wait_us=100)
    total += last.run_until_complete(main(here))
    last.close()
    print(total)
