"""If a part of `_cpython/stdlib.pyx` is disabled, the standard library's own code does its work.

Each test runs processes of its own: with the part's switch, or on a changed standard library.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import seccomp
from support.loops import each_ring

from uringloop._cpython import stdlib

CERTIFICATES = Path(__file__).resolve().parents[1] / "certificates"

# Collects the names of the Python functions that run, without changing the standard library.
MARKS = """
import asyncio, os, ssl, sys

ran = set()

def mark(frame, event, argument):
    if event == "call":
        ran.add(frame.f_code.co_qualname)

sys.setprofile(mark)
"""

STREAMS = """
async def echo(reader, writer):
    while data := await reader.read(100_000):
        writer.write(data)
    writer.close()

async def ask(**options):
    server = await asyncio.start_server(echo, "127.0.0.1", 0, **options.pop("listening", {}))
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
        # Not so much that the reader pauses: what is held back meanwhile is fed by its method.
        for size in (1, 1000, 10_000, 50_000):
            data = os.urandom(size)
            writer.write(data)
            assert await reader.readexactly(size) == data
        writer.close()
        await writer.wait_closed()
"""

PLAIN = "uringloop.run(ask())\n"

TLS = f"""
serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
serving.load_cert_chain({str(CERTIFICATES / "server.pem")!r})
trusting = ssl.create_default_context(cafile={str(CERTIFICATES / "ca.pem")!r})

def ask_by_tls():
    return ask(listening={{"ssl": serving}}, ssl=trusting, server_hostname="localhost")

uringloop.run(ask_by_tls())
"""

STATE = """
from uringloop._cpython import stdlib
print(stdlib.report()[{name!r}])
"""


def outcome(script: str, name: str, *, backend: str = "auto", disable: str = "") -> list[str]:
    """Return what *script* prints, and the state of the part *name* at its end."""
    return seccomp.lines_of(
        script + STATE.format(name=name), URINGLOOP_BACKEND=backend, URINGLOOP_DISABLE=disable
    )


def check_with_and_without(script: str, name: str, backend: str) -> None:
    """Check that *script* prints False with the part *name*, and True without it."""
    assert outcome(script, name, backend=backend) == ["False", "used"]
    assert outcome(script, name, backend=backend, disable=name) == ["True", "disabled"]


# ── by the switch ────────────────────────────────────────────────────────────────────────────


@each_ring
def test_without_the_buffer_of_a_reader_its_method_runs(backend: str) -> None:
    script = MARKS + "import uringloop\n" + STREAMS + PLAIN
    check_with_and_without(
        script + 'print("StreamReader.feed_data" in ran)\n', "stream_reader", backend
    )


@each_ring
def test_without_slots_the_fields_of_a_socket_are_attributes(backend: str) -> None:
    script = """
import asyncio, socket
import uringloop

changed = []

class Socket(socket.socket):
    def __setattr__(self, name, value):
        changed.append(name)
        super().__setattr__(name, value)

async def main():
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    ours = Socket(fileno=left.detach())
    ours.setblocking(False)
    receiving = loop.create_task(loop.sock_recv(ours, 10))
    await asyncio.sleep(0)
    # The call that waits keeps the socket open.
    ours.close()
    assert ours.fileno() != -1
    right.send(b"data")
    assert await receiving == b"data"
    assert ours.fileno() == -1
    right.close()

uringloop.run(main())
# Once by its own __init__.
print(changed.count("_io_refs") > 1)
"""
    check_with_and_without(script, "socket_slots", backend)


@each_ring
def test_without_the_queue_of_jobs_a_call_is_submitted(backend: str) -> None:
    script = """
import asyncio
import uringloop

async def main():
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, max, 1, 2) == 2
    assert await asyncio.to_thread(max, 1, 2) == 2
    assert await asyncio.gather(*[asyncio.to_thread(abs, -n) for n in range(100)]) == [*range(100)]
    await loop.shutdown_default_executor()
"""
    script = MARKS + script + 'uringloop.run(main())\nprint("ThreadPoolExecutor.submit" in ran)\n'
    check_with_and_without(script, "job_queue", backend)


@each_ring
def test_without_kept_bytes_a_message_leaves_nothing_behind(backend: str) -> None:
    script = """
import asyncio, socket, tracemalloc
import uringloop

SIZE = 10_000

class Protocol(asyncio.Protocol):
    def __init__(self):
        self.sizes = []
    def data_received(self, data):
        self.sizes.append(len(data))

async def main():
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    left.setblocking(False)
    transport, protocol = await loop.create_connection(Protocol, sock=left)
    for number in range(20):
        right.send(bytes(SIZE))
        while sum(protocol.sizes) < (number + 1) * SIZE:
            await asyncio.sleep(0)
    assert SIZE in protocol.sizes
    # The loop keeps a bytes object of that size for the next message.
    traces = tracemalloc.take_snapshot().traces
    transport.close()
    right.close()
    return traces

tracemalloc.start()
traces = uringloop.run(main())
print(not any(SIZE < trace.size < SIZE + 100 for trace in traces))
"""
    check_with_and_without(script, "kept_bytes", backend)


@pytest.mark.skipif(stdlib.report()["task_set"] == "absent", reason="asyncio keeps a list")
@each_ring
def test_without_compiled_methods_the_set_of_tasks_uses_its_own(backend: str) -> None:
    script = (
        MARKS
        + """
import uringloop

async def main():
    ran.clear()
    await asyncio.create_task(asyncio.sleep(0))
    print("WeakSet.add" in ran)

uringloop.run(main())
"""
    )
    check_with_and_without(script, "task_set", backend)


@pytest.mark.skipif(stdlib.report()["bio_memory"] == "absent", reason="no shared OpenSSL here")
@each_ring
def test_without_lent_memory_records_are_copied(backend: str) -> None:
    # A callback of OpenSSL passes bytes in while OpenSSL reads: refused if memory is lent.
    script = (
        MARKS
        + "import uringloop\n"
        + STREAMS
        + TLS
        + """
refused = []

class Protocol(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.close()

def called_back(*arguments):
    if protocols and hasattr(protocols[-1], "transport"):
        try:
            protocols[-1].transport._ssl_protocol.take_ahead(b"")
        except RuntimeError as exc:
            refused.append(exc)

protocols = []

def factory():
    protocols.append(Protocol())
    return protocols[-1]

async def main():
    loop = asyncio.get_running_loop()
    serving._msg_callback = called_back
    async with await loop.create_server(factory, "127.0.0.1", 0, ssl=serving) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusting, server_hostname="localhost")
        writer.write(b"data")
        assert await reader.read() == b""
        writer.close()

uringloop.run(main())
print(not refused)
"""
    )
    check_with_and_without(script, "bio_memory", backend)


@each_ring
def test_a_loop_works_with_all_parts_disabled(backend: str) -> None:
    script = MARKS + "import uringloop\n" + STREAMS + PLAIN + TLS
    script += "from uringloop._cpython import stdlib\nprint(*stdlib.report().values())\n"
    lines = seccomp.lines_of(
        script, URINGLOOP_BACKEND=backend, URINGLOOP_DISABLE=",".join(stdlib.SWITCHES)
    )
    assert lines == [" ".join(["disabled"] * len(stdlib.SWITCHES))]


def test_a_part_is_used_again_once_it_is_no_longer_disabled() -> None:
    script = MARKS + "import uringloop\n" + STREAMS + PLAIN
    script += """
os.environ["URINGLOOP_DISABLE"] = ""
ran.clear()
uringloop.run(ask())
print("StreamReader.feed_data" in ran)
"""
    assert outcome(script, "stream_reader", disable="stream_reader") == ["False", "used"]


# ── on a standard library that has changed ───────────────────────────────────────────────────

NO_ENGINE = """
import _ssl
del _ssl._SSLSocket
"""
# A module without any name, in the place of asyncio's.
NO_SSLPROTO = """
import types
sys.modules["asyncio.sslproto"] = asyncio.sslproto = types.ModuleType("asyncio.sslproto")
"""


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(NO_ENGINE, id="the-engine-has-another-name"),
        pytest.param(NO_SSLPROTO, id="asyncio-has-no-sslproto"),
    ],
)
def test_tls_runs_on_another_standard_library(change: str) -> None:
    script = MARKS + change + "import uringloop\n" + STREAMS + TLS + 'print("done")\n'
    assert seccomp.lines_of(script) == ["done"]


def test_a_reader_of_another_shape_is_fed_by_its_method() -> None:
    change = """
original = asyncio.StreamReader.feed_data

def feed_data(self, data):
    self._fed_anew = True
    original(self, data)

asyncio.StreamReader.feed_data = feed_data
"""
    script = MARKS + change + "import uringloop\n" + STREAMS + PLAIN
    script += 'print("feed_data" in ran)\n'
    assert outcome(script, "stream_reader") == ["True", "absent"]


def test_receiving_works_with_sockets_without_these_fields() -> None:
    script = """
import asyncio, socket

# As in a Python that counts the files of a socket elsewhere.
class Socket(socket.socket):
    _io_refs = _closed = None

socket.socket = Socket

import uringloop

async def main():
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    left.setblocking(False)
    receiving = loop.create_task(loop.sock_recv(left, 10))
    await asyncio.sleep(0)
    right.send(b"data")
    print(await receiving)
    left.close()
    right.close()

uringloop.run(main())
"""
    assert outcome(script, "socket_slots") == ["b'data'", "absent"]


SKIPS = "self._buffer.extend([memoryview(data) for data in lines if data])"
REFUSES = "self._buffer.extend([memoryview(data) for data in lines])"
QUEUES_ANEW = "self._queued_anew.extend(lines)"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before 3.12 asyncio joins the lines")
@pytest.mark.parametrize(
    ("body", "ended"),
    [
        pytest.param(SKIPS, "returned", id="it-skips-them"),
        pytest.param(REFUSES, "TypeError", id="it-refuses-them"),
        # Of another shape: it is newer than the versions that refuse them.
        pytest.param(QUEUES_ANEW, "returned", id="it-has-another-field"),
    ],
)
def test_writelines_treats_false_items_as_asyncio_does(body: str, ended: str) -> None:
    script = f"""
import asyncio, socket
from asyncio import selector_events

def writelines(self, lines):
    {body}
    if self._buffer:
        self._write_ready()

selector_events._SelectorSocketTransport.writelines = writelines

import uringloop

async def main():
    left, right = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=left)
    try:
        writer.writelines([None])
        print("returned")
    except TypeError:
        print("TypeError")
    writer.close()
    await writer.wait_closed()
    right.close()

uringloop.run(main())
"""
    assert seccomp.lines_of(script) == [ended]
