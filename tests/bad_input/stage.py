"""The environment of a bad call: a loop of either kind, objects that the call uses, its outcome.

Calls are compared by their `Outcome`: the exception or the result, and all visible side effects:
reports, warnings, log records, callbacks that ran.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import inspect
import logging
import re
import shutil
import socket
import ssl
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from support.leaks import open_fds, threads_left
from support.loops import LoopFactory, drain_executor, run_turns
from support.roles import in_thread
from support.sockets import tcp_pair

# No case waits longer on purpose.
TIME_LIMIT = 20.0

# Patterns of text that may differ, such as class names and addresses, and their replacements; all
# other text must be equal.
NORMAL = (
    (r"<(Loop|_UnixSelectorEventLoop) (running=\w+ closed=\w+ debug=\w+)>", r"<Loop \2>"),
    (
        r"<(StreamTransport|_SelectorSocketTransport)( \w+)*( fd=-?\d+)?"
        r"( read=\w+ write=<\w+, bufsize=\d+>)?>",
        "<Transport>",
    ),
    (r"\b(StreamTransport|_SelectorSocketTransport)\b", "Transport"),
    (
        r"\b(BaseEventLoop|BaseSelectorEventLoop|_UnixSelectorEventLoop|_FlowControlMixin"
        r"|BaseLoop|Loop)\.(\w+\()",
        r"\2",
    ),
    # Debug mode: the line of the loop that created an object.
    (r"(created at) \S*/(asyncio|uringloop)/\w+\.py:\d+", r"\1 the loop"),
    # A future names the caller of create_future(), and in asyncio create_future() itself.
    (r"(<Future \w+ created at) [^<>]+>", r"\1 the loop>"),
    # A compiled method does not count self among the arguments.
    (r"(create_future\(\) takes) .* given\)?", r"\1 no arguments"),
    # A stack includes frames of asyncio: only the frame of the caller is compared.
    (r"(<FrameSummary file [^,]*, line \d+ in (<\w+>|[^<>]*)>, )+(?=<FrameSummary)", ""),
    (r"([Cc]reated at \(most recent call last\):?)(\n  .*)+", r"\1"),
    (r"\bfd=-?\d+", "fd=N"),
    (r"(File descriptor) \d+", r"\1 N"),
    (r"('127\.0\.0\.1', )\d+", r"\1N"),
    (r"('::1', )\d+", r"\1N"),
    (r"\b0x[0-9a-f]+", "0x0"),
    (r"Task-\d+", "Task-N"),
)


def normal(text: str) -> str:
    for pattern, replacement in NORMAL:
        text = re.sub(pattern, replacement, text)
    return text


async def coroutine_function() -> None:
    """Not a valid callback: its coroutine would never be awaited."""


class AsyncCallable:
    """An object whose call returns a coroutine."""

    async def __call__(self) -> None:
        """Do nothing."""


class BadFileno:
    """An object whose fileno() returns, or raises, the given value."""

    def __init__(self, number: object) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"BadFileno({self.number!r})"

    def fileno(self) -> object:
        if isinstance(self.number, Exception):
            raise self.number
        return self.number


@functools.cache
def client_context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@functools.cache
def server_context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


class Stage:
    """A loop, and the objects that a call needs; close() closes all of them."""

    # Any: the arguments of its methods are wrong on purpose.
    loop: Any

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Path) -> None:
        self.loop = loop
        self.directory = directory
        self.notes: list[str] = []
        self._stack = contextlib.ExitStack()
        self._transports: list[asyncio.Transport] = []

    def note(self, *args: object) -> None:
        """A valid callback, which notes that it ran."""
        self.notes.append(f"ran{args!r}")

    def on_close(self, function: Callable[[], object]) -> None:
        self._stack.callback(function)

    def coroutine(self) -> Coroutine[Any, Any, None]:
        """Return a coroutine that is closed in the end, so that Python does not warn."""
        made = coroutine_function()
        self._stack.callback(made.close)
        return made

    def elsewhere(self, function: Callable[[], object]) -> object:
        """Return or raise what *function* does in another thread."""
        return in_thread(function)

    # ── sockets and files ────────────────────────────────────────────────────────────────────

    def own(self, sock: socket.socket) -> socket.socket:
        return self._stack.enter_context(sock)

    def tcp(self) -> socket.socket:
        """Return a connected, non-blocking TCP socket."""
        left, right = tcp_pair()
        self.own(right)
        return self.own(left)

    def blocking(self) -> socket.socket:
        sock = self.tcp()
        sock.setblocking(True)
        return sock

    def timed(self) -> socket.socket:
        sock = self.tcp()
        sock.settimeout(1.0)
        return sock

    def fresh(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> socket.socket:
        """Return a non-blocking socket that is neither bound nor connected."""
        sock = self.own(socket.socket(family, kind))
        sock.setblocking(False)
        return sock

    def udp(self) -> socket.socket:
        return self.fresh(kind=socket.SOCK_DGRAM)

    def unix(self) -> socket.socket:
        return self.fresh(socket.AF_UNIX)

    def unix_datagram(self) -> socket.socket:
        return self.fresh(socket.AF_UNIX, socket.SOCK_DGRAM)

    def closed(self) -> socket.socket:
        sock = self.fresh()
        sock.close()
        return sock

    def tls(self) -> socket.socket:
        """Return a socket that ssl has wrapped."""
        wrapped = client_context().wrap_socket(
            self.tcp(), do_handshake_on_connect=False, server_hostname="host"
        )
        return self.own(wrapped)

    def listener(self) -> socket.socket:
        sock = self.own(socket.create_server(("127.0.0.1", 0)))
        sock.setblocking(False)
        return sock

    def taken(self) -> int:
        """Return a port with a listener."""
        port = self.listener().getsockname()[1]
        assert isinstance(port, int)
        return port

    def unused(self) -> int:
        """Return a port without a listener."""
        sock = self.own(socket.socket())
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        assert isinstance(port, int)
        return port

    def file(self, mode: str = "rb") -> Any:
        """Return an open file with four bytes in it."""
        path = self.directory / "file"
        path.write_bytes(b"text")
        return self._stack.enter_context(path.open(mode))

    def path(self, name: str = "socket") -> str:
        return str(self.directory / name)

    # ── connections ──────────────────────────────────────────────────────────────────────────

    async def transport(self, protocol: asyncio.BaseProtocol | None = None) -> Any:
        """Return a transport that is connected to a silent peer."""
        made, _ = await self.loop.create_connection(
            lambda: protocol or asyncio.Protocol(), sock=self.tcp()
        )
        self._transports.append(made)
        return made

    async def server(self, **options: object) -> Any:
        """Return a server on a free port."""
        server = await self.loop.create_server(asyncio.Protocol, "127.0.0.1", 0, **options)
        self._stack.callback(server.close)
        return server

    def close(self) -> None:
        with contextlib.closing(self.loop), self._stack:
            if self.loop.is_closed():
                return
            for transport in self._transports:
                if not transport.is_closing():
                    transport.abort()
            run_turns(self.loop, 4)
            self._stack.close()
            run_turns(self.loop, 4)
            drain_executor(self.loop)


Call = Callable[[Stage], object]


def on_transport(call: Callable[[Any], object]) -> Call:
    """Make a call that is given a connected transport."""

    async def run(stage: Stage) -> object:
        return call(await stage.transport())

    return run


def on_server(call: Callable[[Any], object], **options: object) -> Call:
    """Make a call that is given a server; what it returns is awaited."""

    async def run(stage: Stage) -> object:
        result = call(await stage.server(**options))
        return await result if inspect.isawaitable(result) else result

    return run


# ── modes ────────────────────────────────────────────────────────────────────────────────────


async def _awaited(result: Awaitable[object]) -> object:
    waiting = asyncio.ensure_future(result)
    # In steps of a second, so that a long pause of the machine counts as one second.
    for _ in range(int(TIME_LIMIT)):
        done, _pending = await asyncio.wait([waiting], timeout=1)
        if done:
            return await waiting
    return await asyncio.wait_for(waiting, 1)


def _plain(stage: Stage, call: Call) -> object:
    """Call while the loop does not run."""
    result = call(stage)
    if inspect.isawaitable(result) and not isinstance(result, asyncio.Task):
        result = stage.loop.run_until_complete(_awaited(result))
    if not stage.loop.is_closed():
        run_turns(stage.loop, 3)
    return result


def _debug(stage: Stage, call: Call) -> object:
    """The same in debug mode."""
    stage.loop.set_debug(True)
    return _plain(stage, call)


def _running(stage: Stage, call: Call) -> object:
    """Call from inside the running loop."""

    async def main() -> object:
        result = call(stage)
        if inspect.isawaitable(result) and not isinstance(result, asyncio.Task):
            result = await _awaited(result)
        return result

    return _plain(stage, lambda _: main())


def _running_debug(stage: Stage, call: Call) -> object:
    """The same in debug mode."""
    stage.loop.set_debug(True)
    return _running(stage, call)


def _closed(stage: Stage, call: Call) -> object:
    """Call on a closed loop; an awaitable result is awaited on a loop of asyncio's."""
    stage.loop.close()
    result = call(stage)
    if inspect.isawaitable(result):
        with contextlib.closing(asyncio.SelectorEventLoop()) as other:
            result = other.run_until_complete(_awaited(result))
    return result


MODES: dict[str, Callable[[Stage, Call], object]] = {
    "plain": _plain,
    "debug": _debug,
    "running": _running,
    "running_debug": _running_debug,
    "closed": _closed,
}


# ── cases ────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True)
class Case:
    """One call in one mode."""

    name: str
    mode: str
    call: Call

    def __str__(self) -> str:
        return f"{self.mode}: {self.name}"


def cases(modes: str, calls: Mapping[str, Call]) -> list[Case]:
    """Return a case for each call in each of the blank-separated modes."""
    return [Case(name, mode, call) for mode in modes.split() for name, call in calls.items()]


@dataclasses.dataclass
class Outcome:
    """The result of a call, and its visible side effects."""

    ended: str = ""
    errno: int | None = None
    cause: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)
    reports: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    logs: list[str] = dataclasses.field(default_factory=list)


# Kinds of results; objects of compiled classes are instances of these by their __class__.
KINDS = (
    asyncio.TimerHandle,
    asyncio.Handle,
    asyncio.Task,
    asyncio.Future,
    asyncio.AbstractServer,
    asyncio.BaseTransport,
)


def described(result: object) -> str:
    """Return a result as text: its kind if it is one of KINDS, its repr otherwise."""
    for kind in KINDS:
        if isinstance(result, kind):
            return kind.__name__
    return normal(repr(result))


def of_exception(exc: object) -> str:
    if not isinstance(exc, BaseException):
        return ""
    text = f"{type(exc).__module__}.{type(exc).__qualname__}: {normal(str(exc))}"
    if isinstance(exc, BaseExceptionGroup):
        text += "".join(f" ({of_exception(each)})" for each in exc.exceptions)
    return text


class Records(logging.Handler):
    """Keeps what asyncio logs from warnings upwards."""

    def __init__(self, kept: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        exc = record.exc_info[1] if record.exc_info else None
        self.kept.append(f"{normal(record.getMessage())} {of_exception(exc)}".strip())


@contextlib.contextmanager
def _watched(outcome: Outcome) -> Iterator[None]:
    """Keep the warnings and log records of the body in *outcome*."""
    logger = logging.getLogger("asyncio")
    records = Records(outcome.logs)
    logger.addHandler(records)
    propagates, logger.propagate = logger.propagate, False
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        outcome.warnings = [f"{w.category.__name__}: {normal(str(w.message))}" for w in caught]
    finally:
        logger.propagate = propagates
        logger.removeHandler(records)


def observe(case: Case, factory: LoopFactory, directory: Path) -> Outcome:
    """Make the call of *case* on a new loop and return its outcome."""
    outcome = Outcome()
    gc.collect()
    fds, threads = open_fds(), set(threading.enumerate())
    # The same path for both loops, without files that the other one has left.
    here = directory / "here"
    here.mkdir()
    with _watched(outcome):
        _perform(case, factory, here, outcome)
        gc.collect()
    shutil.rmtree(here)
    left = open_fds() - fds
    assert not left, f"file descriptors left open by {factory}: {sorted(left)}"
    assert not threads_left(threads), "a thread is left"
    return outcome


def _perform(case: Case, factory: LoopFactory, directory: Path, outcome: Outcome) -> None:
    def report(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        keys = ", ".join(sorted(context))
        message = normal(str(context.get("message")))
        exc = of_exception(context.get("exception"))
        outcome.reports.append(f"{message} [{keys}] {exc}".strip())

    loop = factory()
    # Python's development mode turns it on; a case chooses debug mode by its `mode`.
    loop.set_debug(False)
    loop.slow_callback_duration = TIME_LIMIT
    loop.set_exception_handler(report)
    stage = Stage(loop, directory)
    outcome.notes = stage.notes
    try:
        result = MODES[case.mode](stage, case.call)
        outcome.ended = f"returned {described(result)}"
        if isinstance(result, asyncio.Future) and result.done() and not result.cancelled():
            outcome.ended += f" with {of_exception(result.exception())}"
    except (KeyboardInterrupt, concurrent.futures.BrokenExecutor):
        raise
    except BaseException as exc:
        outcome.ended = f"raised {of_exception(exc)}"
        outcome.errno = getattr(exc, "errno", None)
        outcome.cause = of_exception(exc.__cause__)
    try:
        stage.close()
    except Exception as exc:
        outcome.ended += f", and the loop can run no more: {of_exception(exc)}"
