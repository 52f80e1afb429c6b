"""A program that tests an installed package: an echo and a file, on each backend.

Needs Python and the package only, so that it runs in the images of cibuildwheel and on other
distributions than the one that built the wheel. The arguments are the backends, by default both. An
unavailable backend ends the program with an exception.
"""

from __future__ import annotations

import asyncio
import platform
import sys
import tempfile
from pathlib import Path

import uringloop
from uringloop._ring import features

# More than a socket's buffer holds, so that both sides wait for each other.
MESSAGE = bytes(range(256)) * 4096
# A loop that hangs ends the program after this many seconds, long before its caller's timeout.
PATIENCE_S = 60


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def echo(message: bytes) -> bytes:
    """Send *message* to a server of this loop, and return the answer."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(message)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    return answer


async def write_and_read(path: Path, message: bytes) -> bytes:
    async with uringloop.open(path, "wb") as file:
        await file.write(message)
    async with uringloop.open(path, "rb") as file:
        return await file.read()


async def check(path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        if await echo(MESSAGE) != MESSAGE:
            raise SystemExit("the echo is not what was sent")
        if await write_and_read(path, MESSAGE) != MESSAGE:
            raise SystemExit("the file is not what was written")


def main() -> None:
    version = f"Python {platform.python_version()}, {' '.join(platform.libc_ver())}"
    for backend in sys.argv[1:] or ("io_uring", "soft"):
        with tempfile.TemporaryDirectory() as folder:
            # An unknown name raises ValueError.
            loop = uringloop.Loop(backend=backend)  # type: ignore[arg-type]
            try:
                loop.run_until_complete(check(Path(folder) / "file"))
            finally:
                loop.close()
        print(f"{backend}: echo and file ({version}, liburing {features.LIBURING})")


if __name__ == "__main__":
    main()
