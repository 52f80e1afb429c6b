"""A TCP echo server: `python examples/echo.py --port 7000`, then `nc localhost 7000`.

A protocol is called with the bytes when they arrive. With `--streams` a coroutine for each
connection reads and writes: that is easier to program and costs about twice the processor time.
"""

import argparse
import asyncio
import contextlib

import uringloop


class Echo(asyncio.Protocol):
    """Sends back what it receives, and pauses reading while the write buffer is full."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer), contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def main(host: str, port: int, streams: bool) -> None:
    if streams:
        server = await asyncio.start_server(echo, host, port)
    else:
        server = await asyncio.get_running_loop().create_server(Echo, host, port)
    address = server.sockets[0].getsockname()
    print(f"listening on {address[0]}:{address[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7000)
    parser.add_argument("--streams", action="store_true")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uringloop.run(main(options.host, options.port, options.streams))
