"""A log shipper: `python examples/log_shipper.py /var/log/app.log --to 127.0.0.1:9000`.

Sends each line that is appended to one of the files, as JSON with the file's name, over one
connection; after an error it reconnects and sends the rest. A rotated file is read from its start.
"""

import argparse
import asyncio
import contextlib
import json

import uringloop
from uringloop.files.binary import RawFile

LOOK_SECONDS, RETRY_SECONDS, LINES_MAX = 0.1, 1.0, 10_000


async def follow(path: str, file: RawFile, lines: asyncio.Queue[bytes]) -> None:
    """Read until *path* is another file, including everything appended to the old file."""
    inode = (await uringloop.fs.stat(file.fileno())).st_ino
    offset, part, replaced = 0, b"", False
    while True:
        while block := await file.pread(65536, offset):
            offset += len(block)
            *whole, part = (part + block).split(b"\n")
            for line in whole:
                text = line.decode(errors="replace")
                await lines.put(json.dumps({"file": path, "line": text}).encode())
        if replaced:
            return
        await asyncio.sleep(LOOK_SECONDS)
        replaced = True
        with contextlib.suppress(FileNotFoundError):
            facts = await uringloop.fs.stat(path)
            replaced = facts.st_ino != inode
            if not replaced and facts.st_size < offset:
                offset, part = 0, b""


async def tail(path: str, lines: asyncio.Queue[bytes]) -> None:
    """Follow a path forever; the limit of the queue bounds the memory."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            async with uringloop.open(path, "rb", buffering=0) as file:
                await follow(path, file, lines)
        await asyncio.sleep(LOOK_SECONDS)


async def ship(lines: asyncio.Queue[bytes], host: str, port: int) -> None:
    """Send the lines; after an error, send the last line again, as it may not have arrived."""
    line = None
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, port)
            with contextlib.closing(writer):
                while True:
                    line = line or await lines.get()
                    writer.write(line + b"\n")
                    await writer.drain()
                    line = None
        await asyncio.sleep(RETRY_SECONDS)


async def main(paths: list[str], host: str, port: int) -> None:
    lines: asyncio.Queue[bytes] = asyncio.Queue(LINES_MAX)
    async with asyncio.TaskGroup() as group:
        group.create_task(ship(lines, host, port))
        for path in paths:
            group.create_task(tail(path, lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--to", default="127.0.0.1:9000", help="HOST:PORT")
    options = parser.parse_args()
    name, _, number = options.to.rpartition(":")
    with contextlib.suppress(KeyboardInterrupt):
        uringloop.run(main(options.paths, name, int(number)))
