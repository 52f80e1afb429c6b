"""connect_file: a regular file read as a stream, as connect_read_pipe reads a pipe."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import run

import uringloop

Loop = asyncio.AbstractEventLoop


class Recorder(asyncio.Protocol):
    """Records its calls and the data that it receives."""

    def __init__(self, stop_after: int = -1) -> None:
        self.calls: list[str] = []
        self.data = bytearray()
        self.lost = asyncio.get_running_loop().create_future()
        self.stop_after = stop_after
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        if self.stop_after >= 0 and len(self.data) > self.stop_after:
            self.transport.pause_reading()
        if self.calls[-1] != "data":
            self.calls.append("data")

    def eof_received(self) -> None:
        self.calls.append("eof")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.calls.append(f"lost {exc}")
        self.lost.set_result(exc)


@pytest.fixture(params=[0, 1, 100, (3 << 20) + 5])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(request.param))
    return path


def test_a_whole_file_is_delivered_followed_by_eof(each_loop: Loop, source: Path) -> None:
    async def main() -> None:
        file = open(source, "rb")
        transport, protocol = await uringloop.connect_file(Recorder, file)
        assert protocol.calls[0] == "made"
        assert protocol.transport is transport
        assert transport.get_extra_info("file") is file
        assert await asyncio.wait_for(protocol.lost, 10) is None
        assert protocol.data == source.read_bytes()
        expected = ["made", "data", "eof", "lost None"]
        assert protocol.calls == [each for each in expected if each != "data" or protocol.data]
        assert file.closed
        assert transport.is_closing()

    run(each_loop, main)


def test_a_stream_reader_reads_a_file_by_lines(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = [b"%d\n" % number for number in range(100_000)]
    path.write_bytes(b"".join(lines))

    async def main() -> None:
        reader = asyncio.StreamReader()
        file = open(path, "rb")
        file.seek(len(lines[0]))
        await uringloop.connect_file(lambda: asyncio.StreamReaderProtocol(reader), file)
        assert [line async for line in reader] == lines[1:]

    run(each_loop, main)


def test_nothing_is_delivered_while_reading_is_paused(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(2 << 20))

    async def main() -> None:
        file = open(path, "rb")
        transport, protocol = await uringloop.connect_file(lambda: Recorder(0), file)
        while transport.is_reading():
            await asyncio.sleep(0)
        rounds = 0
        while not protocol.lost.done():
            before = len(protocol.data)
            await asyncio.sleep(0.01)
            assert len(protocol.data) == before
            rounds += 1
            transport.resume_reading()
            # Neither a second resume nor a resume after a pause starts a second reader.
            transport.resume_reading()
            transport.pause_reading()
            transport.resume_reading()
            while transport.is_reading() and not protocol.lost.done():
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert rounds > 2
        assert protocol.data == path.read_bytes()

    run(each_loop, main)


def test_close_drops_the_rest_of_the_file(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(bytes(8 << 20))

    async def main() -> None:
        for turns in range(6):
            file = open(path, "rb")
            transport, protocol = await uringloop.connect_file(Recorder, file)
            for _ in range(turns):
                await asyncio.sleep(0)
            transport.close()
            transport.close()
            assert transport.is_closing()
            assert not transport.is_reading()
            assert await asyncio.wait_for(protocol.lost, 10) is None
            assert "eof" not in protocol.calls
            assert protocol.calls[-1] == "lost None"
            assert file.closed

    run(each_loop, main)


def test_an_exception_of_data_received_is_reported_and_reading_goes_on(
    each_loop: Loop, tmp_path: Path
) -> None:
    path = tmp_path / "source"
    path.write_bytes(bytes(1 << 20))
    handler_calls: list[dict[str, Any]] = []
    each_loop.set_exception_handler(lambda _, context: handler_calls.append(context))

    class Failing(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            raise RuntimeError("data")

    async def main() -> int:
        file = open(path, "rb")
        _, protocol = await uringloop.connect_file(Failing, file)
        await asyncio.wait_for(protocol.lost, 10)
        return len(protocol.data)

    assert run(each_loop, main) == 1 << 20
    assert {str(call["exception"]) for call in handler_calls} == {"data"}


def test_a_directory_is_refused(each_loop: Loop, tmp_path: Path) -> None:
    class Folder:
        def __init__(self) -> None:
            self.fd = os.open(tmp_path, os.O_RDONLY)

        def fileno(self) -> int:
            return self.fd

    folder = Folder()
    try:
        with pytest.raises(IsADirectoryError):
            run(each_loop, lambda: uringloop.connect_file(Recorder, folder))
    finally:
        os.close(folder.fd)


def test_a_pipe_is_passed_to_connect_read_pipe(each_loop: Loop) -> None:
    async def main() -> bytes:
        r, w = os.pipe()
        _, protocol = await uringloop.connect_file(Recorder, open(r, "rb", 0))
        os.write(w, b"through a pipe")
        os.close(w)
        await asyncio.wait_for(protocol.lost, 10)
        return bytes(protocol.data)

    assert run(each_loop, main) == b"through a pipe"


def test_an_unreferenced_transport_warns_and_closes_its_file(
    each_loop: Loop, tmp_path: Path
) -> None:
    path = tmp_path / "source"
    path.write_bytes(bytes(1 << 20))

    async def main() -> Any:
        file = open(path, "rb")
        transport, _ = await uringloop.connect_file(lambda: Recorder(0), file)
        while transport.is_reading():
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        return file

    file = run(each_loop, main)
    with pytest.warns(ResourceWarning, match="unclosed transport <FileReadTransport paused"):
        gc.collect()
    assert file.closed


@pytest.mark.parametrize("kind", ["file", "pipe", "null"])
def test_standard_input_may_be_a_file_a_pipe_or_a_device(tmp_path: Path, kind: str) -> None:
    script = """
import asyncio, sys, uringloop
async def main():
    reader = asyncio.StreamReader()
    await uringloop.connect_file(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(len(await reader.read()))
uringloop.run(main())
"""
    data = b"" if kind == "null" else bytes(300_000)
    (tmp_path / "input").write_bytes(data)
    options: dict[str, Any] = {"capture_output": True, "check": True, "timeout": 60}
    command = [sys.executable, "-c", script]
    if kind == "pipe":
        done = subprocess.run(command, input=data, **options)
    else:
        with open("/dev/null" if kind == "null" else tmp_path / "input", "rb") as stdin:
            done = subprocess.run(command, stdin=stdin, **options)
    assert int(done.stdout) == len(data)


@pytest.mark.parametrize("moment", [0, 1, 3])
def test_the_end_of_a_program_leaves_no_reading_task(tmp_path: Path, moment: int) -> None:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(8 << 20))
    left: list[asyncio.Task[object]] = []
    protocols: list[Recorder] = []

    async def main() -> None:
        _, protocol = await uringloop.connect_file(Recorder, open(path, "rb"))
        protocols.append(protocol)
        for _ in range(moment):
            await asyncio.sleep(0)
        left.extend(asyncio.all_tasks() - {asyncio.current_task()})

    # asyncio.run() cancels all tasks; one that began then would be reported as pending.
    uringloop.run(main())
    assert left
    assert all(task.done() for task in left)
    assert [protocol.lost.result() for protocol in protocols] == [None]


class NoMemory:
    """A file whose read finds no memory for its bytes."""

    async def _read_some(self, _size: int) -> bytes:
        raise MemoryError


def test_a_protocol_without_memory_for_data_is_disconnected(
    each_loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "source"
    path.write_bytes(b"some")

    async def main() -> None:
        file = open(path, "rb")
        transport, protocol = await uringloop.connect_file(lambda: Recorder(0), file)
        transport.pause_reading()
        await asyncio.sleep(0.01)

        monkeypatch.setattr(transport, "_source", NoMemory())
        monkeypatch.setattr(transport, "_held", b"")
        transport.resume_reading()
        assert isinstance(await asyncio.wait_for(protocol.lost, 10), MemoryError)

    run(each_loop, main)
