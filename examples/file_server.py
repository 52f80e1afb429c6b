"""A file server: `python examples/file_server.py --root docs`, `curl 127.0.0.1:8080/files.md`.

Serves GET requests for files below one folder, over kept connections, in blocks, with backpressure.
For a web site use aiohttp, whose `web.static` is faster on this loop without a change.
"""

import argparse
import asyncio
import contextlib
import mimetypes
import stat
import urllib.parse
from pathlib import Path

import uringloop

BLOCK_BYTES, IDLE_SECONDS_MAX = 256 * 1024, 60.0


async def answer(writer: asyncio.StreamWriter, root: Path, method: str, target: str) -> None:
    """Answer one request."""

    def head(status: str, size: int, *more: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {size}", *more, "\r\n"]
        writer.write("\r\n".join(lines).encode())

    name = urllib.parse.unquote(urllib.parse.urlsplit(target).path).lstrip("/")
    path = (root / name).resolve()
    if method != "GET":
        return head("405 Method Not Allowed", 0, "Allow: GET")
    if not path.is_relative_to(root):
        return head("403 Forbidden", 0)
    try:
        async with uringloop.open(path, "rb", buffering=0) as file:
            facts = await uringloop.fs.stat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                return head("403 Forbidden", 0)
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            head("200 OK", facts.st_size, f"Content-Type: {kind}")
            left = facts.st_size
            while left and (block := await file.read(min(left, BLOCK_BYTES))):
                left -= len(block)
                writer.write(block)
                await writer.drain()
            if left:  # The file was truncated: abort instead of sending a wrong answer.
                writer.transport.abort()
    except (FileNotFoundError, NotADirectoryError):
        head("404 Not Found", 0)
    except (IsADirectoryError, PermissionError):
        head("403 Forbidden", 0)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, root: Path) -> None:
    """Answer the requests of a connection, one after the other."""
    gone = (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
    with contextlib.closing(writer), contextlib.suppress(*gone):
        while not writer.is_closing():
            async with asyncio.timeout(IDLE_SECONDS_MAX):
                request = await reader.readuntil(b"\r\n\r\n")
            parts = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            if len(parts) != 3:
                return writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            await answer(writer, root, parts[0], parts[1])


async def main(port: int, root: Path) -> None:
    server = await asyncio.start_server(lambda r, w: serve(r, w, root), "127.0.0.1", port)
    print("listening on {}:{}".format(*server.sockets[0].getsockname()), flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--root", type=Path, default=Path())
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uringloop.run(main(options.port, options.root.resolve()))
