"""TLS cases, each run on a loop and on asyncio: a program, a state of its connection, a fault.

A program is a Protocol, a BufferedProtocol, streams, or a Protocol that calls start_tls(). A case's
trace is what the program and the peer see until the end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import itertools
import os
import re
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from parity.probes import tls_contexts

from .common import LOCALHOST, MB, Factory, fds_left, judged, open_fds
from .tls_peers import BEFORE, CLOSED, DATA, HANDSHAKE, HELLO, Peer

# Of the handshake and the shutdown of the program's connections.
TIMEOUT_S = 1.2
# An end that takes longer than this had to wait for the timeout.
AT_ONCE_S = 0.9
NEVER_S = 3
# This many cases run at a time: most of a case is waiting.
THREADS = 12
# Of a case that seems to differ.
TRIES = 3
# More than the sockets of a connection take.
MUCH = 8 * MB
RECEIVER = 256 * 1024

PeerFault = Callable[[Peer], str | None]


@dataclass
class Case:
    """A program, the state of its connection, and what the peer and the program do in it."""

    state: str
    fault: PeerFault
    kind: str = "protocol"
    side: str = "server"
    act: str = ""
    before: int = BEFORE
    single: bool = False
    version: str = ""
    prepare: Callable[[ssl.SSLContext, ssl.SSLContext], Any] | None = None
    host: str = "localhost"
    name: str = ""

    @property
    def title(self) -> str:
        words = (self.kind, self.side, self.state, self.act and f"{self.act}()")
        return " ".join(filter(None, (*words, self.name or self.fault.__name__)))


@dataclass
class Program:
    """What a program does in the state of its case, and what it sees."""

    case: Case
    loop: Any
    trace: list[str] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    told: int = 0
    written: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    at_state: threading.Event = field(default_factory=threading.Event)
    acted: threading.Event = field(default_factory=threading.Event)
    began: float = 0.0
    ended: float = 0.0
    transport: Any = None
    kept: list[weakref.ref[Any]] = field(default_factory=list)
    peer: str = ""
    broken: Exception | None = None
    tasks: list[Any] = field(default_factory=list)

    def see(self, event: str) -> None:
        if len(self.data) > self.told:
            self.told = len(self.data)
            self.trace.append(self.amount())
        self.trace.append(re.sub(r" \(_ssl\.c:\d+\)", "", event))

    def amount(self) -> str:
        whole = HELLO + DATA[: self.case.before]
        if not whole.startswith(self.data):
            return "wrong bytes"
        if len(self.data) in (0, len(HELLO), len(whole)):
            return {0: "no bytes", len(HELLO): "hello"}.get(len(self.data), "all bytes")
        return "some bytes"

    def keep(self, *objects: Any) -> None:
        for each in objects:
            # uvloop's TLS transports have no weak references.
            with contextlib.suppress(TypeError):
                self.kept.append(weakref.ref(each))

    def handle(self, loop: Any, context: dict[str, Any]) -> None:
        self.see(f"handler: {context['message']} {shown(context.get('exception'))}")

    def made(self, transport: Any) -> None:
        self.transport = transport
        self.keep(transport, getattr(transport, "_ssl_protocol", None))
        if self.case.state in ("made", "refused"):
            self.enter()

    def write(self, data: bytes) -> None:
        self.written += len(data)
        self.transport.write(data)

    def enter(self) -> None:
        """Enter the state of the case."""
        state, act = self.case.state, self.case.act
        self.write(bytes(MUCH) if state in ("writing paused", "flushing") else HELLO)
        if state in ("writing paused", "flushing"):
            # The transport below is paused: this write waits in the TLS layer.
            self.write(bytes(MB))
        if state == "reading paused" and self.case.kind != "streams":
            self.transport.pause_reading()
            if act in ("", "write"):
                self.loop.call_later(0.3, self.resume)
        if state in CLOSED:
            self.transport.close()
        self.reached.set()
        if act and state == "made":
            self.do_act()
        elif act:
            self.loop.call_later(0.3, self.do_act)

    def resume(self) -> None:
        if self.ended:
            return
        self.see("resumes")
        self.transport.resume_reading()

    def do_act(self) -> None:
        self.see(f"{self.case.act}()")
        self.began = time.monotonic()
        if self.case.act == "write":
            self.write(HELLO)
        else:
            getattr(self.transport, self.case.act)()
        self.acted.set()

    def receive(self, data: bytes) -> None:
        first = not self.data
        self.data += data
        if first and self.case.state not in ("made", "refused"):
            self.enter()

    def end(self) -> None:
        self.ended = self.ended or time.monotonic()


def shown(exc: BaseException | None) -> str:
    return "" if exc is None else f"{type(exc).__name__}({exc})"


class Telling(asyncio.BaseProtocol):
    """Passes each event to the program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        program.keep(self)

    def connection_made(self, transport: Any) -> None:
        if self.program.case.kind == "start_tls":
            # A client's hello is not for this protocol.
            transport.pause_reading()
            self.program.transport = transport
            self.program.tasks.append(self.program.loop.create_task(self.upgrade(transport)))
            return
        self.program.see("connection_made")
        self.program.made(transport)

    async def upgrade(self, transport: Any) -> None:
        program = self.program
        is_client = program.case.side == "client"
        options = tls_options(program, "sslcontext")
        upgrading = program.loop.start_tls(transport, self, server_side=not is_client, **options)
        secured = await attempt(program, "start_tls", upgrading)
        if secured:
            program.made(secured)
        else:
            program.loop.call_later(0.1, program.end)

    def eof_received(self) -> None:
        self.program.see("eof_received")

    def pause_writing(self) -> None:
        self.program.see("pause_writing")

    def resume_writing(self) -> None:
        self.program.see("resume_writing")

    def connection_lost(self, exc: Exception | None) -> None:
        self.program.see(f"connection_lost {shown(exc)}")
        self.program.end()


class Plain(Telling, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        self.program.receive(data)


class Buffered(Telling, asyncio.BufferedProtocol):
    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.buffer = memoryview(bytearray(64 * 1024))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.program.receive(bytes(self.buffer[:nbytes]))


async def attempt(program: Program, name: str, awaited: Awaitable[Any]) -> Any:
    """Return the result of an awaitable, or None if it raises; the trace has the exception."""
    try:
        result = await awaited
    except (Exception, asyncio.CancelledError) as exc:
        if isinstance(exc, asyncio.IncompleteReadError):
            program.data += exc.partial
            program.see(f"{name}: IncompleteReadError")
        else:
            program.see(f"{name}: {shown(exc)}")
        return None
    if isinstance(result, bytes):
        program.data += result
    program.see(name)
    return result


async def talk(program: Program, reader: Any, writer: Any) -> None:
    """Do the same with streams as a protocol does in the state of the case."""
    state = program.case.state
    program.keep(reader, writer)
    program.made(writer.transport)
    if state not in ("made", "refused"):
        await attempt(program, "readexactly", reader.readexactly(len(HELLO)))
        program.enter()
    if state == "writing paused":
        await attempt(program, "drain", writer.drain())
    if state == "reading paused":
        await asyncio.sleep(0.3)
    if state not in CLOSED:
        size = len(HELLO) + program.case.before - len(program.data)
        await attempt(program, "readexactly", reader.readexactly(size))
        await attempt(program, "read", reader.read())
        await attempt(program, "drain", writer.drain())
        writer.close()
    await attempt(program, "wait_closed", writer.wait_closed())
    program.end()


# ── a case on a loop ─────────────────────────────────────────────────────────────────────────


def contexts(case: Case) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of the program and of the peer."""
    server, client = tls_contexts()
    server.maximum_version = ssl.TLSVersion[case.version or "MAXIMUM_SUPPORTED"]
    if case.prepare:
        client = case.prepare(server, client) or client
    return (server, client) if case.side == "server" else (client, server)


def tls_options(program: Program, name: str) -> dict[str, Any]:
    options: dict[str, Any] = {name: contexts(program.case)[0]}
    if program.case.side == "client":
        options["server_hostname"] = program.case.host
    timeouts = dict.fromkeys(("ssl_handshake_timeout", "ssl_shutdown_timeout"), TIMEOUT_S)
    return options | timeouts


def play(program: Program, connected: Callable[[], socket.socket]) -> None:
    """Act as the peer."""
    case = program.case
    try:
        with connected() as sock:
            peer = Peer(sock, contexts(case)[1], program)
            peer.reach()
            if not case.act:
                program.began = time.monotonic()
            program.at_state.set()
            refusal = case.fault(peer)
            if sock.fileno() == -1:
                return
            how = peer.read_to_end()
            how = refusal or how
            got = "all" if peer.got == program.written else "some" if peer.got else "none"
            program.peer = f"peer: {got} of {program.written} bytes, {how}"
    except OSError as exc:
        program.peer = f"peer: {shown(exc)}"
    except Exception as exc:
        # The case itself is broken: `run` raises.
        program.broken = exc
    finally:
        program.at_state.set()


async def until(condition: Callable[[], Any], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


async def be_server(program: Program) -> Any:
    """Serve on a free port; return the server, and the function with which the peer connects."""
    options = {} if program.case.kind == "start_tls" else tls_options(program, "ssl")
    if program.case.kind == "streams":
        server = await asyncio.start_server(
            lambda reader, writer: talk(program, reader, writer), LOCALHOST, 0, **options
        )
    else:
        server = await program.loop.create_server(
            lambda: protocol_of(program), LOCALHOST, 0, **options
        )
    address = server.sockets[0].getsockname()

    def connect() -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVER)
        sock.connect(address)
        return sock

    return server, connect


async def be_client(program: Program, address: tuple[str, int]) -> None:
    options = {} if program.case.kind == "start_tls" else tls_options(program, "ssl")
    if program.case.kind == "streams":
        opening = asyncio.open_connection(*address, **options)
        opened = await attempt(program, "open_connection", opening)
        if opened:
            await talk(program, *opened)
            return
    else:
        connecting = program.loop.create_connection(
            lambda: protocol_of(program), *address, **options
        )
        if await attempt(program, "create_connection", connecting):
            return
    program.end()


def protocol_of(program: Program) -> Telling:
    return Buffered(program) if program.case.kind == "buffered" else Plain(program)


async def live(program: Program) -> None:
    """Run the case until it has ended."""
    case = program.case
    with socket.socket() as listener:
        if case.side == "server":
            server, connect = await be_server(program)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVER)
            listener.bind((LOCALHOST, 0))
            listener.listen()
            connect = lambda: listener.accept()[0]  # noqa: E731
        thread = threading.Thread(target=play, args=(program, connect))
        thread.start()
        if case.side == "client":
            program.tasks.append(
                program.loop.create_task(be_client(program, listener.getsockname()))
            )
        if case.act == "cancel":
            await until(program.at_state.is_set, NEVER_S)
            await asyncio.sleep(0.05)
            program.began = time.monotonic()
            program.tasks[-1].cancel()
        elif case.act and case.state in HANDSHAKE:
            await until(program.at_state.is_set, NEVER_S)
            await asyncio.sleep(0.05)
            program.do_act()
        await until(program.at_state.is_set, 5)
        # A server's program learns nothing of a connection whose handshake has failed.
        is_deaf = case.side == "server" and case.kind != "start_tls"

        def is_over() -> bool:
            heard = program.ended or (is_deaf and program.transport is None)
            return bool(heard) and not thread.is_alive()

        await until(is_over, NEVER_S)
        took = (program.ended or time.monotonic()) - program.began
        late = " after the timeout" if took > AT_ONCE_S else ""
        program.see(f"ended{late}" if is_over() else "never ends")
        if program.transport:
            program.transport.abort()
        if case.side == "server":
            server.close()
        for task in program.tasks:
            task.cancel()
    await until(lambda: not thread.is_alive(), 10)
    program.see(program.peer)
    await asyncio.sleep(0.05)


def run(factory: Factory, case: Case) -> Program:
    """Run a case on a new loop."""
    loop = factory()
    program = Program(case, loop)
    loop.set_exception_handler(program.handle)
    try:
        loop.run_until_complete(live(program))
    finally:
        loop.close()
    if program.broken:
        raise program.broken
    program.transport = program.loop = None
    program.tasks.clear()
    return program


def traces(factory: Factory, cases: list[Case]) -> list[list[str]]:
    """Return the trace of each case."""
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        programs = list(pool.map(lambda case: run(factory, case), cases))
    gc.collect()
    for program in programs:
        left = [type(each()).__name__ for each in program.kept if each() is not None]
        if left:
            program.see(f"left: {', '.join(left)}")
    return [program.trace for program in programs]


RETURNS = ("create_connection", "open_connection", "start_tls")
AMOUNTS = ("no bytes", "hello", "some bytes", "all bytes")


def as_documented(case: Case, theirs: list[str], ours: list[str]) -> list[str]:
    """Return asyncio's trace as docs/decisions/0007-tls.md says that it is on uringloop."""
    theirs = list(theirs)
    # The first bytes are delivered after start_tls() or create_connection() has returned.
    for name in set(RETURNS) & set(theirs):
        first = next((at for at, event in enumerate(theirs) if event in AMOUNTS), len(theirs))
        if first < theirs.index(name):
            theirs.remove(name)
            theirs.insert(first, name)
            if theirs[first + 1] in AMOUNTS and theirs[first + 2] in AMOUNTS:
                del theirs[first + 1]
    # After close() nothing is delivered, not even what came with the handshake.
    if case.act in ("close", "abort") and case.state == "made":
        theirs = [event for event in theirs if event not in AMOUNTS]
        if "readexactly" in theirs:
            at = theirs.index("readexactly")
            exception = theirs[at + 1].partition(": ")[2] or "IncompleteReadError"
            theirs[at] = f"readexactly: {exception}"
    # What comes before a record that fails, or before an alert, is delivered.
    failed = next((at for at, event in enumerate(theirs) if "SSLError(" in event), None)
    if failed is not None and "all bytes" in ours and "all bytes" not in theirs:
        if theirs[failed].startswith("readexactly: "):
            theirs[failed] = "readexactly"
        theirs.insert(failed, "all bytes")
        if "hello" in theirs and "hello" not in ours:
            theirs.remove("hello")
    # A refused handshake or record is answered by an alert.
    alert = ours[-1].partition(", ")[2]
    if alert.isupper() and theirs[-1].endswith(", end"):
        theirs[-1] = theirs[-1].removesuffix("end") + alert
    return theirs


def compare(factory: Factory, cases: list[Case], wanted: list[Case] | None = None) -> str:
    """Return the cell of a fault; *wanted* are cases in which asyncio does what this loop must."""
    fds = open_fds()
    wanted = wanted if wanted and must_differ() else cases
    found = traces(factory, cases)
    left = fds_left(fds)
    seen = [[trace] for trace in found]
    allowed = [[trace] for trace in traces(asyncio.SelectorEventLoop, wanted)]

    def differing() -> list[int]:
        return [at for at, case in enumerate(cases) if not agree(case, seen[at], allowed[at])]

    # An event of the peer may come before or after one of the program.
    for _ in range(TRIES - 1):
        again = differing()
        ours = traces(factory, [cases[at] for at in again])
        theirs = traces(asyncio.SelectorEventLoop, [wanted[at] for at in again])
        for at, one, other in zip(again, ours, theirs, strict=True):
            seen[at].append(one)
            allowed[at].append(other)
    differ = differing()
    for at, case in enumerate(cases):
        print(f"{case.title}\n    {'; '.join(found[at])}")
        if at in differ:
            print(f"    asyncio: {'; '.join(as_documented(case, allowed[at][0], found[at]))}")
    hung = sum("never ends" in ours for ours in found)
    wrong = sum("wrong bytes" in ours for ours in found)
    kept = sum(any("left: " in event for event in ours) for ours in found)
    amounts = {
        "never end": hung,
        "with wrong bytes": wrong,
        "leave objects": kept,
        "not as on asyncio": len(differ),
    }
    faults = [judged(False, f"{count} {what}") for what, count in amounts.items() if count]
    return ", ".join([f"{len(cases)} cases", left, *faults])


def must_differ() -> bool:
    """Return whether the loop must differ where 0007-tls.md says so; others may be as asyncio."""
    return os.environ["FAULTS_LOOP"].startswith("uringloop")


def agree(case: Case, seen: list[list[str]], allowed: list[list[str]]) -> bool:
    if not must_differ() and any(trace in allowed for trace in seen):
        return True
    pairs = itertools.product(seen, allowed)
    return any(ours == as_documented(case, theirs, ours) for ours, theirs in pairs)
