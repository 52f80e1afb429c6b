"""The table of system calls: a filter refuses each, with EPERM and ENOSYS, to a loop on each ring.

The program under the filter has many parts. It prints which of them fail, and by which exception.
"""

from __future__ import annotations

import platform
import re
import textwrap
from pathlib import Path

import pytest
from support import seccomp
from support.loops import each_ring

from uringloop._ring import features, system_calls

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "sandboxes.md"

PROGRAM = """
import asyncio, os, signal, socket, sys, tempfile, threading
import uringloop, uringloop.fs as fs

async def echo(reader, writer):
    while data := await reader.read(100_000):
        writer.writelines([data[:7], data[7:]])
        await writer.drain()
    writer.close()

async def ask(opening, size):
    reader, writer = await opening
    data = os.urandom(size)
    for start in range(0, size, 100_000):
        writer.write(data[start:start + 100_000])
    writer.write_eof()
    same = await reader.read() == data
    writer.close()
    assert same

async def tcp():
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        for size in (9, 2_000_000):
            await ask(asyncio.open_connection(*address), size)

async def unix():
    path = os.path.join(folder, "socket")
    async with await asyncio.start_unix_server(echo, path):
        for size in (9, 500_000):
            await ask(asyncio.open_unix_connection(path), size)

class Mail(asyncio.DatagramProtocol):
    def __init__(self):
        self.arrived = asyncio.get_running_loop().create_future()
    def datagram_received(self, data, address):
        self.arrived.set_result((data, address))

async def datagrams():
    loop = asyncio.get_running_loop()
    near, there = await loop.create_datagram_endpoint(Mail, ("127.0.0.1", 0))
    far, back = await loop.create_datagram_endpoint(
        Mail, remote_addr=near.get_extra_info("sockname"))
    far.sendto(b"there")
    data, sender = await there.arrived
    near.sendto(data + b" and back", sender)
    assert (await back.arrived)[0] == b"there and back"
    near.close()
    far.close()

async def child():
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)
    assert await process.communicate(b"through") == (b"through", None)
    assert process.returncode == 0

async def reader():
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        for _ in range(40):
            readable = loop.create_future()
            loop.add_reader(sock, lambda: readable.done() or readable.set_result(sock.recv(9)))
            loop.call_soon(sock.sendto, b"ready", sock.getsockname())
            assert await readable == b"ready"
        loop.remove_reader(sock)

async def signals():
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, signalled.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await signalled.wait()
    loop.remove_signal_handler(signal.SIGUSR1)

async def threads():
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    threading.Thread(target=loop.call_soon_threadsafe, args=(woken.set_result, None)).start()
    await woken
    assert await loop.run_in_executor(None, str, 5) == "5"

async def files():
    path = os.path.join(folder, "file")
    async with uringloop.open(path, "w+b") as file:
        assert await file.write(b"x" * 100_000) == 100_000
        await file.fsync()
        assert await file.seek(-1, os.SEEK_END) == 99_999
        await file.seek(0)
        assert await file.read() == b"x" * 100_000
    facts, known = await fs.stat(path), os.stat(path)
    assert [getattr(facts, name) for name in NAMES] == [getattr(known, name) for name in NAMES]
    await fs.write_atomic(path, b"new")
    assert await fs.read_bytes(path) == b"new"
    await fs.rename(path, path + "2")
    await fs.unlink(path + "2")

NAMES = [name for name in dir(os.stat_result) if name.startswith("st_") and "time" not in name]
NAMES.append("st_mtime_ns")

async def pipes():
    loop = asyncio.get_running_loop()
    reading, writing = os.pipe()
    stream = asyncio.StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb"))
    transport, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(writing, "wb"))
    transport.writelines([b"through ", b"a pipe"])
    transport.close()
    assert await stream.read() == b"through a pipe"

async def sleep():
    loop = asyncio.get_running_loop()
    before = loop.stats()["turns"]
    await asyncio.sleep(0.03)
    # A loop that spins has thousands.
    assert loop.stats()["turns"] - before < 20

async def main():
    for part in (sleep, tcp, unix, datagrams, child, reader, signals, threads, files, pipes):
        try:
            await asyncio.wait_for(part(), 20)
        except Exception as exc:
            print(part.__name__, type(exc).__name__, exc)
    print("end", asyncio.get_running_loop().backend)

with tempfile.TemporaryDirectory() as folder:
    try:
        loop = uringloop.new_event_loop()
    except OSError as exc:
        print("loop", type(exc).__name__, exc)
        os._exit(0)
    loop.set_exception_handler(lambda loop, context: None)
    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
"""

# The parts that fail on a ring where a call is refused, and nothing takes its place.
LOOP = ["loop"]
FAILS: dict[tuple[str, str], list[str]] = {
    ("epoll_create1", "io_uring"): LOOP,
    ("epoll_create1", "soft"): LOOP,
    ("epoll_ctl", "io_uring"): ["reader"],
    ("epoll_ctl", "soft"): LOOP,
    ("pipe2", "io_uring"): ["child", "pipes"],
    ("pipe2", "soft"): ["child", "pipes"],
}
# Without these the loop is on the software ring.
RING = {"io_uring_setup", "io_uring_enter", "io_uring_register", "madvise"}

# Those that this architecture has. An `accept4` that goes on failing has tests of its own.
NAMES = [
    call.name
    for call in system_calls.TABLE
    if call.name != "accept4" and features.number_of_call(call.name) >= 0
]


def failures(backend: str, error: str, *names: str) -> tuple[dict[str, str], str]:
    """Run the program where *names* are refused; return the failures by part, and the last ring."""
    numbers = "+".join(str(features.number_of_call(name)) for name in names)
    chosen = "auto" if backend == "io_uring" else backend
    lines = seccomp.lines_of(PROGRAM, under=f"{numbers}-{error}", URINGLOOP_BACKEND=chosen)
    told = dict(line.split(" ", 1) for line in lines)
    return told, told.pop("end", "none")


@pytest.mark.slow
@each_ring
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
@pytest.mark.parametrize("name", NAMES)
def test_only_what_the_table_says_fails_without_a_call(name: str, error: str, backend: str) -> None:
    told, ring = failures(backend, error, name)
    expected = FAILS.get((name, backend), [])
    assert list(told) == expected, told
    if expected == LOOP:
        # The message accuses the call, not the policy for io_uring.
        assert f"refuses the system call {name} " in told["loop"]
        assert "io_uring" not in told["loop"]
    else:
        assert ring == ("soft" if name in RING else backend)


@pytest.mark.slow
@each_ring
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_any_of_the_calls_that_wait_at_epoll_is_enough(backend: str, error: str) -> None:
    calls = ["epoll_wait", "epoll_pwait", "epoll_pwait2"]
    for kept in calls:
        refused = [name for name in calls if name != kept and features.number_of_call(name) >= 0]
        assert failures(backend, error, *refused) == ({}, backend)


@each_ring
def test_there_is_no_loop_with_a_timerfd_that_cannot_be_set(backend: str) -> None:
    """Not one that no thread can wake."""
    number = {"x86_64": 286, "aarch64": 86}[platform.machine()]
    script = f"""
        import errno, uringloop
        from support import seccomp
        from uringloop._ring import features

        eventfd2 = features.number_of_call("eventfd2")
        seccomp.refuse(seccomp.SECCOMP_RET_ERRNO | errno.EPERM, (eventfd2, {number}))
        try:
            uringloop.Loop(backend={backend!r})
        except PermissionError as exc:
            print("eventfd2" in str(exc))
    """
    assert seccomp.lines_of(textwrap.dedent(script)) == ["True"]


@each_ring
def test_a_loop_runs_without_a_descriptor_for_signals(backend: str) -> None:
    """Python checks the descriptor by fcntl(2), and does not start without that."""
    number = {"x86_64": 72, "aarch64": 25}[platform.machine()]
    script = """
        import asyncio, errno, os, signal, threading, uringloop
        from support import seccomp

        async def main():
            try:
                asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print)
            except RuntimeError as exc:
                print(exc)
            # Once the loop sleeps, which it does at the latest in the second of two tries.
            ended = threading.Event()
            def interrupt():
                while not ended.wait(0.05):
                    os.kill(os.getpid(), signal.SIGINT)
            threading.Thread(target=interrupt).start()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        seccomp.refuse(seccomp.SECCOMP_RET_ERRNO | errno.EPERM, (NUMBER,))
        try:
            uringloop.run(main())
        except KeyboardInterrupt:
            print("interrupted")
    """
    script = f"NUMBER = {number}\n{textwrap.dedent(script)}"
    lines = seccomp.lines_of(script, URINGLOOP_BACKEND=backend)
    assert lines == ["[Errno 1] Operation not permitted", "interrupted"]


@pytest.mark.parametrize("call", system_calls.TABLE, ids=lambda call: call.name)
def test_a_call_that_is_not_refused_is_not_called_refused(call: system_calls.SystemCall) -> None:
    if call.name.startswith("io_uring") or call.name == "statmount":
        pytest.skip("the machine may refuse it")
    assert not system_calls.is_refused(call.name)


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS", "KILL"])
def test_a_refused_call_is_recognized(error: str) -> None:
    script = """
        from uringloop._ring import system_calls
        print(system_calls.is_refused("statx"), system_calls.is_refused("openat2"))
        print(*system_calls.advice(), sep="\\n")
    """
    number = features.number_of_call("statx")
    first, *advice = seccomp.lines_of(script, under=f"{number}-{error}")
    assert first == "True False"
    assert "the system call statx is refused here: `fstatat` takes its place" in advice


def test_the_document_has_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", DOCUMENT.read_text(), re.M)
    known = {row[0]: row[1:] for row in rows}
    for call in system_calls.TABLE:
        instead = ", ".join(f"`{name}`" for name in call.instead)
        assert known[call.name] == (call.use, instead, call.without)
