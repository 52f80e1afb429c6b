"""Scarce resources: a loop continues after a lack of memory, threads or locked memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap

import pytest
from support.roles import run_script

# A child sends more than the process has memory for.
PROGRAM = """
import asyncio, gc, os, resource, socket, sys, uringloop

loop = {"asyncio": asyncio.SelectorEventLoop, "uringloop": uringloop.new_event_loop}[sys.argv[1]]()
size = int(sys.argv[2])
hoard, lost = [], []
messages = []
loop.set_exception_handler(lambda loop, context: messages.append(context["message"]))

class Hoarder(asyncio.Protocol):
    def data_received(self, data):
        hoard.append(data)
    def connection_lost(self, exc):
        hoard.clear()
        lost.append(type(exc).__name__)
        loop.stop()

def send(sock):
    try:
        while True:
            sock.sendall(bytes(size))
    except OSError:
        os._exit(0)

ours, theirs = socket.socketpair()
if os.fork() == 0:
    ours.close()
    send(theirs)
theirs.close()
ours.setblocking(False)
loop.run_until_complete(loop.create_connection(Hoarder, sock=ours))
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (now + 64 * 1024 * 1024, hard))
loop.run_forever()
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
gc.collect()
os.wait()

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)

async def echo():
    ours, theirs = socket.socketpair()
    ours.setblocking(False), theirs.setblocking(False)
    transport, _ = await loop.create_connection(Echo, sock=ours)
    await loop.sock_sendall(theirs, b"well")
    data = await asyncio.wait_for(loop.sock_recv(theirs, 10), 5)
    print(lost, [message.split(":")[0] for message in messages], data)
    transport.close()
    theirs.close()

loop.run_until_complete(echo())
loop.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [200, 100_000])
@pytest.mark.parametrize("name", ["asyncio", "uringloop"])
def test_memory_error_on_receive_ends_that_connection_only(name: str, size: int) -> None:
    command = [sys.executable, "-P", "-c", textwrap.dedent(PROGRAM), name, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    # The MemoryError may also come from the protocol.
    assert done.stdout in (
        "['MemoryError'] ['Fatal read error on socket transport'] b'well'\n",
        "['MemoryError'] ['Fatal error'] b'well'\n",
    )


# The process may map *left* bytes more, in its data segment or in all.
CONNECTIONS = """
import asyncio, os, resource, sys, uringloop

loop = {"asyncio": asyncio.SelectorEventLoop, "uringloop": uringloop.new_event_loop}[sys.argv[1]]()
limit, left, size = getattr(resource, sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

class Mail(asyncio.DatagramProtocol):
    def __init__(self):
        self.arrived = loop.create_future()
    def datagram_received(self, data, address):
        self.arrived.set_result(data)

async def echo(reader, writer):
    while data := await reader.read(30_000):
        writer.write(data)
        await writer.drain()
    writer.close()

async def ask(address):
    reader, writer = await asyncio.open_connection(*address)
    for _ in range(3):
        writer.write(b"x" * size)
        await reader.readexactly(size)
    writer.close()
    return size

async def exchange():
    near, there = await loop.create_datagram_endpoint(Mail, ("127.0.0.1", 0))
    far, _ = await loop.create_datagram_endpoint(
        Mail, remote_addr=near.get_extra_info("sockname"))
    far.sendto(b"there")
    data = await there.arrived
    near.close()
    far.close()
    return data

async def main():
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        print(await asyncio.gather(*(ask(address) for _ in range(10))))
    print(await exchange())

field = {"RLIMIT_DATA": "VmData", "RLIMIT_AS": "VmSize"}[sys.argv[2]]
with open("/proc/self/status") as file:
    kib = dict(line.split(":", 1) for line in file)[field]
most = int(kib.split()[0]) * 1024 + left
resource.setrlimit(limit, (most, most))
loop.run_until_complete(asyncio.wait_for(main(), 30))
loop.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("left", [6_000_000, 12_000_000, 20_000_000])
@pytest.mark.parametrize("limit", ["RLIMIT_DATA", "RLIMIT_AS"])
@pytest.mark.parametrize("name", ["asyncio", "uringloop"])
def test_connections_and_datagrams_need_little_memory(name: str, limit: str, left: int) -> None:
    size = 30_000
    command = [sys.executable, "-P", "-c", CONNECTIONS, name, limit, str(left), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [str([size] * 10), "b'there'"]


# Neither the process nor the kernel may start threads for it.
FILES = """
import asyncio, os, resource, sys, uringloop, uringloop.files.open, uringloop.fs as fs

folder = sys.argv[1]
path = os.path.join(folder, "file")
os.mkfifo(os.path.join(folder, "fifo"))
data = os.urandom(3_000_000)

async def main():
    async with uringloop.open(path, "xb") as file:
        print(await file.write(data) == len(data))
        await file.fsync()
    await fs.rename(path, path + "2")
    await fs.mkdir(os.path.join(folder, "made"))
    async with uringloop.open(path + "2", "r+b", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        print(await file.read() == data)
        print(await file.pwrite(b"end", len(data)), (await fs.stat(path + "2")).st_size)
    await fs.unlink(path + "2")
    try:
        await uringloop.open(os.path.join(folder, "fifo"), "rb")
    except BlockingIOError as exc:
        print(os.path.basename(exc.filename))
    print(sorted(os.listdir(folder)))

before = len(os.listdir("/proc/self/fd"))
loop = uringloop.new_event_loop()
if os.geteuid() == 0:
    # The limit does not apply to root.
    os.chmod(folder, 0o777)
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
loop.run_until_complete(asyncio.wait_for(main(), 20))
loop.close()
print(len(os.listdir("/proc/self/fd")) - before)
"""


def test_files_work_when_no_thread_can_be_started() -> None:
    # Not in pytest's folders, which another user may not enter.
    with tempfile.TemporaryDirectory(prefix="uringloop-") as folder:
        done = subprocess.run(
            [sys.executable, "-c", FILES, folder], capture_output=True, text=True, timeout=60
        )
    assert (done.returncode, done.stderr) == (0, "")
    expected = ["True", "True", "3 3000003", "fifo", "['fifo', 'made']", "0"]
    assert done.stdout.splitlines() == expected


def test_loops_run_with_a_low_limit_of_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where io_uring is asked for by name, a loop that does not get it raises.
    monkeypatch.delenv("URINGLOOP_BACKEND", raising=False)
    # As a user to whom the limit applies. A ring of the kernel takes 48 KiB of it.
    done = run_script(
        """
        import asyncio, os, resource, uringloop

        resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 * 1024, 64 * 1024))
        if os.getuid() == 0:
            os.setresuid(65534, 65534, 65534)
        loops = [uringloop.Loop() for _ in range(4)]
        for loop in loops:
            print(loop.run_until_complete(asyncio.sleep(0.001, "ran")), loop.backend)
            loop.close()
        """
    )
    assert done.returncode == 0
    warnings = done.stderr.splitlines()
    assert all("not on io_uring: Cannot allocate memory" in line for line in warnings)
    assert len(warnings) <= 1
    ran, backends = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    assert ran == ("ran",) * 4
    assert set(backends) <= {"io_uring", "soft"}
    assert len(warnings) == ("soft" in backends)
