"""What is scarce: a loop goes on when there was no memory for something."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

# The server has room for a part of what it is sent; a child sends.
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
def test_no_memory_for_what_was_received_ends_that_connection(name: str, size: int) -> None:
    command = [sys.executable, "-P", "-c", textwrap.dedent(PROGRAM), name, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    # Or what the protocol does with it is too much.
    assert done.stdout in (
        "['MemoryError'] ['Fatal read error on socket transport'] b'well'\n",
        "['MemoryError'] ['Fatal error'] b'well'\n",
    )
