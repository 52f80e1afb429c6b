"""The steps of random programs on a loop, and what must hold whatever the kernel does."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import gc
import os
import random
import socket
import ssl
import struct
import threading
import traceback
import tty
import weakref
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from support.tls_contexts import client_context, server_context

import uringloop
from simulation import messages
from simulation.ends import Buffered, End, Plain
from simulation.faults import is_harmful
from simulation.streams import Conversation, tcp_pair
from simulation.tls import Meeting
from uringloop._ring.backends import Backend
from uringloop.testing import Faults, Loop

KINDS = ("tcp", "unix", "pair", "tls", "pipe")
SERVED = ("tcp", "unix", "tls")
FORMS = ("bytes", "bytearray", "memoryview", "lines")
SIZES = (1, 7, 100, 1000, 4096, 20_000, 70_000, 300_000)
# Numbers of simultaneous connections; of the largest a loop accepts some in a later turn.
CROWDS = (2, 3, 5, 40)
# How a stranger's connection ends.
LAST = ("close", "half", "reset")
# Turns after which a wait fails: far more than any fault needs. Sleeps advance the simulated clock.
TURNS_MAX = 20_000
# Turns after which a pause has taken effect, although enters are refused and cancels come late.
PAUSE_TURNS = 40

# The simulated clock may pass any usual timeout between two bytes.
PATIENT: dict[str, Any] = {"ssl_handshake_timeout": 1e6, "ssl_shutdown_timeout": 1e6}

SERVER = server_context()
CLIENT = client_context()


def _same(end: Any) -> Any:
    return end


class Difference(AssertionError):
    """The loop did what asyncio's contract does not allow."""


class Model:
    """A loop, the program's objects on it, and the oracle's records.

    Every step is a coroutine, for `run`. With *faults* the loop is one for tests, and waits are
    longer.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        backend: Backend = "soft",
        faults: Faults | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.simulated = faults is not None
        self.harmful = faults is not None and is_harmful(faults)
        self.folder = folder
        self.differences: list[str] = []
        self.pairs: list[tuple[End, End]] = []
        self.accepted: list[End] = []
        self.napping: list[End] = []
        self.references: list[weakref.ref[Any]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.log: list[str] = []
        self.names = 0
        self.looks = 0
        self.timers_left = 0
        self.content = bytearray()
        self.file: Any = None
        self.servers: dict[str, Any] = {}
        self.loop: uringloop.Loop
        if faults is None:
            self.loop = uringloop.Loop(backend=backend)
        else:
            self.loop = Loop(seed, faults=faults, kernel_sockets=bool(seed % 2))
        self.loop.set_exception_handler(self._on_exception)

    def differs(self, how: str) -> None:
        self.differences.append(how)

    def _on_exception(self, loop: Any, context: dict[str, Any]) -> None:
        exc = context.get("exception")
        if not (self.harmful and isinstance(exc, OSError)):
            where = "".join(traceback.format_exception(exc)) if exc else ""
            self.differs(f"the exception handler was called: {context}\n{where}")

    def end_faults(self) -> dict[str, int]:
        """End the faults of a loop for tests; return how often each has happened."""
        if not isinstance(self.loop, Loop):
            return {}
        self.loop.faults = Faults()
        return self.loop.faults_happened()

    def note(self, action: str, *details: object) -> None:
        self.log.append(" ".join(map(str, (action, *details))))

    def check(self) -> None:
        if self.differences:
            raise Difference("\n".join(self.differences[:5]))

    def data(self, size: int) -> bytes:
        return self.rng.randbytes(size)

    def run(self, coroutine: Any) -> Any:
        """Run one step; operations that it has started continue in the next steps."""
        result = self.loop.run_until_complete(coroutine)
        self.check()
        return result

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def until(self, what: str, condition: Callable[[], object]) -> None:
        """Run turns, and advance the clock, until *condition* is true; *what* names the wait."""
        for turn in range(TURNS_MAX):
            if condition():
                return
            self.check()
            await asyncio.sleep(0 if turn % 8 else 0.05 if self.simulated else 0.001)
        raise Difference(f"stuck: {what}: {self.pairs} {self.accepted} {self.loop.stats()}")

    # ── connections ──────────────────────────────────────────────────────────────────────────

    def end(self) -> Any:
        made = self.rng.choice((Plain, Buffered))(self)
        made.stays_open = self.rng.random() < 0.5
        self.references.append(weakref.ref(made))
        return made

    def _accept(self) -> Any:
        made = self.end()
        self.accepted.append(made)
        return made

    async def _serve(self, kind: str) -> Any:
        """Return the address of the server of a kind."""
        if kind not in self.servers:
            if kind == "unix":
                server = await self.loop.create_unix_server(
                    self._accept, f"\0uringloop-simulation-{os.getpid()}-{id(self)}"
                )
            else:
                secure = {"ssl": SERVER, **PATIENT} if kind == "tls" else {}
                server = await self.loop.create_server(self._accept, "127.0.0.1", 0, **secure)
            self.servers[kind] = server
        return self.servers[kind].sockets[0].getsockname()

    async def connect(self, kind: str) -> None:
        self.note("connect", kind)
        await self._add(
            self._connect_pair()
            if kind == "pair"
            else self._connect_pipe()
            if kind == "pipe"
            else self._connect(kind)
        )

    async def crowd(self, kind: str, count: int) -> None:
        """Connect *count* clients to a server before the loop accepts the first one."""
        self.note("crowd", kind, count)
        address = await self._serve(kind)
        clients = [self._client(kind) for _ in range(count)]
        for client in clients:
            client.setblocking(True)
            client.connect(address)
            client.setblocking(False)
        for client in clients:
            await self._add(self._join(kind, client))

    async def _add(self, connecting: Coroutine[Any, Any, tuple[End, End]]) -> None:
        try:
            pair = await connecting
        except (OSError, asyncio.IncompleteReadError) as exc:
            if not self.harmful:
                raise Difference(f"no connection: {exc!r}") from exc
            self.note("-> failed", repr(exc))
            return
        left, right = pair
        left.peer, right.peer = right, left
        self.pairs.append(pair)
        for one in pair:
            self.references.append(weakref.ref(one.transport))
            if one.lost:
                one.leave(failed=True)

    async def _connect(self, kind: str) -> tuple[End, End]:
        address = await self._serve(kind)
        client = self._client(kind)
        try:
            await self.loop.sock_connect(client, address)
        except BaseException:
            client.close()
            raise
        return await self._join(kind, client)

    def _client(self, kind: str) -> socket.socket:
        client = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
        client.setblocking(False)
        if kind == "unix":
            # The accepted end is found by this name.
            self.names += 1
            client.bind(f"\0uringloop-client-{os.getpid()}-{id(self)}-{self.names}")
        return client

    async def _join(self, kind: str, client: socket.socket) -> tuple[End, End]:
        """Return both ends of a connection that the kernel has made."""
        name = client.getsockname()
        end = self.end()
        if kind == "unix":
            await self.loop.create_unix_connection(lambda: end, sock=client)
        elif kind == "tls":
            await self.loop.create_connection(
                lambda: end, sock=client, ssl=CLIENT, server_hostname="localhost", **PATIENT
            )
        else:
            await self.loop.create_connection(lambda: end, sock=client)
        found: list[End] = []

        def arrived() -> bool:
            found[:] = [
                other
                for other in self.accepted
                if other.transport is not None
                and other.transport.get_extra_info("peername") == name
            ]
            return bool(found) or (self.harmful and end.lost)

        await self.until("a connection is not accepted", arrived)
        if not found:
            raise ConnectionResetError
        self.accepted.remove(found[0])
        return end, found[0]

    async def _connect_pair(self) -> tuple[End, End]:
        ends = self.end(), self.end()
        for end, sock in zip(ends, socket.socketpair(), strict=True):
            sock.setblocking(False)
            await self.loop.create_connection(functools.partial(_same, end), sock=sock)
        return ends

    async def _connect_pipe(self) -> tuple[End, End]:
        # Only one end writes, and pipe transports do not support BufferedProtocol.
        writer, reader = Plain(self), Plain(self)
        read_fd, write_fd = os.pipe()
        await self.loop.connect_read_pipe(lambda: reader, os.fdopen(read_fd, "rb", 0))
        await self.loop.connect_write_pipe(lambda: writer, os.fdopen(write_fd, "wb", 0))
        reader.ended = True
        reader.ends_with_peer = True
        writer.reads = False
        return writer, reader

    def ends(self, which: Callable[[End], bool]) -> list[End]:
        return [end for pair in self.pairs for end in pair if which(end)]

    async def write(self, end: End, size: int, form: str) -> None:
        if not end.writable or end.transport.is_closing():
            return
        self.note("write", end, size, form)
        data = self.data(size)
        end.send(data)
        if form == "lines":
            cut = size // 3
            end.transport.writelines([data[:cut], bytearray(data[cut:])])
        elif form == "bytes":
            end.transport.write(data)
        else:
            changed = bytearray(data)
            end.transport.write(memoryview(changed) if form == "memoryview" else changed)
            changed[:] = bytes(size)

    async def write_eof(self, end: End) -> None:
        if end.writable and not end.transport.is_closing() and end.transport.can_write_eof():
            self.note("write_eof", end)
            end.ended = True
            try:
                end.transport.write_eof()
            except OSError as exc:
                # shutdown(2) fails if the connection is gone.
                if not end.lossy:
                    self.differs(f"write_eof: {exc!r}: {end}")

    async def pause(self, end: End) -> None:
        if end.usable and end.reads and not end.reading_paused:
            self.note("pause", end)
            end.reading_paused = True
            end.transport.pause_reading()

    async def resume(self, end: End) -> None:
        if end.usable and end.reading_paused:
            self.note("resume", end)
            end.resume()

    async def limit(self, end: End, high: int) -> None:
        if not end.usable or end.transport.is_closing():
            return
        if hasattr(end.transport, "set_write_buffer_limits"):
            self.note("limit", end, high)
            end.transport.set_write_buffer_limits(high)

    async def close(self, end: End) -> None:
        """Close the transport; queued data is still sent."""
        if end.usable:
            self.note("close", end)
            end.closed = True
            end.leave(failed=False)
            end.transport.close()

    async def abort(self, end: End) -> None:
        """Abort the transport; queued data is dropped."""
        if end.usable and hasattr(end.transport, "abort"):
            self.note("abort", end)
            end.aborted = True
            end.leave(failed=True)
            end.transport.abort()

    async def hand_over(self, end: End, *, settled: bool) -> None:
        """Pause, and detach the socket: what is not delivered is in it, or comes with it.

        *settled*: the peer writes after the pause has taken effect. Those bytes are in the socket.
        """
        peer = end.peer
        if not end.usable or peer is None or not hasattr(end.transport, "detach"):
            return
        self.note("hand over", end, settled)
        await self.pause(end)
        resumes = end.resumes
        await self.turns(PAUSE_TURNS if settled else 0)
        before = len(peer.sent)
        await self.write(peer, self.rng.choice((1, 100, 5000)), "bytes")
        await self.turns(self.rng.randrange(10))
        if not end.usable or end.resumes != resumes:
            return
        try:
            sock, data = end.transport.detach()
        except (RuntimeError, OSError) as exc:
            if not (isinstance(exc, RuntimeError) or self.harmful or end.lossy):
                self.differs(f"detach: {exc!r}: {end}")
            return
        end.closed = True
        end.add(data)
        if settled and len(end.received) > before:
            self.differs(f"bytes taken after a pause: {end}")
        with sock:
            await self._read_rest(end, sock)
        end.leave(failed=True)

    async def _read_rest(self, end: End, sock: socket.socket) -> None:
        try:
            while not end.complete and not end.lossy:
                data = await self.loop.sock_recv(sock, 65536)
                if not data:
                    break
                end.add(data)
        except OSError as exc:
            if not self.harmful and not end.lossy:
                self.differs(f"a detached socket: {exc!r}: {end}")
            return
        if not (end.complete or end.lossy or self.harmful):
            self.differs(f"bytes are missing after detach: {end}")

    # ── callbacks, sockets, datagrams, files ─────────────────────────────────────────────────

    async def soon(self, count: int) -> None:
        self.note("soon", count)
        ran: list[int] = []
        for number in range(count):
            self.loop.call_soon(ran.append, number)
        await asyncio.sleep(0)
        if ran != list(range(count)):
            raise Difference(f"call_soon in the order {ran}")

    async def timers(self, count: int) -> None:
        self.note("timers", count)
        for _ in range(count):
            longest = self.rng.choice((0, 1e-6, 0.001, 30 if self.simulated else 0.02))
            when = self.loop.time() + longest * self.rng.random()
            handle: list[asyncio.TimerHandle] = []

            def fire(when: float = when, handle: list[Any] = handle) -> None:
                self.timers_left -= 1
                if handle[0].cancelled():
                    self.differs("a cancelled timer has run")
                if self.loop.time() < when:
                    self.differs(f"a timer ran {when - self.loop.time()} s early")

            handle.append(self.loop.call_at(when, fire))
            if self.rng.random() < 0.3:
                handle[0].cancel()
            else:
                self.timers_left += 1

    async def thread(self, count: int) -> None:
        self.note("thread", count)
        ran: list[int] = []
        done = self.loop.create_future()

        def call() -> None:
            for number in range(count):
                self.loop.call_soon_threadsafe(ran.append, number)
                if number % 2:
                    # The loop may sleep before the next call.
                    heard = threading.Event()
                    self.loop.call_soon_threadsafe(heard.set)
                    heard.wait(10)
            self.loop.call_soon_threadsafe(done.set_result, None)

        threading.Thread(target=call).start()
        # No timeout here: only these calls may wake the loop, and a simulated clock would not wait
        # for a thread.
        await done
        if ran != list(range(count)):
            raise Difference(f"call_soon_threadsafe in the order {ran}")

    async def calls(self, count: int, cancels: int) -> None:
        """Call functions in threads, and cancel *cancels* of the calls."""
        self.note("calls", count, cancels)
        ran: list[int] = []

        def call(number: int) -> int:
            ran.append(number)
            return number // (number % 5)

        calls = [self.loop.run_in_executor(None, call, number) for number in range(count)]
        cancelled = set(self.rng.sample(range(count), min(cancels, count)))
        for number in cancelled:
            calls[number].cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for number, outcome in enumerate(outcomes):
            expected = asyncio.CancelledError if number in cancelled else ZeroDivisionError
            if number in cancelled or number % 5 == 0:
                right = isinstance(outcome, expected)
            else:
                right = outcome == number // (number % 5)
            if not right:
                raise Difference(f"call {number} has the outcome {outcome!r}")
        if len(set(ran)) != len(ran) or not set(range(count)) - cancelled <= set(ran):
            raise Difference(f"of {count} calls, without {cancelled}, these ran: {ran}")

    async def sockets(self, size: int, cancels: int) -> None:
        """Send with sock_sendall to a sock_recv that is cancelled *cancels* times."""
        self.note("sockets", size, cancels)
        left, right = socket.socketpair()
        sent, received = self.data(size), bytearray()
        left.setblocking(False)
        right.setblocking(False)

        async def send() -> None:
            await self.loop.sock_sendall(left, sent)
            left.close()

        async def receive() -> None:
            while data := await self.loop.sock_recv(right, 5000):
                received.extend(data)

        try:
            await messages.cancelling(self, send(), receive, cancels)
        except OSError as exc:
            if not self.harmful:
                raise Difference(f"sock_*: {exc!r}") from exc
        finally:
            left.close()
            right.close()
        if received != sent and not (self.harmful and sent.startswith(received)):
            raise Difference(f"sock_recv: {len(received)} of {len(sent)} bytes, or wrong bytes")

    async def streams(self, layer: str, *, compiled: bool) -> None:
        """Both ends of a connection read and write by streams."""
        self.note("streams", layer, compiled)
        conversation = Conversation(self.rng, compiled=compiled, layer=layer, harmful=self.harmful)
        try:
            await conversation.hold()
        except (OSError, EOFError) as exc:
            if not self.harmful:
                raise Difference(f"streams: {exc!r}") from exc
        difference = conversation.difference()
        if difference is not None:
            raise Difference(difference)

    async def start_tls(self, end: End) -> None:
        """Put TLS on a connection in use, at both ends."""
        pair = next(pair for pair in self.pairs if end in pair)
        if not all(
            one.writable
            and one.reads
            and one.complete
            and not (one.reading_paused or one.secure or one.transport.is_closing())
            for one in pair
        ):
            return
        self.note("start_tls", *pair)
        upgrades = [
            self._upgrade(pair[0], CLIENT, server_hostname="localhost"),
            self._upgrade(pair[1], SERVER, server_side=True),
        ]
        for failure in await asyncio.gather(*upgrades, return_exceptions=True):
            if failure is None:
                continue
            if not (self.harmful and isinstance(failure, OSError)):
                raise Difference(f"start_tls: {failure!r}") from failure
            # The protocol may not be told: its connection has ended in the handshake.
            for one in pair:
                one.leave(failed=True)
                one.transport.abort()
            self.pairs.remove(pair)
            return

    async def _upgrade(self, end: Any, context: ssl.SSLContext, **options: Any) -> None:
        end.secure = True
        transport = await self.loop.start_tls(end.transport, end, context, **PATIENT, **options)
        if transport is None:
            raise ConnectionResetError
        end.transport = transport
        self.references.append(weakref.ref(transport))

    async def tls(self) -> None:
        """A connection over TLS with a stranger who fails."""
        meeting = Meeting(self)
        self.note("tls", meeting.plan)
        try:
            await meeting.hold()
        except OSError as exc:
            if not self.harmful:
                raise Difference(f"tls: {exc!r}") from exc
        self.check()

    async def last_words(self, messages: int, how: str, *, tcp: bool) -> None:
        """A stranger sends small messages, one after the other, and its end with the last one."""
        self.note("last words", messages, how, tcp)
        end = self.end()
        end.stays_open, end.lossy = False, how == "reset"
        ours, stranger = tcp_pair() if tcp else socket.socketpair()
        ours.setblocking(False)
        sent = bytearray()
        with stranger, contextlib.suppress(*(OSError,) if self.harmful else ()):
            await self.loop.create_connection(lambda: end, sock=ours)
            for _ in range(messages):
                sent.extend(b"words")
                stranger.send(b"words")
                await self.until("words", lambda: end.lost or len(end.received) == len(sent))
            sent.extend(b"last")
            stranger.send(b"last")
            if how == "half":
                stranger.shutdown(socket.SHUT_WR)
            elif how == "reset":
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if how != "half":
                stranger.close()
            await self.until("the end of a stranger is not told", lambda: end.lost)
        if end.received != sent and not (self.harmful and sent.startswith(end.received)):
            raise Difference(f"last words: {bytes(end.received)!r}")

    async def datagrams(self, count: int, *, with_ancillary: bool) -> None:
        await messages.datagrams(self, count, messages=with_ancillary)

    async def descriptors(self, count: int, cancels: int) -> None:
        await messages.descriptors(self, count, cancels)

    async def limited(self, limit: int, count: int) -> None:
        await messages.limited(self, limit, count)

    async def file_write(self, offset: int, size: int, sync: bool) -> None:
        self.note("file_write", offset, size, sync)
        with self.disk_may_fail():
            await self.write_to_file(offset, size, sync)

    @contextlib.contextmanager
    def disk_may_fail(self) -> Iterator[None]:
        """Let a call of a file fail with an error of the disk; then see what is in the file."""
        try:
            yield
        except OSError as exc:
            if exc.errno not in (errno.ENOSPC, errno.EIO):
                raise
            if self.file is not None:
                self.content[:] = (self.folder / "file").read_bytes()

    async def write_to_file(self, offset: int, size: int, sync: bool) -> None:
        if self.file is None:
            self.file = await uringloop.open(self.folder / "file", "w+b", buffering=0)
        data = self.data(size)
        self.content.extend(bytes(max(0, offset + size - len(self.content))))
        self.content[offset : offset + size] = data
        done = await self.file.pwrite(data, offset)
        if done != size:
            raise Difference(f"pwrite: {done} of {size} bytes")
        if sync:
            await self.file.fdatasync()

    async def file_read(self, offset: int, size: int) -> None:
        if self.file is None:
            return
        self.note("file_read", offset, size)
        data = None
        with self.disk_may_fail():
            data = await self.file.pread(size, offset)
        if data is None:
            return
        wanted = self.content[offset : offset + size]
        if not (data == wanted or (data and wanted.startswith(data))):
            raise Difference(f"pread: {len(data)} of {len(wanted)} bytes, or wrong bytes")

    async def write_atomic(self, size: int) -> None:
        """Replace a file: the link of the new one and its renaming are linked requests."""
        self.note("write_atomic", size)
        path = self.folder / "replaced"
        data = self.data(size)
        before = path.read_bytes() if path.exists() else None
        written = False
        with self.disk_may_fail():
            await uringloop.fs.write_atomic(path, data)
            written = True
        after = path.read_bytes() if path.exists() else None
        if after != data and (written or after != before):
            raise Difference("write_atomic: other content")
        if list(self.folder.glob("*.tmp")):
            raise Difference("write_atomic: a file is left behind")

    async def fifo(self, turns: int, *, joined: bool) -> None:
        """Open a FIFO; then open its other end, if *joined*, or cancel the open."""
        self.note("fifo", turns, joined)
        path = self.folder / "fifo"
        if not path.exists():
            os.mkfifo(path)

        async def open_it() -> Any:
            return await uringloop.open(path, "rb", buffering=0)

        opening = asyncio.ensure_future(open_it())
        await self.turns(turns)
        writers: list[int] = []

        def join() -> bool:
            if not writers:
                # ENXIO: no thread is blocked in the open yet.
                with contextlib.suppress(OSError):
                    writers.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            return opening.done()

        if joined:
            await self.until("a FIFO is not opened", join)
        else:
            opening.cancel()
        try:
            file = await opening
            await file.close()
        except asyncio.CancelledError:
            if joined:
                raise
        finally:
            for fd in writers:
                os.close(fd)

    async def terminal(self, turns: int) -> None:
        """Cancel a read of a terminal that has no data; the next read must get what is written."""
        self.note("terminal", turns)
        master, slave = os.openpty()
        try:
            tty.setraw(slave)
            file = await uringloop.open(slave, "rb", buffering=0, closefd=False)
            reading = asyncio.ensure_future(file.read(10))
            await self.turns(turns)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
            os.write(master, b"written")
            data = b""
            while len(data) < len(b"written"):
                data += await file.read(10)
            await file.close()
            if data != b"written":
                raise Difference(f"a terminal: {data!r}")
        finally:
            os.close(slave)
            os.close(master)

    # ── finishing ────────────────────────────────────────────────────────────────────────────

    async def finish(self) -> None:
        """Wait until all data has arrived, close everything, and check that nothing is left."""
        self.note("finish")
        for end in self.ends(lambda end: end.reading_paused):
            await self.resume(end)
        await self.until("bytes are missing", self._has_arrived)
        await self.until("the end is not told", lambda: not self.ends(lambda end: not end.told))
        for end in [*self.ends(lambda end: True), *self.accepted]:
            # The reader of a pipe must see EOF when its writer is closed.
            if end.transport is not None and end.usable and not end.ends_with_peer:
                await self.close(end)
        await self.until("not lost", self._is_lost)
        await self.until("timers", lambda: not self.timers_left)
        if self.file is not None:
            await self.file.close()
            if (self.folder / "file").read_bytes() != self.content:
                raise Difference("the file has other content")
            self.file = None
        for server in self.servers.values():
            server.close()
            await server.wait_closed()
        await self.until("not idle", self._is_idle)

    def _has_arrived(self) -> bool:
        return all(end.complete or end.lossy for pair in self.pairs for end in pair)

    def _is_lost(self) -> bool:
        for end in self.accepted:
            # The connection was accepted after its client had closed it.
            if end.transport is not None and not end.lost and end.usable:
                end.closed = True
                end.transport.close()
        self.looks += 1
        for pair in self.pairs:
            if self.looks > 300 and all(end.closed and not end.lost for end in pair):
                # Neither end reads any more, and each waits for the other one to read.
                for end in pair:
                    end.leave(failed=True)
                    end.transport.abort()
        return all(end.lost for pair in self.pairs for end in pair) and all(
            end.lost or end.transport is None for end in self.accepted
        )

    def _is_idle(self) -> bool:
        stats = self.loop.stats()
        return not (stats["operations"] or stats["buffers_out"] or stats["timers_pending"])

    def leave(self) -> None:
        """Close the loop, and check that all ends and transports are collected."""
        # Connections that a fault has just ended are still to tell their protocols, and others are
        # still to be accepted.
        self.run(self.turns(4))
        if self.simulated:
            # Longer than a loop waits that has no descriptor left for a connection.
            self.run(asyncio.sleep(3))
            self.run(self.finish())
        self.loop.close()
        self.pairs.clear()
        self.accepted.clear()
        self.napping.clear()
        gc.collect()
        left = [found for reference in self.references if (found := reference()) is not None]
        if left:
            raise Difference(f"still there: {left[:3]}")
        self.check()
