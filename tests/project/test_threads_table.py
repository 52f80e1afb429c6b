"""Calls every public name of docs/reference/threads.md from a thread that does not run the loop.

The page's tables are the list of what is called, and state what must happen. Each test builds one
object on a loop that a thread of its own runs, and calls the names of one table and one rule.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.roles import PATIENCE, in_thread
from support.thread_rules import tables
from support.tls_contexts import Contexts

import uringloop
import uringloop.tls
from uringloop._cpython import gil
from uringloop._net.datagram_transport import DatagramTransport
from uringloop._net.pipe import ReadPipeTransport, WritePipeTransport
from uringloop._net.stream_transport import StreamTransport
from uringloop._process.subprocesses import SubprocessTransport
from uringloop._tls.ssl_protocol import SSLTransport
from uringloop._turn.handles import Handle, TimerHandle

T = TypeVar("T")

WRONG_THREAD = "Non-thread-safe operation invoked on an event loop other than the current one"
IN_USE = "This file is in use by another thread"
RUNNING = "RuntimeError: (This event loop is already running|Cannot close a running event loop)"


CLASSES: dict[str, type] = {
    "Loop": uringloop.Loop,
    "Handle": Handle,
    "TimerHandle": TimerHandle,
    "Server": uringloop.Server,
    "Stream transport": StreamTransport,
    "TLS transport": SSLTransport,
    "Datagram transport": DatagramTransport,
    "Read pipe": ReadPipeTransport,
    "Write pipe": WritePipeTransport,
    "Subprocess transport": SubprocessTransport,
    "RawFile": uringloop.RawFile,
    "BufferedFile": uringloop.BufferedFile,
    "TextFile": uringloop.TextFile,
}
RULES = ("any thread", "checked", "queued", "refused", "the loop's thread", "one thread")
# The functions of submodules, as docs/reference/api.md lists them.
OF_SUBMODULES = (
    *("doctor.examine", "prometheus.text"),
    *(f"monitor.{name}" for name in uringloop.monitor.__all__),
    "tls.reuse_sessions",
)


# ── the tables ───────────────────────────────────────────────────────────────────────────────


TABLES = tables()


def public_names(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


@pytest.mark.parametrize("heading", CLASSES)
def test_every_public_name_is_in_its_table_once(heading: str) -> None:
    rows = TABLES[heading]
    assert set(rows) <= set(RULES)
    assert sorted(chain.from_iterable(rows.values())) == public_names(CLASSES[heading])


def test_every_public_function_is_in_the_table_once() -> None:
    names = [name for name in uringloop.__all__ if inspect.isroutine(getattr(uringloop, name))]
    assert set(TABLES) == {*CLASSES, "Functions"}
    assert sorted(chain.from_iterable(TABLES["Functions"].values())) == sorted(
        [*names, *OF_SUBMODULES]
    )


# ── a loop in a thread ───────────────────────────────────────────────────────────────────────


class Scene:
    """A loop that runs in a thread of its own, and what its objects are made from."""

    def __init__(self, folder: Path, contexts: Contexts, *, debug: bool) -> None:
        self.folder = folder
        self.contexts = contexts
        self.debug = debug
        self.loop = uringloop.Loop()
        self.loop.set_debug(debug)
        self.loop.set_exception_handler(lambda loop, context: None)
        # Closes what a call was given, or has made.
        self.ends = contextlib.ExitStack()
        self.ending = False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.run(asyncio.sleep(0))

    def _run(self) -> None:
        # The test may call stop().
        while not self.ending:
            self.loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* on the loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    def sock(self) -> socket.socket:
        """Return one of two connected sockets, which is closed at the end."""
        pair = socket.socketpair()
        for sock in pair:
            sock.setblocking(False)
            self.ends.callback(sock.close)
        return pair[0]

    def pipe(self, mode: str) -> Any:
        """Return an end of a pipe as a file."""
        ends = os.pipe()
        used, other = ends if mode == "rb" else ends[::-1]
        self.ends.callback(os.close, other)
        return self.ends.enter_context(open(used, mode, buffering=0))

    def path(self) -> Path:
        path = self.folder / "file"
        path.write_bytes(b"one\ntwo\nthree\n")
        return path

    def end(self) -> None:
        self.run(self._cancel_all())
        self.ending = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        self.ends.close()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    async def _cancel_all(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)


# ── the objects ──────────────────────────────────────────────────────────────────────────────


async def the_loop(scene: Scene) -> uringloop.Loop:
    return scene.loop


async def a_handle(scene: Scene) -> Any:
    return scene.loop.call_soon(int)


async def a_timer(scene: Scene) -> Any:
    timer = scene.loop.call_later(3600, int)
    scene.ends.callback(timer.cancel)
    return timer


async def a_server(scene: Scene) -> Any:
    server = await scene.loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    scene.ends.callback(server.close)
    return server


async def a_stream(scene: Scene) -> Any:
    transport, _ = await scene.loop.create_connection(asyncio.Protocol, sock=scene.sock())
    scene.ends.callback(transport.abort)
    return transport


async def a_secure_stream(scene: Scene) -> Any:
    near, far = socket.socketpair()
    (server, _), (client, _) = await asyncio.gather(
        scene.loop.connect_accepted_socket(asyncio.Protocol, far, ssl=scene.contexts.server),
        scene.loop.create_connection(
            asyncio.Protocol, sock=near, ssl=scene.contexts.client, server_hostname="localhost"
        ),
    )
    for transport in (server, client):
        scene.ends.callback(transport.abort)
    return client


async def a_datagram_transport(scene: Scene) -> Any:
    transport, _ = await scene.loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, ("127.0.0.1", 0)
    )
    scene.ends.callback(transport.abort)
    return transport


async def a_read_pipe(scene: Scene) -> Any:
    transport, _ = await scene.loop.connect_read_pipe(asyncio.Protocol, scene.pipe("rb"))
    scene.ends.callback(transport.close)
    return transport


async def a_write_pipe(scene: Scene) -> Any:
    transport, _ = await scene.loop.connect_write_pipe(asyncio.BaseProtocol, scene.pipe("wb"))
    scene.ends.callback(transport.abort)
    return transport


async def a_child(scene: Scene) -> Any:
    transport, _ = await scene.loop.subprocess_exec(
        asyncio.SubprocessProtocol, "cat", stdout=subprocess.DEVNULL, stderr=None
    )
    scene.ends.callback(transport.close)
    return transport


def a_file(mode: str, buffering: int = -1) -> Callable[[Scene], Awaitable[Any]]:
    async def make(scene: Scene) -> Any:
        file: Any = await uringloop.open(scene.path(), mode, buffering)
        scene.ends.callback(lambda: scene.loop.run_until_complete(file.close()))
        return file

    return make


MAKERS: dict[str, Callable[[Scene], Awaitable[Any]]] = {
    "Loop": the_loop,
    "Handle": a_handle,
    "TimerHandle": a_timer,
    "Server": a_server,
    "Stream transport": a_stream,
    "TLS transport": a_secure_stream,
    "Datagram transport": a_datagram_transport,
    "Read pipe": a_read_pipe,
    "Write pipe": a_write_pipe,
    "Subprocess transport": a_child,
    "RawFile": a_file("r+b", 0),
    "BufferedFile": a_file("r+b"),
    "TextFile": a_file("r+"),
}


# ── the arguments ────────────────────────────────────────────────────────────────────────────


def a_coroutine(scene: Scene) -> Coroutine[Any, Any, None]:
    """Return a coroutine that may stay unused."""
    coroutine = asyncio.sleep(0)
    scene.ends.callback(coroutine.close)
    return coroutine


class Aborting(asyncio.Protocol):
    """Ends its connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


Recipe = Callable[[Scene], tuple[Any, ...]]

# By name, or by heading and name; calls without arguments are not listed.
RECIPES: dict[str, Recipe] = {
    "add_reader": lambda s: (s.sock(), int),
    "add_signal_handler": lambda s: (signal.SIGUSR1, int),
    "add_writer": lambda s: (s.sock(), int),
    "adopt": lambda s: (s.sock(), Aborting),
    "call_at": lambda s: (s.loop.time() + 3600, int),
    "call_exception_handler": lambda s: ({"message": "a test"},),
    "call_later": lambda s: (3600, int),
    "call_soon": lambda s: (int,),
    "call_soon_threadsafe": lambda s: (int,),
    "on_stall": lambda s: (print,),
    "connect_accepted_socket": lambda s: (asyncio.Protocol, s.sock()),
    "connect_read_pipe": lambda s: (asyncio.Protocol, s.pipe("rb")),
    "connect_write_pipe": lambda s: (asyncio.BaseProtocol, s.pipe("wb")),
    "create_connection": lambda s: (asyncio.Protocol, "127.0.0.1", 9),
    "create_datagram_endpoint": lambda s: (asyncio.DatagramProtocol, ("127.0.0.1", 0)),
    "create_server": lambda s: (asyncio.Protocol, "127.0.0.1", 0),
    "create_task": lambda s: (a_coroutine(s),),
    "create_unix_connection": lambda s: (asyncio.Protocol, s.folder / "socket"),
    "create_unix_server": lambda s: (asyncio.Protocol, s.folder / "socket"),
    "default_exception_handler": lambda s: ({"message": "a test"},),
    "fallocate": lambda s: (0, 1),
    "get_extra_info": lambda s: ("socket",),
    "get_pipe_transport": lambda s: (0,),
    "getaddrinfo": lambda s: ("127.0.0.1", 9),
    "getnameinfo": lambda s: (("127.0.0.1", 9),),
    "pread": lambda s: (1, 0),
    "pread_into": lambda s: (bytearray(1), 0),
    "preadv": lambda s: ([bytearray(1)], 0),
    "pwrite": lambda s: (b"x", 0),
    "pwritev": lambda s: ([b"x"], 0),
    "readinto": lambda s: (bytearray(1),),
    "readinto1": lambda s: (bytearray(1),),
    "remove_reader": lambda s: (s.sock(),),
    "remove_signal_handler": lambda s: (signal.SIGUSR1,),
    "remove_writer": lambda s: (s.sock(),),
    "run_in_executor": lambda s: (None, int),
    "run_until_complete": lambda s: (s.loop.create_future(),),
    "seek": lambda s: (0,),
    "send_signal": lambda s: (signal.SIGCONT,),
    "sendfile": lambda s: (s.run(a_stream(s)), s.ends.enter_context(s.path().open("rb"))),
    "send_segments": lambda s: (b"x", 1, ("127.0.0.1", 9)),
    "sendmsg": lambda s: ([b"x"], (), ("127.0.0.1", 9)),
    "sendto": lambda s: (b"x", ("127.0.0.1", 9)),
    "set_debug": lambda s: (s.debug,),
    "set_default_executor": lambda s: (
        s.ends.enter_context(concurrent.futures.ThreadPoolExecutor(1)),
    ),
    "set_exception_handler": lambda s: (s.loop.get_exception_handler(),),
    "set_protocol": lambda s: (asyncio.Protocol(),),
    "set_task_factory": lambda s: (None,),
    "sock_accept": lambda s: (s.sock(),),
    "sock_connect": lambda s: (s.sock(), ("127.0.0.1", 9)),
    "sock_recv": lambda s: (s.sock(), 1),
    "sock_recv_into": lambda s: (s.sock(), bytearray(1)),
    "sock_recvfrom": lambda s: (s.sock(), 1),
    "sock_recvfrom_into": lambda s: (s.sock(), bytearray(1)),
    "sock_recv_fds": lambda s: (s.sock(), 1, 1),
    "sock_recvmsg": lambda s: (s.sock(), 1),
    "sock_recvmsg_into": lambda s: (s.sock(), [bytearray(1)]),
    "sock_send_fds": lambda s: (s.sock(), [b"x"], [0]),
    "sock_sendmsg": lambda s: (s.sock(), [b"x"]),
    "sock_wait": lambda s: (s.sock(), 2),
    "sock_sendall": lambda s: (s.sock(), b"x"),
    "sock_sendfile": lambda s: (s.sock(), s.ends.enter_context(s.path().open("rb"))),
    "sock_sendto": lambda s: (s.sock(), b"x", "/nowhere"),
    "start_tls": lambda s: (s.run(a_stream(s)), asyncio.Protocol(), s.contexts.client),
    "subprocess_exec": lambda s: (asyncio.SubprocessProtocol, "true"),
    "subprocess_shell": lambda s: (asyncio.SubprocessProtocol, "true"),
    "write": lambda s: (b"x",),
    "writelines": lambda s: ([b"x"],),
    "TextFile.write": lambda s: ("x",),
    "TextFile.writelines": lambda s: (["x"],),
}


def arguments_of(heading: str, name: str, scene: Scene) -> tuple[Any, ...]:
    recipe = RECIPES.get(f"{heading}.{name}") or RECIPES.get(name)
    return () if recipe is None else recipe(scene)


def call(name: str, target: Any, arguments: tuple[Any, ...]) -> object:
    """Call the name in another thread, and await what is to be awaited there."""

    async def awaited(result: Awaitable[object]) -> object:
        return await asyncio.wait_for(asyncio.ensure_future(result), PATIENCE)

    def called() -> object:
        result = getattr(target, name)
        if callable(result):
            result = result(*arguments)
        if asyncio.iscoroutine(result):
            return asyncio.run(awaited(result))
        return result

    return in_thread(called)


# ── the rules ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=[False, True], ids=["", "debug"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, contexts: Contexts) -> Iterator[Scene]:
    made = Scene(tmp_path, contexts, debug=request.param)
    yield made
    made.end()


def each_table_with(rule: str) -> pytest.MarkDecorator:
    headings = [heading for heading in CLASSES if rule in TABLES[heading]]
    return pytest.mark.parametrize("heading", headings)


async def make_on(heading: str, scene: Scene) -> Any:
    return await MAKERS[heading](scene)


def results_of(heading: str, rule: str, scene: Scene) -> dict[str, str]:
    """Call the names of a table's rule, and return what each raises, as text, or ""."""
    target = scene.run(make_on(heading, scene))
    found = {}
    for name in TABLES[heading][rule]:
        arguments = arguments_of(heading, name, scene)
        found[name] = ""
        try:
            call(name, target, arguments)
        except Exception as exc:
            found[name] = f"{type(exc).__name__}: {exc}"
    return found


@each_table_with("any thread")
def test_any_thread_may_call(heading: str, scene: Scene) -> None:
    results = results_of(heading, "any thread", scene)
    # Methods that the class does not support raise this in every thread.
    assert set(results.values()) <= {"", "NotImplementedError: "}, results


@each_table_with("checked")
def test_checked_call_raises_asyncios_error(heading: str, scene: Scene) -> None:
    if not gil.free_threaded() and not scene.debug:
        pytest.skip("with a GIL only debug mode checks the thread")
    results = results_of(heading, "checked", scene)
    assert results == dict.fromkeys(results, f"RuntimeError: {WRONG_THREAD}")


@each_table_with("queued")
def test_queued_call_raises_in_debug_mode_and_else_is_scheduled(heading: str, scene: Scene) -> None:
    if not gil.free_threaded() and not scene.debug:
        pytest.skip("with a GIL only debug mode checks the thread")
    results = results_of(heading, "queued", scene)
    assert results == dict.fromkeys(results, f"RuntimeError: {WRONG_THREAD}" if scene.debug else "")


@each_table_with("refused")
def test_refused_call_says_that_the_loop_runs(heading: str, scene: Scene) -> None:
    for name, result in results_of(heading, "refused", scene).items():
        assert re.fullmatch(RUNNING, result), name
    assert scene.loop.is_running()


@each_table_with("the loop's thread")
def test_unchecked_call_does_not_end_the_loop(heading: str, scene: Scene) -> None:
    results_of(heading, "the loop's thread", scene)
    scene.run(asyncio.sleep(0))


@each_table_with("one thread")
def test_file_in_use_refuses_another_thread(heading: str, scene: Scene) -> None:
    if not gil.free_threaded():
        pytest.skip("with a GIL nothing checks the thread of a file")
    file = scene.run(make_on(heading, scene))
    scene.run(file._lock.acquire_in_any_turn())
    for name in TABLES[heading]["one thread"]:
        with pytest.raises(RuntimeError, match=IN_USE):
            call(name, file, arguments_of(heading, name, scene))

    async def release() -> None:
        file._lock.release()

    scene.run(release())
    assert call("readline", file, ()) in ("one\n", b"one\n")


def test_functions_may_be_called_in_any_thread(scene: Scene, tmp_path: Path) -> None:
    async def connect(file: Any) -> None:
        transport, _ = await uringloop.connect_file(asyncio.Protocol, file)
        transport.close()
        await asyncio.sleep(0.01)

    async def read() -> str:
        async with uringloop.open(scene.path()) as file:
            return await file.readline()

    assert in_thread(lambda: uringloop.run(read())) == "one\n"
    in_thread(lambda: uringloop.run(connect(scene.path().open("rb"))))
    in_thread(lambda: uringloop.new_event_loop().close())
    assert in_thread(lambda: uringloop.run_threads(read, 1)) == ["one\n"]
    assert in_thread(lambda: uringloop.monitor.start(tmp_path)) is not None
    assert in_thread(lambda: uringloop.monitor.serve("127.0.0.1:0")) is not None
    in_thread(lambda: uringloop.tls.reuse_sessions(ssl.create_default_context()))
    in_thread(uringloop.monitor.stop)
    in_thread(uringloop.monitor.stop_serving)
    assert in_thread(lambda: uringloop.prometheus.text(scene.loop))
    assert in_thread(uringloop.doctor.examine)
