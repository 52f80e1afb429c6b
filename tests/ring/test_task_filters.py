"""Loops under a filter for io_uring that their process has inherited (Linux 7.0).

A loop must notice a refused operation before it matters, and do the work in another way. Each test
runs a child process, since a filter cannot be removed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
from support import seccomp, task_filters
from support.loops import on_io_uring

HAS_FILTERS = task_filters.are_supported()
under_filters = pytest.mark.skipif(not HAS_FILTERS, reason="filters need Linux 7.0")
NAMES = task_filters.example()
NEEDED = ("POLL_ADD", "ASYNC_CANCEL", "SEND", "SENDMSG", "RECV", "RECVMSG")
OPTIONAL = sorted({*NAMES["SOCKETS"], *NAMES["FILES"]}.difference(NEEDED))

IMPORTS = """
import asyncio, tempfile, uringloop
"""

# Every operation that files have, with the result of each.
FILES = """
import asyncio, os, sys, tempfile
import uringloop
from uringloop import fs

async def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "file")
        async with uringloop.open(path, "w+b", buffering=0) as file:
            await file.fallocate(0, 10)
            await file.write(b"x" * 300_000)
            await file.pwritev([b"a", b"b"], 0)
            await file.fsync()
            await file.truncate(200_000)
            await file.seek(0, os.SEEK_END)
            await file.seek(10)
            assert len(await file.read(200_000)) == 199_990
            parts = [bytearray(1), bytearray(2)]
            assert await file.preadv(parts, 0) == 3 and parts == [b"a", b"bx"], parts
        await fs.write_atomic(path, b"whole")
        assert await fs.read_bytes(path) == b"whole"
        await fs.mkdir(path + ".d")
        await fs.link(path, path + ".2")
        await fs.symlink(path, path + ".3")
        await fs.rename(path + ".2", path + ".4")
        assert (await fs.stat(path + ".3")).st_size == 5
        for name in (".3", ".4"):
            await fs.unlink(path + name)
        await fs.rmdir(path + ".d")
        print(sorted(os.listdir(folder)))

uringloop.run(asyncio.wait_for(main(), 60))
"""

RING = """
loop = uringloop.Loop()
print(loop.backend, *features.refused_operations())
loop.close()
"""


def lines_of(kind: str, script: str, **variables: str) -> list[str]:
    """Run *script* under a filter; it must end well and print nothing on standard error."""
    ended = task_filters.run(kind, "-c", textwrap.dedent(script), **variables)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout.splitlines()


# ── on every kernel ──────────────────────────────────────────────────────────────────────────


@on_io_uring
def test_the_program_with_every_operation_of_files_needs_no_filter() -> None:
    ended = seccomp.run("-c", FILES)
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", "['file']\n")


@pytest.mark.skipif(HAS_FILTERS, reason="the kernel has filters")
def test_the_example_runs_nothing_without_filters() -> None:
    command = [sys.executable, str(task_filters.EXAMPLE), "echo", "ran"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "needs Linux 7.0" in ended.stderr


# ── one operation ────────────────────────────────────────────────────────────────────────────


@on_io_uring
@under_filters
def test_a_loop_does_without_each_of_these_operations() -> None:
    lines = [*seccomp.ROUNDS_OUTPUT, "['file']"]
    assert task_filters.run_each(seccomp.ROUNDS + FILES + RING, *OPTIONAL) == {
        name: [*lines, f"io_uring IORING_OP_{name}"] for name in OPTIONAL
    }


@on_io_uring
@under_filters
def test_a_loop_without_one_of_these_operations_is_on_the_software_ring() -> None:
    script = """
loop = uringloop.Loop()
print(loop.backend, loop.backend_reason)
uringloop.Loop(backend="io_uring")
"""
    told = task_filters.run_each(seccomp.ROUNDS + script, *NEEDED)
    for operation in NEEDED:
        name = f"IORING_OP_{operation}"
        cause = (
            f"Permission denied ({name}): "
            f"a filter that this process has inherited refuses {name}; allow {name} there"
        )
        error = f"PermissionError [Errno 13] {cause}"
        assert told[operation] == [*seccomp.ROUNDS_OUTPUT, f"soft {cause}", error]


@on_io_uring
@under_filters
def test_the_doctor_names_the_refused_operations() -> None:
    told = json.loads(task_filters.run("OPENAT+STATX", "-m", "uringloop.doctor", "--json").stdout)
    assert told["backend"] == "io_uring"
    assert told["operations refused"] == "IORING_OP_OPENAT, IORING_OP_STATX"
    assert any("threads" in line and "IORING_OP_STATX" in line for line in told["advice"])
    told = json.loads(task_filters.run("SEND", "-m", "uringloop.doctor", "--json").stdout)
    assert told["backend"] == "soft"
    assert told["operations refused"] == "IORING_OP_SEND"
    assert "to use io_uring: allow IORING_OP_SEND there" in told["advice"]


# ── a single request ─────────────────────────────────────────────────────────────────────────


@on_io_uring
@under_filters
def test_an_open_that_a_filter_refuses_fails_with_its_path() -> None:
    script = """
        async def main(path):
            async with uringloop.open(path) as file:
                print(await file.read())
            try:
                await uringloop.open(path + ".new", "w")
            except PermissionError as exc:
                print(exc.filename == path + ".new")

        with tempfile.NamedTemporaryFile("w") as file:
            print("text", file=file, end="", flush=True)
            uringloop.run(asyncio.wait_for(main(file.name), 60))
    """
    lines = lines_of("OPENAT:create", IMPORTS + textwrap.dedent(script))
    assert lines == ["text", "True"]


# Conversations whose requests are refused from some message on, and what their ends see. A
# transport that is the only one with bytes to send in its turn would send them by a system call.
CONVERSATION = """
async def serve(reader, writer):
    try:
        while line := await reader.readline():
            writer.writelines([line[:2], line[2:]])
            await writer.drain()
    except OSError as exc:
        print("server", exc)
    writer.close()

async def ask(address):
    reader, writer = await asyncio.open_connection(*address)
    try:
        for _ in range(50):
            writer.write(b"line\\n")
            if not await reader.readline():
                raise EOFError
        print("complete")
    except (OSError, EOFError) as exc:
        print("client", repr(exc))
    writer.close()

async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        await asyncio.gather(*(ask(address) for _ in range(5)))

async def in_time():
    await asyncio.wait_for(main(), 10)

loops = []

def new_loop():
    loops.append(uringloop.Loop())
    return loops[0]

try:
    uringloop.run(in_time(), loop_factory=new_loop)
finally:
    # Not in the coroutine, which is not begun if the poll for wake-ups is refused first.
    turns = loops[0].stats()["turns"]
    print("turns", turns if turns > 1000 else "few")
"""


@on_io_uring
@under_filters
def test_refused_requests_end_with_an_error() -> None:
    kinds = [f"{name}:late" for name in ("SEND", "SENDMSG", "RECV", "POLL_ADD", "ASYNC_CANCEL")]
    told = task_filters.run_each(IMPORTS + CONVERSATION, *kinds)
    # Nothing cancels here.
    assert told.pop("ASYNC_CANCEL:late") == ["complete"] * 5 + ["turns few"]
    for lines in told.values():
        assert any("Permission denied" in line for line in lines), told
        assert "turns few" in lines, told
        assert not any("TimeoutError" in line for line in lines), told


# ── lists, and the example ───────────────────────────────────────────────────────────────────


@on_io_uring
@under_filters
def test_an_inherited_list_takes_the_place_of_the_loops_own() -> None:
    told = json.loads(task_filters.run("list:STATX", "-m", "uringloop.doctor", "--json").stdout)
    assert told["backend"] == "io_uring"
    assert told["restrictions of the ring"] == "inherited"
    assert told["operations refused"] == "IORING_OP_STATX"
    lines = lines_of("list:STATX", seccomp.ROUNDS + FILES + RING)
    assert lines == [*seccomp.ROUNDS_OUTPUT, "['file']", "io_uring IORING_OP_STATX"]


@on_io_uring
@under_filters
@pytest.mark.parametrize("missing", ["RECV", "flags"])
def test_an_inherited_list_that_is_too_short_gives_the_software_ring(missing: str) -> None:
    lines = lines_of(f"list:{missing}", seccomp.ROUNDS + "print(uringloop.Loop().backend)")
    assert lines == [*seccomp.ROUNDS_OUTPUT, "soft"]


@on_io_uring
@under_filters
@pytest.mark.parametrize("options", [[], ["--files"]])
def test_a_loop_uses_io_uring_under_the_filter_of_the_example(options: list[str]) -> None:
    program = [sys.executable, "-c", seccomp.ROUNDS + FILES + RING]
    ended = subprocess.run(
        [sys.executable, str(task_filters.EXAMPLE), *options, *program],
        env=seccomp.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    *lines, ring = ended.stdout.splitlines()
    assert lines == [*seccomp.ROUNDS_OUTPUT, "['file']"]
    refused = set() if options else {f"IORING_OP_{name}" for name in NAMES["FILES"]}
    assert ring.split()[0] == "io_uring"
    assert set(ring.split()[1:]) == refused
