"""URINGLOOP_TRACE: the format of its lines, and that every operation begins and ends once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.debug_reports import without_slow_calls
from support.loops import backend
from support.roles import PATIENCE

LINE = re.compile(r"\[(?P<pid>\d+)\.(?P<loop>\d+)\] (?P<time>\d+\.\d{6}) (?P<text>.*)")

# Operations of all kinds: streams, datagrams, large writes, files, folders, processes.
PROGRAM = """
import asyncio, os, socket, sys, tempfile
import uringloop
from uringloop import fs

async def serve(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()

async def streams():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    reader, writer = await asyncio.open_connection(*address)
    # More than the sockets take: the ring has to send the rest.
    writer.write(bytes(8 << 20))
    assert len(await reader.readexactly(8 << 20)) == 8 << 20
    writer.close()
    server.close()
    return address

async def unix_streams():
    ours, peer = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    # The first receives are polls.
    for _ in range(9):
        peer.send(b"x")
        assert await reader.read(1) == b"x"
    peer.close()
    assert await reader.read() == b""
    writer.close()

async def datagrams():
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
    )
    transport.sendto(b"x", transport.get_extra_info("sockname"))
    transport.close()

async def files():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "one")
        async with uringloop.open(path, "wb") as f:
            await f.write(bytes(100))
            os.fsync(f.fileno())
        await fs.mkdir(os.path.join(folder, "many"))
        await fs.rename(path, os.path.join(folder, "other"))
        try:
            async with uringloop.open(os.path.join(folder, "n" * 250)):
                print("opened")
        except FileNotFoundError:
            print("not there")
        await fs.unlink(os.path.join(folder, "other"))

async def main():
    address = await streams()
    try:
        await asyncio.open_connection(*address)
    except ConnectionRefusedError:
        print("refused")
    await unix_streams()
    await datagrams()
    await files()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await process.wait()

uringloop.run(main())
uringloop.run(asyncio.sleep(0))
"""


def run(program: str, trace: str | None, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "URINGLOOP_TRACE"}
    if trace is not None:
        environment["URINGLOOP_TRACE"] = trace
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def lines(text: str) -> list[re.Match[str]]:
    found = [LINE.fullmatch(line) for line in without_slow_calls(text).splitlines()]
    assert all(found), text
    return [match for match in found if match is not None]


def traced(program: str, folder: Path) -> list[re.Match[str]]:
    done = run(program, str(folder / "trace"), folder)
    assert (done.returncode, without_slow_calls(done.stderr)) == (0, "")
    return lines((folder / "trace").read_text())


def test_every_operation_begins_and_ends_once(tmp_path: Path) -> None:
    begun: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    names = set()
    for line in traced(PROGRAM, tmp_path):
        name, _, rest = line["text"].partition(" ")
        if name in ("cancel", "io_uring_enter"):
            continue
        key = f"{line['loop']} {name}"
        if rest.startswith("="):
            # No completion comes before the submission, or after the terminal completion.
            assert begun[key] == 1
            assert ended[key] == 0
            ended[key] += not rest.endswith(", more")
        else:
            begun[key] += 1
            names.add(name.partition("#")[0])
    assert begun == ended
    assert names >= {"recv", "sendmsg", "poll", "openat", "mkdirat", "unlinkat"} - (
        # SEND or SENDMSG sends the rest of a write, depending on its size.
        {"sendmsg"} if "send" in names else set()
    )


def test_a_line_names_the_operation_and_its_owner(tmp_path: Path) -> None:
    text = "\n".join(line["text"] for line in traced(PROGRAM, tmp_path))
    assert re.search(r"^poll#\d+ fd=\d+ multishot for Listener$", text, re.M)
    assert re.search(r"^recv#\d+ = \d+, more$", text, re.M)
    assert re.search(r"^recv#\d+ fd=\d+.* for StreamTransport$", text, re.M)
    # Beside the kernel's multishot receive a poll watches for the peer's end.
    polls = re.findall(r"^(poll#\d+) fd=\d+ for StreamTransport$", text, re.M)
    ends = [name for name in polls if re.search(rf"^{name} = 0x2010$", text, re.M)]
    assert bool(ends) == (backend() == "io_uring")
    assert re.search(r"^cancel poll#\d+\npoll#\d+ = -125 ECANCELED$", text, re.M)
    assert re.search(r'^openat#\d+ ".*/n{250}" for FileOperation$', text, re.M)
    assert re.search(r"^openat#\d+ = -2 ENOENT$", text, re.M)


def test_lines_number_the_loops_and_their_times_increase(tmp_path: Path) -> None:
    found = traced(PROGRAM, tmp_path)
    assert {line["loop"] for line in found} == {"1", "2"}
    times = [float(line["time"]) for line in found if line["loop"] == "1"]
    assert times == sorted(times)


def test_a_path_that_is_too_long_for_a_line_is_cut(tmp_path: Path) -> None:
    # The import comes before the run: on a busy machine it is a slow callback.
    program = """
import uringloop
from uringloop import open
async def main():
    try:
        async with open("/".join(["n" * 200] * 10)):
            print("opened")
    except FileNotFoundError:
        print("not there")
uringloop.run(main())
"""
    found = traced(program, tmp_path)
    assert max(len(line.group()) for line in found) == 511
    assert found[-1]["text"].endswith("ECANCELED")


def test_the_trace_file_is_appended_to_and_private(tmp_path: Path) -> None:
    before = len(traced("import uringloop; uringloop.new_event_loop().close()", tmp_path))
    assert (tmp_path / "trace").stat().st_mode & 0o777 == 0o600
    program = "import asyncio, uringloop; uringloop.run(asyncio.sleep(0))"
    assert len({line["pid"] for line in traced(program, tmp_path)[before:]}) == 1


@pytest.mark.parametrize("value", [None, "", "0"])
def test_trace_is_off_by_default(value: str | None, tmp_path: Path) -> None:
    done = run("import asyncio, uringloop; uringloop.run(asyncio.sleep(0))", value, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_value_1_traces_to_standard_error(tmp_path: Path) -> None:
    done = run("import asyncio, uringloop; uringloop.run(asyncio.sleep(0))", "1", tmp_path)
    assert done.returncode == 0
    assert lines(done.stderr)[-1]["text"].startswith("poll#")


def test_closed_standard_error_does_not_disturb_the_program(tmp_path: Path) -> None:
    program = "import asyncio, os, uringloop; os.close(2); uringloop.run(asyncio.sleep(0))"
    done = run(program, "1", tmp_path)
    assert (done.returncode, without_slow_calls(done.stderr)) == (0, "")


def test_broken_pipe_of_the_trace_does_not_disturb_the_program(tmp_path: Path) -> None:
    program = """
import asyncio, os, uringloop
source, sink = os.pipe()
os.dup2(sink, 2)
os.close(source)
os.close(sink)
uringloop.run(asyncio.sleep(0))
"""
    assert run(program, "1", tmp_path).returncode == 0


def test_a_trace_file_that_cannot_be_opened_raises(tmp_path: Path) -> None:
    done = run("import uringloop; uringloop.new_event_loop()", "/nowhere/at/all", tmp_path)
    assert done.returncode == 1
    assert "FileNotFoundError" in done.stderr
    assert "/nowhere/at/all" in done.stderr
    assert "ResourceWarning" not in done.stderr
