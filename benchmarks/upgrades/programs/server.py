"""A server on asyncio alone, whose port other processes may share: server.py LOOP PORT."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys

from upgrades.programs.asgi import header

LAST = b"connection: close\r\n"


async def main(port: int) -> None:
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    present: set[asyncio.Task[object]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        present.add(task)
        try:
            is_last = False
            while not is_last:
                request = await reader.readuntil(b"\r\n\r\n")
                path, _, seconds = request.split(b" ")[1].partition(b"?")
                if path == b"/slow":
                    await asyncio.sleep(float(seconds))
                is_last = ending.is_set()
                head = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n%s: %s\r\n" % header()
                writer.write(head + (LAST if is_last else b"") + b"\r\nhello")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            # The client has ended the connection.
            pass
        finally:
            writer.close()
            present.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", port, reuse_port=True)
    await ending.wait()
    if hasattr(server, "drain"):
        await server.drain(timeout=5)
    else:
        server.close()
        if present:
            await asyncio.wait(present, timeout=5)


with asyncio.Runner(loop_factory=importlib.import_module(sys.argv[1]).new_event_loop) as runner:
    runner.run(main(int(sys.argv[2])))
