"""One small program for each feature of asyncio, run by `cli`. A program that fails raises."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Loop = asyncio.AbstractEventLoop
Probe = Callable[[Any], Awaitable[None]]

CERTIFICATE = Path(__file__).parents[2] / "tests" / "certificates"

PROBES: dict[str, Probe] = {}


def probe(name: str) -> Callable[[Probe], Probe]:
    def register(function: Probe) -> Probe:
        PROBES[name] = function
        return function

    return register


def check(condition: object) -> None:
    if not condition:
        raise RuntimeError("wrong result")


# ── protocols and servers that several probes use ────────────────────────────────────────────


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Collect(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = bytearray()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.arrived = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.arrived.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.received: asyncio.Queue[bytes] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.received.put_nowait(data)


@contextlib.asynccontextmanager
async def echo_server(loop: Any, **options: Any) -> Any:
    server = await loop.create_server(Echo, "127.0.0.1", 0, **options)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()


async def exchange(loop: Any, connect: Callable[..., Awaitable[Any]], *args: Any, **kw: Any) -> Any:
    """Connect, send, and check the echo; return the open transport."""
    transport, protocol = await connect(Collect, *args, **kw)
    transport.write(b"hello")
    await asyncio.wait_for(protocol.arrived.wait(), 5)
    check(bytes(protocol.data) == b"hello")
    return transport


def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(CERTIFICATE / "server.pem")
    client = ssl.create_default_context(cafile=str(CERTIFICATE / "ca.pem"))
    return server, client


# ── scheduling and tasks ─────────────────────────────────────────────────────────────────────


@probe("call_soon, call_later, call_at")
async def scheduling(loop: Any) -> None:
    ran: list[str] = []
    loop.call_soon(ran.append, "soon")
    loop.call_later(0.001, ran.append, "later")
    loop.call_at(loop.time() + 0.002, ran.append, "at")
    await asyncio.sleep(0.02)
    check(ran == ["soon", "later", "at"])


@probe("call_soon_threadsafe")
async def threadsafe(loop: Any) -> None:
    done = loop.create_future()
    await loop.run_in_executor(None, loop.call_soon_threadsafe, done.set_result, None)
    await done


@probe("create_task(context=)")
async def task_context(loop: Any) -> None:
    import contextvars

    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
    context = contextvars.copy_context()
    context.run(variable.set, 1)

    async def read() -> int:
        return variable.get()

    check(await loop.create_task(read(), context=context) == 1)


@probe("eager_task_factory (3.12+)")
async def eager(loop: Any) -> None:
    if sys.version_info < (3, 12):
        return
    loop.set_task_factory(asyncio.eager_task_factory)
    ran = []

    async def run() -> None:
        ran.append(1)

    task = loop.create_task(run())
    check(ran == [1])
    await task


@probe("task factory with (loop, coro, *, context)")
async def task_factory(loop: Any) -> None:
    def factory(loop: Any, coro: Any, *, context: Any = None) -> Any:
        return asyncio.Task(coro, loop=loop, context=context)

    loop.set_task_factory(factory)
    await loop.create_task(asyncio.sleep(0))


@probe("run_in_executor, set_default_executor")
async def executor(loop: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        loop.set_default_executor(pool)
        check(await loop.run_in_executor(None, sum, [1, 2]) == 3)


@probe("shutdown_asyncgens, shutdown_default_executor(timeout)")
async def shutdowns(loop: Any) -> None:
    await loop.run_in_executor(None, int)
    await loop.shutdown_asyncgens()
    if sys.version_info >= (3, 12):
        await loop.shutdown_default_executor(1.0)
    else:
        await loop.shutdown_default_executor()


@probe("exception handlers")
async def handlers(loop: Any) -> None:
    seen: list[Any] = []
    loop.set_exception_handler(lambda loop, context: seen.append(context["exception"]))
    loop.call_soon(lambda: 1 / 0)
    await asyncio.sleep(0.01)
    check(isinstance(seen[0], ZeroDivisionError))


@probe("debug mode logs slow callbacks")
async def slow(loop: Any) -> None:
    import logging

    log = io.StringIO()
    logging.getLogger("asyncio").addHandler(logging.StreamHandler(log))
    loop.set_debug(True)
    loop.slow_callback_duration = 0.01
    loop.call_soon(time.sleep, 0.05)
    await asyncio.sleep(0.1)
    check("took" in log.getvalue())


@probe("add_signal_handler, remove_signal_handler")
async def signals(loop: Any) -> None:
    got = loop.create_future()
    loop.add_signal_handler(signal.SIGUSR1, got.set_result, None)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(got, 5)
    check(loop.remove_signal_handler(signal.SIGUSR1))


@probe("getaddrinfo, getnameinfo")
async def names(loop: Any) -> None:
    check(await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM))
    check((await loop.getnameinfo(("127.0.0.1", 80), socket.NI_NUMERICHOST))[0] == "127.0.0.1")


# ── connections ──────────────────────────────────────────────────────────────────────────────


@probe("create_server, create_connection")
async def tcp(loop: Any) -> None:
    async with echo_server(loop) as address:
        (await exchange(loop, loop.create_connection, *address)).close()


@probe("happy_eyeballs_delay, interleave, all_errors")
async def eyeballs(loop: Any) -> None:
    async with echo_server(loop) as address:
        options = {"happy_eyeballs_delay": 0.1, "interleave": 1}
        if sys.version_info >= (3, 12):
            options["all_errors"] = True
        (await exchange(loop, loop.create_connection, *address, **options)).close()


@probe("create_server(reuse_port=, start_serving=, backlog=)")
async def server_options(loop: Any) -> None:
    async with echo_server(loop, reuse_port=True, backlog=10) as address:
        (await exchange(loop, loop.create_connection, *address)).close()
    server = await loop.create_server(Echo, "127.0.0.1", 0, start_serving=False)
    check(not server.is_serving())
    server.close()


@probe("create_server(keep_alive=)")
async def keep_alive(loop: Any) -> None:
    async with echo_server(loop, keep_alive=True) as address:
        (await exchange(loop, loop.create_connection, *address)).close()


@probe("Server.close_clients, abort_clients")
async def close_clients(loop: Any) -> None:
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    transport, protocol = await loop.create_connection(
        Collect, *server.sockets[0].getsockname()[:2]
    )
    transport.write(b"hello")
    await protocol.arrived.wait()
    server.close()
    server.close_clients()
    await asyncio.wait_for(protocol.lost, 5)
    server.abort_clients()


@probe("UNIX stream server and client")
async def unix(loop: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = await loop.create_unix_server(Echo, f"{folder}/s")
        (await exchange(loop, loop.create_unix_connection, f"{folder}/s")).close()
        server.close()


@probe("abstract UNIX sockets")
async def abstract(loop: Any) -> None:
    name = f"\0parity-{os.getpid()}"
    server = await loop.create_unix_server(Echo, name)
    (await exchange(loop, loop.create_unix_connection, name)).close()
    server.close()


@probe("create_unix_server(cleanup_socket=)")
async def cleanup_socket(loop: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = await loop.create_unix_server(Echo, f"{folder}/s", cleanup_socket=True)
        server.close()
        check(not os.path.exists(f"{folder}/s"))  # noqa: ASYNC240  # a temporary folder


@probe("connect_accepted_socket")
async def accepted(loop: Any) -> None:
    left, right = socket.socketpair()
    await loop.connect_accepted_socket(Echo, left)
    with right:
        right.setblocking(False)
        await loop.sock_sendall(right, b"hello")
        check(await loop.sock_recv(right, 10) == b"hello")


@probe("TLS (ssl=)")
async def tls(loop: Any) -> None:
    server, client = tls_contexts()
    async with echo_server(loop, ssl=server) as address:
        transport = await exchange(
            loop, loop.create_connection, *address, ssl=client, server_hostname="localhost"
        )
        check(transport.get_extra_info("cipher"))
        check(transport.get_extra_info("peercert"))
        check(transport.get_extra_info("ssl_object"))
        transport.close()


@probe("start_tls")
async def start_tls(loop: Any) -> None:
    server_context, client_context = tls_contexts()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"go ahead\n")
        await writer.start_tls(server_context)
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"starttls\n")
    await reader.readline()
    await writer.start_tls(client_context, server_hostname="localhost")
    writer.write(b"hello\n")
    check(await asyncio.wait_for(reader.readline(), 5) == b"hello\n")
    writer.close()
    server.close()


@probe("BufferedProtocol")
async def buffered(loop: Any) -> None:
    class Buffered(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer = bytearray(100)
            self.got = loop.create_future()

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.got.set_result(bytes(self.buffer[:nbytes]))

    async with echo_server(loop) as address:
        transport, protocol = await loop.create_connection(Buffered, *address)
        transport.write(b"hello")
        check(await asyncio.wait_for(protocol.got, 5) == b"hello")
        transport.close()


@probe("write buffer limits, pause_reading")
async def limits(loop: Any) -> None:
    async with echo_server(loop) as address:
        transport = await exchange(loop, loop.create_connection, *address)
        transport.set_write_buffer_limits(high=10, low=5)
        check(transport.get_write_buffer_limits() == (5, 10))
        transport.pause_reading()
        check(not transport.is_reading())
        transport.resume_reading()
        transport.close()


@probe("write() copies a bytearray")
async def aliasing(loop: Any) -> None:
    left, right = socket.socketpair()
    transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, left)
    size = 8 * 1024 * 1024
    data = bytearray(b"a" * size)
    transport.write(data)
    data[:] = b"b" * size
    right.setblocking(False)
    received = b""
    while len(received) < size:
        received += await loop.sock_recv(right, 1 << 20)
    transport.close()
    right.close()
    check(received.count(b"a") == size)


@probe("isinstance(transport, asyncio.Transport)")
async def isinstances(loop: Any) -> None:
    async with echo_server(loop) as address:
        transport = await exchange(loop, loop.create_connection, *address)
        check(isinstance(transport, asyncio.Transport))
        transport.close()


@probe("get_extra_info: socket, peername, sockname")
async def extra_info(loop: Any) -> None:
    async with echo_server(loop) as address:
        transport = await exchange(loop, loop.create_connection, *address)
        check(transport.get_extra_info("peername") == address)
        check(transport.get_extra_info("sockname")[0] == "127.0.0.1")
        check(transport.get_extra_info("socket").family == socket.AF_INET)
        transport.close()


# ── datagrams ────────────────────────────────────────────────────────────────────────────────


@probe("UDP")
async def udp(loop: Any) -> None:
    server, protocol = await loop.create_datagram_endpoint(Datagrams, local_addr=("127.0.0.1", 0))
    client, _ = await loop.create_datagram_endpoint(
        Datagrams, remote_addr=server.get_extra_info("sockname")
    )
    client.sendto(b"hello")
    check(await asyncio.wait_for(protocol.received.get(), 5) == b"hello")
    client.close()
    server.close()


@probe("UNIX datagrams with a path")
async def unix_datagrams(loop: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server, protocol = await loop.create_datagram_endpoint(
            Datagrams, local_addr=f"{folder}/s", family=socket.AF_UNIX
        )
        client, _ = await loop.create_datagram_endpoint(
            Datagrams, remote_addr=f"{folder}/s", family=socket.AF_UNIX
        )
        client.sendto(b"hello")
        check(await asyncio.wait_for(protocol.received.get(), 5) == b"hello")
        client.close()
        server.close()


# ── the program's own sockets ────────────────────────────────────────────────────────────────


@probe("sock_recv, sock_recv_into, sock_sendall, sock_accept, sock_connect")
async def sock_calls(loop: Any) -> None:
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        client.setblocking(False)
        accepting = asyncio.ensure_future(loop.sock_accept(listener))
        await loop.sock_connect(client, listener.getsockname())
        conn, _ = await accepting
        with conn:
            await loop.sock_sendall(client, b"hello")
            check(await loop.sock_recv(conn, 2) == b"he")
            buffer = bytearray(10)
            check(await loop.sock_recv_into(conn, buffer) == 3)


@probe("sock_sendto, sock_recvfrom, sock_recvfrom_into")
async def sock_datagrams(loop: Any) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as two:
        for sock in (one, two):
            sock.setblocking(False)
            sock.bind(("127.0.0.1", 0))
        await loop.sock_sendto(one, b"hello", two.getsockname())
        check(await loop.sock_recvfrom(two, 10) == (b"hello", one.getsockname()))
        await loop.sock_sendto(one, b"again", two.getsockname())
        check((await loop.sock_recvfrom_into(two, bytearray(10)))[0] == 5)


@probe("sock_sendfile")
async def sock_sendfile(loop: Any) -> None:
    left, right = socket.socketpair()
    with left, right, tempfile.TemporaryFile() as file:
        left.setblocking(False)
        right.setblocking(False)
        file.write(b"hello")
        file.flush()
        check(await loop.sock_sendfile(left, file) == 5)
        check(await loop.sock_recv(right, 10) == b"hello")


@probe("sendfile of a transport")
async def sendfile(loop: Any) -> None:
    async with echo_server(loop) as address:
        transport, protocol = await loop.create_connection(Collect, *address)
        with tempfile.TemporaryFile() as file:
            file.write(b"hello")
            file.flush()
            check(await loop.sendfile(transport, file) == 5)
        await asyncio.wait_for(protocol.arrived.wait(), 5)
        transport.close()


@probe("add_reader, add_writer")
async def watchers(loop: Any) -> None:
    left, right = socket.socketpair()
    with left, right:
        readable, writable = loop.create_future(), loop.create_future()
        loop.add_writer(left, lambda: writable.done() or writable.set_result(None))
        await writable
        loop.remove_writer(left)
        loop.add_reader(left, lambda: readable.done() or readable.set_result(left.recv(5)))
        right.send(b"hello")
        check(await readable == b"hello")
        loop.remove_reader(left)


# ── pipes and processes ──────────────────────────────────────────────────────────────────────


@probe("connect_read_pipe, connect_write_pipe")
async def pipes(loop: Any) -> None:
    reading, writing = os.pipe()
    reader, protocol = await loop.connect_read_pipe(Collect, os.fdopen(reading, "rb", 0))
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(writing, "wb", 0))
    writer.write(b"hello")
    await asyncio.wait_for(protocol.arrived.wait(), 5)
    writer.close()
    await asyncio.wait_for(protocol.lost, 5)
    reader.close()


@probe("connect_read_pipe raises for a regular file")
async def regular_file(loop: Any) -> None:
    with tempfile.TemporaryFile() as file:
        try:
            await loop.connect_read_pipe(Collect, file)
        except ValueError:
            return
    raise RuntimeError("taken for a pipe")


@probe("subprocess_exec, subprocess_shell")
async def subprocesses(loop: Any) -> None:
    process = await asyncio.create_subprocess_exec(
        "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    check([*await process.communicate(b"hello")] == [b"hello", None])
    check(await (await asyncio.create_subprocess_shell("exit 3")).wait() == 3)


@probe("subprocess preexec_fn")
async def preexec(loop: Any) -> None:
    process = await asyncio.create_subprocess_exec("true", preexec_fn=os.getpid)
    check(await process.wait() == 0)


# ── forks and runners ────────────────────────────────────────────────────────────────────────


@probe("a loop used in a forked child raises")
async def forked(loop: Any) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            loop.call_soon_threadsafe(int)
            asyncio.get_running_loop()
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]  # noqa: ASYNC222  # the child has ended
    check(os.waitstatus_to_exitcode(status) == 7)


@probe("asyncio.Runner(loop_factory=)")
async def runner(loop: Any) -> None:
    check(asyncio.get_running_loop() is loop)
