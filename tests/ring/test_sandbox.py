"""A program closes its sandbox while it has a loop: system calls of io_uring fail from then on.

For example, a service opens its sockets and then installs a seccomp filter. Its loop must keep the
connections, whichever of the three system calls is refused. Each test runs a child process, since a
filter cannot be removed.
"""

from __future__ import annotations

import errno
import os

import pytest
from support import seccomp
from support.loops import on_io_uring

pytestmark = on_io_uring

CALLS = ["setup", "enter", "register", "setup+register", "setup+register+enter"]
each_call = pytest.mark.parametrize("calls", CALLS)
each_error = pytest.mark.parametrize("error", ["EPERM", "EACCES", "ENOSYS"])

PRELUDE = """
import asyncio, errno, os, signal, socket, sys, tempfile, threading
import uringloop
from support import seccomp
from support.tls_contexts import client_context, server_context

def close_sandbox(calls, error):
    numbers = tuple(seccomp.ALONE[call] for call in calls.split("+"))
    seccomp.refuse(seccomp.SECCOMP_RET_ERRNO | getattr(errno, error), numbers)

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)

async def many_datagrams():
    # More than an endpoint polls for: then it registers a buffer pool.
    arrived = asyncio.Queue()
    class Mailbox(asyncio.DatagramProtocol):
        def datagram_received(self, data, address):
            arrived.put_nowait(data)
    mail, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        Mailbox, ("127.0.0.1", 0))
    for _ in range(9):
        mail.sendto(b"x", mail.get_extra_info("sockname"))
        await arrived.get()
    return mail
"""

# Every kind of traffic starts before the sandbox is closed, and again afterwards.
TRAFFIC = (
    PRELUDE
    + """
SIZE = 1_500_000

class Mail(asyncio.DatagramProtocol):
    def __init__(self):
        self.arrived = asyncio.Queue()
    def datagram_received(self, data, address):
        self.arrived.put_nowait(data)

async def echo(reader, writer):
    while data := await reader.read(100_000):
        writer.write(data)
        await writer.drain()
    writer.close()

async def there_and_back(connection):
    reader, writer = connection
    # After some small messages a connection receives into registered buffers.
    for size in [1] * 8 + [SIZE]:
        data = os.urandom(size)
        writer.write(data)
        if await reader.readexactly(size) != data:
            return False
    return True

async def end(connection):
    reader, writer = connection
    writer.write_eof() if writer.can_write_eof() else writer.close()
    ended = await reader.read() == b""
    writer.close()
    return ended

class Mailboxes:
    @classmethod
    async def open(cls):
        self = cls()
        loop = asyncio.get_running_loop()
        self.left, self.there = await loop.create_datagram_endpoint(Mail, ("127.0.0.1", 0))
        address = self.left.get_extra_info("sockname")
        self.right, self.back = await loop.create_datagram_endpoint(Mail, remote_addr=address)
        return self
    async def exchange(self):
        self.right.sendto(b"there")
        self.left.sendto(
            await self.there.arrived.get() + b" and back", self.right.get_extra_info("sockname"))
        return await self.back.arrived.get()

class Watched:
    def __init__(self):
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.told = asyncio.Queue()
        asyncio.get_running_loop().add_reader(self.near, self.tell)
    def tell(self):
        self.told.put_nowait(self.near.recv(100))
    async def exchange(self):
        self.far.send(b"watched")
        return await self.told.get()

async def cat():
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)

async def main(folder):
    loop = asyncio.get_running_loop()
    path = os.path.join(folder, "socket")
    tcp = await asyncio.start_server(echo, "127.0.0.1", 0)
    unix = await asyncio.start_unix_server(echo, path)
    tls = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=server_context())

    async def connect(kind):
        if kind == "unix":
            return await asyncio.open_unix_connection(path)
        server, context = (tcp, None) if kind == "tcp" else (tls, client_context())
        name = "localhost" if context else None
        address = server.sockets[0].getsockname()
        return await asyncio.open_connection(*address, ssl=context, server_hostname=name)

    async def write_and_read(file):
        await file.seek(0, os.SEEK_END)
        await file.write(b"x" * 100_000)
        await file.flush()
        await file.seek(0)
        return await file.read()

    kinds = "tcp", "unix", "tls"
    early = {}
    if WHEN == "later":
        early = {kind: await connect(kind) for kind in kinds}
        print(all([await there_and_back(connection) for connection in early.values()]))
        mail = await Mailboxes.open()
        await mail.exchange()
    watched = Watched()
    await watched.exchange()
    process = await cat()
    file = await uringloop.open(os.path.join(folder, "file"), "w+b")
    await write_and_read(file)
    signalled = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, signalled.set)
    waiting = loop.create_task(connect("tcp"))

    close_sandbox(CALLS, ERROR)

    late = {kind: await connect(kind) for kind in kinds}
    connections = [*early.values(), *late.values(), await waiting]
    print(all(await asyncio.gather(*map(there_and_back, connections))))
    if WHEN == "first":
        mail = await Mailboxes.open()
    print(await mail.exchange(), await (await Mailboxes.open()).exchange())
    print(await watched.exchange(), await Watched().exchange())
    print(await process.communicate(b"early"), await (await cat()).communicate(b"late"))
    print(len(await write_and_read(file)))
    await file.close()
    print(await uringloop.fs.read_bytes(file.name) == b"x" * 200_000)
    near, far = socket.socketpair()
    near.setblocking(False)
    receiving = loop.create_task(loop.sock_recv(near, 10))
    await asyncio.sleep(0)
    far.send(b"socket")
    print(await receiving)
    os.kill(os.getpid(), signal.SIGUSR1)
    await signalled.wait()
    woken = loop.create_future()
    threading.Thread(target=loop.call_soon_threadsafe, args=(woken.set_result, "woken")).start()
    print(await woken, await loop.run_in_executor(None, str, "executed"))
    print(all([await end(connection) for connection in connections]))
    for server in (tcp, unix, tls):
        server.close()
        await server.wait_closed()
    print(loop.backend, "refused while the loop ran" in loop.backend_reason)

with tempfile.TemporaryDirectory() as folder:
    uringloop.run(asyncio.wait_for(main(folder), 40))
"""
)

TRAFFIC_OUTPUT = [
    "True",
    "b'there and back' b'there and back'",
    "b'watched' b'watched'",
    "(b'early', None) (b'late', None)",
    "200000",
    "True",
    "b'socket'",
    "woken executed",
    "True",
]


def run(program: str, calls: str, error: str = "EPERM", **names: object) -> list[str]:
    """Run *program* in a child with these names; return the lines that it prints."""
    values = {"CALLS": calls, "ERROR": error, **names}
    lines = [f"{name} = {value!r}" for name, value in values.items()]
    return seccomp.lines_of("\n".join([*lines, program]))


@each_error
@each_call
@pytest.mark.parametrize("when", ["first", "later"])
def test_all_traffic_continues_when_the_sandbox_closes(when: str, calls: str, error: str) -> None:
    """With *when* "later", the loop has connections and registered buffers before it closes."""
    *lines, rings = run(TRAFFIC, calls, error, WHEN=when)
    assert lines == (["True"] if when == "later" else []) + TRAFFIC_OUTPUT
    # io_uring_setup is not needed again in the same thread, nor io_uring_register for the buffers.
    replaced = "enter" in calls or ("register" in calls and when == "first")
    assert rings == ("soft True" if replaced else "io_uring False")


# ── operations in flight ─────────────────────────────────────────────────────────────────────

# A peer that does not read, so that a send is unfinished when the sandbox is closed.
UNFINISHED = (
    PRELUDE
    + """
from support.roles import narrow_pair

class Broken(asyncio.Protocol):
    def __init__(self):
        self.lost = asyncio.get_running_loop().create_future()
    def connection_lost(self, exc):
        self.lost.set_result(exc)

async def main():
    loop = asyncio.get_running_loop()
    near, peer = narrow_pair(100_000)
    transport, protocol = await loop.create_connection(Broken, sock=near)
    data = os.urandom(2_000_000)
    transport.write(data)
    while transport.get_write_buffer_size() == len(data):
        await asyncio.sleep(0)
    # By now the kernel has the send of the rest, for which the socket has no room.
    for _ in range(10):
        await asyncio.sleep(0)
    close_sandbox(CALLS, ERROR)
    mail = await many_datagrams()
    transport.close()
    received = bytearray()
    while part := await loop.sock_recv(peer, 1 << 20):
        received += part
    exc = await protocol.lost
    print(exc, received == data, data.startswith(received), loop.backend)
    mail.close()

uringloop.run(asyncio.wait_for(main(), 40))
"""
)


@pytest.mark.parametrize("calls", ["register", "setup+register"])
def test_software_ring_finishes_an_unfinished_send(calls: str) -> None:
    assert run(UNFINISHED, calls) == ["None True True soft"]


def test_send_of_unknown_progress_ends_its_connection_with_econnaborted() -> None:
    # Sending the rest could leave out bytes, or send some twice.
    (line,) = run(UNFINISHED, "enter")
    assert line == f"[Errno 103] {os.strerror(errno.ECONNABORTED)} False True soft"


# Clients send without a pause; a callback closes the sandbox at some moment.
LOAD = (
    PRELUDE
    + """
ROUNDS = 20

async def echo(reader, writer):
    while size := await reader.read(4):
        writer.write(await reader.readexactly(int.from_bytes(size, "big")))
        await writer.drain()
    writer.close()

async def ask(server, number):
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    for turn in range(ROUNDS):
        data = os.urandom(10 ** (number % MAGNITUDES) * (turn % 9 + 1))
        writer.write(len(data).to_bytes(4, "big") + data)
        if await reader.readexactly(len(data)) != data:
            return False
        if (number, turn) == (CLIENTS // 2, ROUNDS // 2):
            close_sandbox(CALLS, ERROR)
            asyncio.get_running_loop().create_task(many_datagrams())
    writer.write_eof()
    ended = await reader.read() == b""
    writer.close()
    return ended

async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    print(all(await asyncio.gather(*(ask(server, number) for number in range(CLIENTS)))))
    print(asyncio.get_running_loop().backend)

uringloop.run(asyncio.wait_for(main(), 40))
"""
)


# With 300 connections a turn fills the submission queue. Where the enter is refused, the messages
# are so small that they fit the sockets, since an unfinished send would break its connection.
@pytest.mark.parametrize("clients", [20, 300])
@pytest.mark.parametrize(("calls", "magnitudes"), [("register", 5), ("enter", 4)])
def test_no_byte_is_lost_or_doubled_under_load(clients: int, calls: str, magnitudes: int) -> None:
    assert run(LOAD, calls, MAGNITUDES=magnitudes, CLIENTS=clients) == ["True", "soft"]


# ── between runs ─────────────────────────────────────────────────────────────────────────────

RUNS = (
    PRELUDE
    + """
async def ask(peer, data):
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(peer, data)
    return await loop.sock_recv(peer, 100)

async def use_a_file():
    # The first file limits the number of worker threads (io_uring_register).
    async with uringloop.open(os.__file__, "rb") as file:
        return len(await file.read(10))

loop = uringloop.Loop(backend=BACKEND)
near, peer = socket.socketpair()
peer.setblocking(False)

def before():
    loop.run_until_complete(loop.create_connection(Echo, sock=near))
    print(loop.run_until_complete(ask(peer, b"before")))

def after():
    if not RUNS_BEFORE:
        loop.run_until_complete(loop.create_connection(Echo, sock=near))
    print(loop.run_until_complete(ask(peer, b"after")))
    print(loop.run_until_complete(use_a_file()), loop.backend)

if RUNS_BEFORE:
    before()
close_sandbox(CALLS, ERROR)
if THREADS:
    thread = threading.Thread(target=after)
    thread.start()
    thread.join()
    print(loop.run_until_complete(ask(peer, b"back")))
else:
    after()
loop.close()
"""
)


@each_call
@pytest.mark.parametrize("backend", ["auto", "io_uring"])
def test_first_run_may_come_after_the_sandbox_is_closed(calls: str, backend: str) -> None:
    lines = run(RUNS, calls, RUNS_BEFORE=False, THREADS=False, BACKEND=backend)
    assert lines == ["b'after'", f"10 {'io_uring' if calls == 'setup' else 'soft'}"]


@each_call
def test_loop_can_change_its_thread_after_the_sandbox_is_closed(calls: str) -> None:
    lines = run(RUNS, calls, RUNS_BEFORE=True, THREADS=True, BACKEND="auto")
    assert lines == ["b'before'", "b'after'", "10 soft", "b'back'"]


SHARED = (
    PRELUDE
    + """
import subprocess

# As a process that accepts does.
LOCK = "import fcntl, sys; fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_SH, 1); sys.stdin.read()"

async def ask(address):
    reader, writer = await asyncio.open_connection(*address)
    for _ in range(9):
        writer.write(b"ask")
        if await asyncio.wait_for(reader.readexactly(3), 10) != b"ask":
            return False
    writer.close()
    return True

async def main():
    loop = asyncio.get_running_loop()
    sock = socket.create_server(("127.0.0.1", 0))
    server = await loop.create_server(Echo, sock=sock)
    fd = sock.fileno()
    other = None if ALONE else subprocess.Popen(
        [sys.executable, "-IS", "-c", LOCK, str(fd)], stdin=subprocess.PIPE, pass_fds=[fd])
    await asyncio.sleep(0.2)
    if EARLY:
        print(all(await asyncio.gather(*(ask(sock.getsockname()) for _ in range(30)))))
    close_sandbox(CALLS, ERROR)
    for _ in range(3):
        print(all(await asyncio.gather(*(ask(sock.getsockname()) for _ in range(30)))))
        await asyncio.sleep(0.1)
    server.close()
    if other is not None:
        other.communicate()

uringloop.run(main())
"""
)


@each_call
@pytest.mark.parametrize("early", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("alone", [False, True], ids=["company", "alone"])
def test_a_shared_socket_is_served_when_the_sandbox_closes(
    calls: str, early: bool, alone: bool
) -> None:
    lines = run(SHARED, calls, EARLY=early, ALONE=alone)
    assert lines == ["True"] * (3 + early)


# ── a kernel thread that submits ─────────────────────────────────────────────────────────────

SQPOLL = (
    PRELUDE
    + """
async def main():
    echo = lambda reader, writer: writer.write(b"echo")
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    close_sandbox(CALLS, ERROR)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    print(await reader.readexactly(4), asyncio.get_running_loop().backend)

loop = uringloop.Loop(sqpoll=1)
try:
    loop.run_until_complete(asyncio.wait_for(main(), 40))
except PermissionError as exc:
    print(exc)
os._exit(0)
"""
)


@pytest.mark.parametrize("calls", ["setup", "register", "setup+register"])
def test_ring_with_a_kernel_thread_works_on_without_setup_and_register(calls: str) -> None:
    assert run(SQPOLL, calls) == ["b'echo' io_uring"]


# The loop has nothing to do but to sleep, for which it enters.
SLEEPING = (
    PRELUDE
    + """
async def main():
    close_sandbox(CALLS, ERROR)
    await asyncio.sleep(0.05)

loop = uringloop.Loop(sqpoll=1)
try:
    loop.run_until_complete(main())
except PermissionError as exc:
    print(exc)
os._exit(0)
"""
)


def test_ring_with_a_kernel_thread_raises_an_error_that_names_the_call() -> None:
    # The thread keeps receiving, and a new ring would lose those bytes.
    assert run(SLEEPING, "enter") == ["[Errno 1] Operation not permitted (io_uring_enter)"]


# The sandbox closes in the turn after bytes have arrived: they are in receive buffers then, and
# only the new ring's queue knows in which. One connection is about to receive by the ring: it gives
# the buffers to the new ring.
BUFFERS_IN_USE = (
    PRELUDE
    + """
class Reader(asyncio.Protocol):
    def data_received(self, data):
        self.got += data

async def connected(listener, messages):
    far = socket.create_connection(listener.getsockname())
    near, _ = listener.accept()
    _, reader = await asyncio.get_running_loop().create_connection(Reader, sock=near)
    for _ in range(messages):
        await are_received([(reader, far)])
    return reader, far

async def are_received(connections):
    for number, (reader, far) in enumerate(connections):
        reader.got = b""
        far.sendall(bytes([number]) * 100)
    while any(len(reader.got) < 100 for reader, _ in connections):
        await asyncio.sleep(0)
    return [reader.got for reader, _ in connections] == [
        bytes([number]) * 100 for number in range(len(connections))]

async def main():
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    connections = [await connected(listener, RECEIVED)]
    for _ in range(30):
        connections.append(await connected(listener, 9))
    idle, other = socket.socketpair()
    idle.setblocking(False)

    def close():
        close_sandbox(CALLS, ERROR)
        while loop.backend == "io_uring":
            # When the submission queue is full, the loop enters.
            calls.append(loop.sock_recv(idle, 1))
            calls[-1].send(None)

    loop.call_soon(close)
    for _ in range(50):
        print(await are_received(connections))

calls = []
uringloop.Loop(warn_fallback=False).run_until_complete(main())
sys.stdout.flush()
os._exit(0)
"""
)


@pytest.mark.parametrize("calls", ["enter", "setup+register+enter"])
@pytest.mark.parametrize("received", range(1, 6))
def test_bytes_in_receive_buffers_reach_their_connections(received: int, calls: str) -> None:
    lines = run(BUFFERS_IN_USE, calls, RECEIVED=received)
    assert lines == ["True"] * 50


# ── the warning ──────────────────────────────────────────────────────────────────────────────

WARNING = (
    PRELUDE
    + """
async def main():
    await asyncio.get_running_loop().create_datagram_endpoint(
        asyncio.DatagramProtocol, ("127.0.0.1", 0))
    await asyncio.sleep(0.01)

close = [close_sandbox]
for number in range(3):
    loop = uringloop.Loop(warn_fallback=WARNS)
    loop.run_until_complete(asyncio.sleep(0))
    if close:
        close.pop()(CALLS, ERROR)
    loop.run_until_complete(main())
    loop.close()
"""
)


@pytest.mark.parametrize(
    ("warns", "variable"), [("None", "1"), ("False", "1"), ("None", "0"), ("True", "0")]
)
def test_change_to_the_software_ring_is_logged_once(warns: str, variable: str) -> None:
    program = f"CALLS, ERROR, WARNS = 'enter', 'EPERM', {warns}\n{WARNING}"
    ended = seccomp.run("-c", program, URINGLOOP_WARN_FALLBACK=variable)
    assert (ended.returncode, ended.stdout) == (0, "")
    lines = ended.stderr.splitlines()
    assert len(lines) == (warns == "True" or (warns == "None" and variable == "1"))
    for line in lines:
        assert "software ring" in line
        assert "io_uring_enter was refused while the loop ran" in line
        assert "allow io_uring_setup" in line
        assert "URINGLOOP_WARN_FALLBACK=0" in line
