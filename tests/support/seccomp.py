"""A seccomp filter for the system calls of io_uring, as in containers, for a child process.

As a script it installs the filter and executes a command: `python seccomp.py EPERM command...`
makes the calls fail with EPERM; KILL ends the process, as some sandboxes do; `enter-EPERM` refuses
io_uring_enter only, `332+437-ENOSYS` the calls with these numbers. `only:4+22` refuses
io_uring_register but for these uses. `run` starts such a child.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

# <linux/prctl.h>, <linux/seccomp.h>, <linux/filter.h>.
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
SECCOMP_RET_ALLOW = 0x7FFF0000
SECCOMP_RET_ERRNO = 0x00050000
SECCOMP_RET_KILL_PROCESS = 0x80000000
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
# Where struct seccomp_data has the second argument, on a little-endian machine.
SECOND_ARGUMENT = 24

# The same numbers on every architecture.
SETUP, ENTER, REGISTER = CALLS = (425, 426, 427)
ALONE = {"setup": SETUP, "enter": ENTER, "register": REGISTER}

# Seconds; no child of these tests takes one. A child that hangs must not hang the suite.
PATIENCE = 60


def instruction(code: int, true: int, false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, true, false, value)


def install(program: bytes) -> None:
    """Install a filter in this process and its children."""
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
        or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0) != 0
    ):
        raise OSError(ctypes.get_errno(), "prctl")


def refuse(answer: int, calls: tuple[int, ...] = CALLS) -> None:
    """Install a filter that answers *calls* with *answer*, in this process and its children."""
    program = instruction(LOAD_WORD, 0, 0, 0)
    for number, call in enumerate(calls):
        program += instruction(JUMP_IF_EQUAL, len(calls) - number, 0, call)
    program += instruction(RETURN, 0, 0, SECCOMP_RET_ALLOW)
    program += instruction(RETURN, 0, 0, answer)
    install(program)


def allow_registrations(numbers: list[int]) -> None:
    """Refuse io_uring_register unless all 64 bits of its second argument are one of *numbers*."""
    allowed = len(numbers) + 1
    program = instruction(LOAD_WORD, 0, 0, 0)
    program += instruction(JUMP_IF_EQUAL, 0, allowed + 3, REGISTER)
    program += instruction(LOAD_WORD, 0, 0, SECOND_ARGUMENT + 4)
    program += instruction(JUMP_IF_EQUAL, 0, allowed, 0)
    program += instruction(LOAD_WORD, 0, 0, SECOND_ARGUMENT)
    for left, number in enumerate(reversed(numbers)):
        program += instruction(JUMP_IF_EQUAL, len(numbers) - left, 0, number)
    program += instruction(RETURN, 0, 0, SECCOMP_RET_ERRNO | errno.EPERM)
    program += instruction(RETURN, 0, 0, SECCOMP_RET_ALLOW)
    install(program)


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with *variables* as the only ones of uringloop.

    The warning about a refused ring is off, since most of these tests refuse it. The package and
    the tests' modules are on PYTHONPATH.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("URINGLOOP_")}
    # Imported here, because the filtered script runs without site-packages.
    import uringloop

    places = (Path(uringloop.__file__).resolve().parents[1], Path(__file__).resolve().parents[1])
    kept["URINGLOOP_WARN_FALLBACK"] = "0"
    # Some of these programs end by os._exit, which does not flush stdout.
    kept["PYTHONUNBUFFERED"] = "1"
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, places)), **variables}


def run(
    *arguments: str, under: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with *arguments*, under the filter named *under* if given."""
    command = [sys.executable, *arguments]
    if under is not None:
        command = [sys.executable, "-IS", __file__, under, *command]
    return run_child(command, PATIENCE, variables)


def run_child(
    command: list[str], patience: float, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run *command*, with *variables* as the only ones of uringloop, for *patience* at most."""
    return subprocess.run(
        command,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=patience,
        check=False,
    )


def lines_of(script: str, *options: str, under: str | None = None, **variables: str) -> list[str]:
    """Run *script* in a child, which must exit with 0 and an empty stderr; return its lines."""
    # Imported here, because the filtered script finds no other module.
    from support.debug_reports import without_slow_calls

    ended = run(*options, "-c", textwrap.dedent(script), under=under, **variables)
    assert (ended.returncode, without_slow_calls(ended.stderr)) == (0, ""), ended
    return ended.stdout.splitlines()


# ── programs to run under a filter ───────────────────────────────────────────────────────────

# A program for asyncio that does not mention uringloop.
PROGRAM = """
import asyncio, os, signal, tempfile, threading

async def echo(reader, writer):
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()
    await writer.wait_closed()

async def ask(port, number):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        writer.write(b"%d " % number * 10_000 + b"\\n")
        answer = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return len(answer)

def copy():
    with tempfile.TemporaryFile() as file:
        file.write(b"through a file")
        file.seek(0)
        return file.read()

async def main():
    loop = asyncio.get_running_loop()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        print(await asyncio.gather(*(ask(port, number) for number in range(20))))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)
    print(await process.communicate(b"through a process"), process.returncode)
    print(await loop.run_in_executor(None, copy))
    signalled = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, signalled.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    print(await signalled.wait())
    woken = loop.create_future()
    call = (woken.set_result, "through a thread")
    threading.Thread(target=loop.call_soon_threadsafe, args=call).start()
    print(await woken)
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)
    except TimeoutError:
        print("in time")

asyncio.run(main())
"""

# Connections over TCP and UNIX sockets until EOF, datagrams in both directions, a file.
ROUNDS = """
import asyncio, os, sys, tempfile
import uringloop
from uringloop._ring import features

class Mail(asyncio.DatagramProtocol):
    def __init__(self):
        self.arrived = asyncio.get_running_loop().create_future()
    def connection_made(self, transport):
        self.transport = transport
    def datagram_received(self, data, address):
        self.arrived.set_result((data, address))

async def echo(reader, writer):
    writer.write(await reader.read())
    writer.close()
    await writer.wait_closed()

async def ask(opening, size):
    reader, writer = await opening
    data = os.urandom(size)
    writer.write(data)
    writer.write_eof()
    same = await reader.read() == data
    writer.close()
    await writer.wait_closed()
    return same

async def main(folder):
    loop = asyncio.get_running_loop()
    # In development mode a step of 0.1 s, on a busy machine, would be reported.
    loop.slow_callback_duration = 60
    path = os.path.join(folder, "socket")
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        asked = [ask(asyncio.open_connection(*address), size) for size in (0, 1, 99, 500_000)]
        print("tcp", await asyncio.gather(*asked))
    async with await asyncio.start_unix_server(echo, path):
        asked = [ask(asyncio.open_unix_connection(path), size) for size in (0, 1, 99, 500_000)]
        print("unix", await asyncio.gather(*asked))
    left, there = await loop.create_datagram_endpoint(Mail, ("127.0.0.1", 0))
    right, back = await loop.create_datagram_endpoint(
        Mail, remote_addr=left.get_extra_info("sockname"))
    right.sendto(b"there")
    data, sender = await there.arrived
    left.sendto(data + b" and back", sender)
    print("udp", (await back.arrived)[0])
    left.close()
    right.close()
    async with uringloop.open(os.path.join(folder, "file"), "w+b") as file:
        await file.write(b"x" * 100_000)
        await file.seek(0)
        print("file", await file.read() == b"x" * 100_000)

with tempfile.TemporaryDirectory() as folder:
    uringloop.run(asyncio.wait_for(main(folder), 20))
"""
ROUNDS_OUTPUT = [
    "tcp [True, True, True, True]",
    "unix [True, True, True, True]",
    "udp b'there and back'",
    "file True",
]


# ── as a script ──────────────────────────────────────────────────────────────────────────────


def main() -> None:
    name, *command = sys.argv[1:]
    if name.startswith("only:"):
        allow_registrations([int(number) for number in name.removeprefix("only:").split("+")])
        os.execvp(command[0], command)
    named, _, answer = name.rpartition("-")
    calls: tuple[int, ...] = CALLS
    if named:
        calls = tuple(ALONE[call] if call in ALONE else int(call) for call in named.split("+"))
    if answer == "KILL":
        # The process is expected to be killed: it needs no core dump.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        refuse(SECCOMP_RET_KILL_PROCESS, calls)
    else:
        refuse(SECCOMP_RET_ERRNO | getattr(errno, answer), calls)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
