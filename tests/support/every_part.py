"""A program that imports every module of the package, uses every part, and reports the GIL.

Its last line is `GIL on` or `GIL off`: an import of a compiled module that does not declare support
for free threads switches the GIL on. Other packages than this one and the standard library cannot
be imported, because they could do that too. The argument is an empty folder.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.abc
import pkgutil
import socket
import sys
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from support.tls_contexts import client_context, server_context  # noqa: E402

# Modules for other packages: all but these must be importable.
FOR_OTHERS = {
    "uringloop._pyinstaller.hook-uringloop",
    "uringloop.testing.pytest_seeds",
    "uringloop.pytest_plugin",
    "uringloop.workers.aiohttp",
    "uringloop.workers.granian",
    "uringloop.workers.hypercorn",
    "uringloop.workers.uvicorn",
    "uringloop.workers.uvicorn_server",
    "uringloop.workers.uvicorn_serving",
}
LOCALHOST = "127.0.0.1"
MESSAGE = bytes(range(256)) * 1024


class Refusing(importlib.abc.MetaPathFinder):
    """Refuses the packages of others."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        package = fullname.partition(".")[0]
        if package not in sys.stdlib_module_names and package not in ("uringloop", "support"):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


sys.meta_path.insert(0, Refusing())

import uringloop  # noqa: E402
from uringloop._cpython import gil  # noqa: E402


def import_all() -> dict[str, ModuleType]:
    """Import every module below the package, and return those that need no other package."""

    def failed(name: str) -> None:
        raise ImportError(name)

    imported = {}
    for found in pkgutil.walk_packages(uringloop.__path__, "uringloop.", failed):
        try:
            imported[found.name] = importlib.import_module(found.name)
        except ImportError:
            if found.name not in FOR_OTHERS:
                raise
    return imported


# ── every part ───────────────────────────────────────────────────────────────────────────────


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def ask(tls: bool) -> None:
    """Send MESSAGE to a server of this loop and back, plain or over TLS."""
    server = await asyncio.start_server(serve, LOCALHOST, 0, ssl=server_context() if tls else None)
    async with server:
        reader, writer = await asyncio.open_connection(
            *server.sockets[0].getsockname()[:2],
            ssl=client_context() if tls else None,
            server_hostname="localhost" if tls else None,
        )
        writer.write(MESSAGE)
        assert await reader.readexactly(len(MESSAGE)) == MESSAGE
        writer.close()
        await writer.wait_closed()


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.received = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.received.set_result(data)


async def send_datagram() -> None:
    loop = asyncio.get_running_loop()
    receiver, protocol = await loop.create_datagram_endpoint(Datagrams, (LOCALHOST, 0))
    sender, _ = await loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, remote_addr=receiver.get_extra_info("sockname")
    )
    sender.sendto(b"datagram")
    assert await protocol.received == b"datagram"
    sender.close()
    receiver.close()


async def use_sockets() -> None:
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        readable = asyncio.Event()
        loop.add_reader(left, readable.set)
        await loop.sock_sendall(right, b"bytes")
        await readable.wait()
        loop.remove_reader(left)
        assert await loop.sock_recv(left, 10) == b"bytes"


async def use_files(folder: Path) -> None:
    async with uringloop.open(folder / "file", "w+", encoding="utf-8") as text:
        await text.write("one\ntwo\n")
        await text.seek(0)
        assert [line async for line in text] == ["one\n", "two\n"]
    async with uringloop.open(folder / "file", "rb", buffering=0) as raw:
        assert await raw.readall() == b"one\ntwo\n"
    await uringloop.fs.write_atomic(folder / "file", b"atomic")
    assert await uringloop.fs.read_bytes(folder / "file") == b"atomic"
    assert await uringloop.fs.listdir(folder) == ["file"]
    async with uringloop.tempfile.TemporaryDirectory(dir=folder) as other:
        await uringloop.fs.copyfile(folder / "file", Path(other) / "copy")
    async with uringloop.tempfile.SpooledTemporaryFile(max_size=10) as spooled:
        await spooled.write(bytes(100))


async def use_a_process() -> None:
    process = await asyncio.create_subprocess_exec(
        "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert (await process.communicate(b"through pipes"))[0] == b"through pipes"
    assert process.returncode == 0


async def use_the_monitor(folder: Path) -> None:
    path = uringloop.monitor.start(folder / "monitor")
    assert path is not None
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"\n")
    assert b"loops" in await reader.readline()
    writer.close()
    await writer.wait_closed()
    uringloop.monitor.stop()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, uringloop.Loop)
    assert "uringloop_turns" in uringloop.prometheus.text(loop)


async def use_the_benchmark() -> None:
    loadgen = importlib.import_module("uringloop.bench.loadgen")
    server = await asyncio.start_server(serve, LOCALHOST, 0)

    def load() -> int:
        generator = loadgen.LoadGenerator(server.sockets[0].getsockname(), 3, 100)
        try:
            generator.connect()
            operations: int = generator.run(0.05)[0]
            generator.drain()
        finally:
            generator.close()
        return operations

    async with server:
        assert await asyncio.to_thread(load) > 0


async def main(folder: Path) -> None:
    async with asyncio.timeout(60):
        await ask(tls=False)
        await ask(tls=True)
        await send_datagram()
        await use_sockets()
        await use_files(folder)
        await use_a_process()
        await use_the_monitor(folder)
        await use_the_benchmark()
        await asyncio.get_running_loop().getaddrinfo("localhost", 80)


async def one_of_several() -> None:
    await ask(tls=False)
    await ask(tls=True)


if __name__ == "__main__":
    modules = import_all()
    for backend in ("auto", "soft"):
        place = Path(sys.argv[1]) / backend
        place.mkdir()
        with asyncio.Runner(loop_factory=lambda: uringloop.Loop(backend=backend)) as runner:  # noqa: B023
            runner.run(main(place))
    uringloop.run_threads(one_of_several, 2)
    assert uringloop.doctor.examine()["features"]
    print(*modules)
    print("GIL on" if gil.enabled() else "GIL off")
