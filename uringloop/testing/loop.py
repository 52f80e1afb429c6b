"""class Loop: a loop for tests."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import errno
import ipaddress
import math
import os
import random
import socket
import threading
import types
import warnings
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import uringloop.loop
from uringloop._loop.executors import ThreadPool
from uringloop._net.argument_checks import check_nonblocking
from uringloop._net.datagram_transport import make_datagram
from uringloop._net.resolver import ensure_resolved
from uringloop._net.servers import Server
from uringloop._tls.ssl_protocol import SSLProtocol
from uringloop._turn import tracing, watchers
from uringloop.testing import outside
from uringloop.testing.connections import Connections
from uringloop.testing.core import FAULTS, TestingCore
from uringloop.testing.datagrams import Datagrams, Endpoint
from uringloop.testing.faults import Faults
from uringloop.testing.network import LOCALHOST, Network
from uringloop.testing.virtual_sockets import VirtualSocket
from uringloop.testing.weak_list import WeakList

T = TypeVar("T")

# The longest delay of a piece of data, and the largest piece that is taken apart into single bytes.
DELAY_MAX_S = 0.5
SPLIT_MAX = 64
# How long resolving a slow name takes at most.
SLOW_NAME_MAX_S = 5.0
SLOW_CALL_MAX_S = 2.0
# How long, in real time, the shutdown of a pool of threads is put off at most.
LATE_MAX_S = 1.0
# Half of the short transfers have at most so many bytes, as those of the ring: simulation.c.
SHORT_MAX = 7


def is_name(host: object) -> bool:
    """Return whether *host* has to be looked up: it is no address, and not "every address"."""
    if not host:
        return False
    try:
        ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host))
    except ValueError:
        return True
    return False


class Task(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have the same order in each run."""

    def __init__(self, number: int, coroutine: Any, **options: Any) -> None:
        # Set it first: asyncio puts the task into a set while it is made.
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


# repr() shows asyncio's name, as only the hash differs from asyncio's class.
Task.__module__ = "asyncio"


def call_after(begin: threading.Lock, func: Callable[..., T], *args: Any) -> T:
    """Call *func* in a thread once *begin* is free."""
    begin.acquire()
    return func(*args)


# The executors whose threads wait for nothing but calls.
POOLS = (ThreadPoolExecutor, ThreadPool)


class LatePool:
    """Stands in for *pool*, whose shutdown begins only once *begin* is released."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.begin = threading.Lock()
        self.begin.acquire()

    def shutdown(self, wait: bool = True) -> None:
        if wait:
            # Do not wait for ever: the loop may stop before it releases the lock.
            self.begin.acquire(timeout=LATE_MAX_S)
        self.pool.shutdown(wait)


# How far the clocks of closed loops have advanced, in seconds, and the loops that are open.
_closed_s = 0.0
_open: WeakList[Loop] = WeakList()


def total_elapsed() -> float:
    """Return for how many seconds the clocks of all loops have advanced together."""
    return _closed_s + sum(loop.elapsed() for loop in _open if not loop.is_closed())


class Loop(TestingCore, uringloop.loop.Loop):
    """A loop for tests: virtual time, and an order of callbacks that *seed* chooses.

    *seed*: a number, or a random.Random whose randrange() makes each choice. hypothesis can supply
    one that it shrinks: 0 stands for what happens on an ordinary loop.

    `time()` stands still while anything can run, and jumps to the next deadline when nothing can.
    While something outside works (a child, a thread, another program that was asked), it advances
    as real time does. If nothing can ever run, run_forever() raises DeadlockError.

    *order*: "random" lets the seed choose among the orders in which tasks may run, "fifo" keeps
    that of ordinary loops.

    *faults*: what goes wrong, with what probability; nothing by default.

    *network*: what lies between the program and its own servers; nothing by default.

    *kernel_sockets*: connections between the program and its own servers go through the kernel, as
    on other loops, and not through *network*. Its TCP takes decisions by real time.

    *time_limit*: seconds that the clock may advance; then run_forever() raises TimeLimitError.

    *trace*: a file to append to, with a line for each callback, timer, submission and completion.
    The same seed gives the same lines.
    """

    # The clock of a new loop. With 0, a program that takes 0 for "never" would do something else
    # than on a real machine, whose clock counts from its start.
    START_S = 1000.0

    def __init__(
        self,
        seed: int | random.Random = 0,
        *,
        order: Literal["random", "fifo"] = "random",
        faults: Faults | None = None,
        network: Network | None = None,
        kernel_sockets: bool = False,
        time_limit: float | None = None,
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        if order not in ("random", "fifo"):
            raise ValueError(f"order must be 'random' or 'fifo', not {order!r}")
        if not isinstance(seed, (int, random.Random)):
            raise TypeError(f"seed must be an int or a random.Random, not {seed!r}")
        if not isinstance(faults, (Faults, types.NoneType)):
            raise TypeError(f"faults must be a testing.Faults, not {faults!r}")
        # An absolute path, because "1" is the name of a file here.
        trace_fd = -1 if trace is None else tracing.output(os.path.abspath(trace))
        super().__init__(
            backend="soft", warn_fallback=False, ring_files=True, nestable=False, stall_ms=0
        )
        limit = math.inf if time_limit is None else time_limit
        self._outside = outside.Outside(self, limit)
        self._simulate(self.START_S, order == "random", self._outside, trace_fd)
        self.faults = Faults() if faults is None else faults
        self.network = Network() if network is None else network
        self._connections = Connections(self, has_network=network is not None)
        self._datagrams = Datagrams(self)
        self._kernel_sockets = kernel_sockets
        self._happened: collections.Counter[str] = collections.Counter()
        self._newest_task = 0
        _open.add(self)
        self.reseed(seed)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if self.get_task_factory() is not None:
            made: asyncio.Task[Any] = super().create_task(coro, **options)
            return made
        self._check_closed()
        self._newest_task += 1
        if options.get("name") is None:
            # asyncio's numbers go on from one loop to the next, and would differ in each run.
            options["name"] = f"Task-{self._newest_task}"
        task = Task(self._newest_task, coro, loop=self, **options)
        if task._source_traceback:  # type: ignore[attr-defined]
            # Neither this method nor the task's own is where the program makes it.
            del task._source_traceback[-2:]  # type: ignore[attr-defined]
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        if self._happens("cancelled_call"):
            cancelled: asyncio.Future[Any] = self.create_future()
            self.call_soon(cancelled.cancel)
            return cancelled
        self._check_closed()
        if self.get_debug():
            self._check_callback(func, "run_in_executor")
        pool = self._executor.get() if executor is None else executor
        before = self._newest_call()
        begin = threading.Lock()
        with begin:
            if type(pool) in POOLS:
                # The thread begins only when its answer is waited for, not by chance before.
                args, func = (begin, func, *args), call_after
            future = super().run_in_executor(executor, func, *args)
        self._outside.calls += 1
        future.add_done_callback(self._call_ended)
        if isinstance(pool, ThreadPoolExecutor):
            self._let_thread_work(before)
        if self._happens("slow_call"):
            return self._delayed(future, self.random() * SLOW_CALL_MAX_S)
        return future

    def _delayed(self, call: asyncio.Future[Any], seconds: float) -> asyncio.Future[Any]:
        """Return a future that becomes done *seconds* after *call*, with the same outcome."""
        late: asyncio.Future[Any] = self.create_future()

        def pass_on() -> None:
            if late.done():
                return
            if call.cancelled():
                late.cancel()
            elif (error := call.exception()) is not None:
                late.set_exception(error)
            else:
                late.set_result(call.result())

        def pass_cancel(_: object) -> None:
            if late.cancelled():
                call.cancel()

        call.add_done_callback(lambda _: self.call_later(seconds, pass_on))
        late.add_done_callback(pass_cancel)
        return late

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        pool = self._executor.pool
        if pool is not None and type(pool) in POOLS:
            late = LatePool(pool)
            self._executor.pool = late  # type: ignore[assignment]
            # Release the lock in the next turn. By then this coroutine waits for the thread that
            # joins the pool's, and its answer comes at the same point of each run.
            self.call_soon(self._let_pool_end, late)
        await super().shutdown_default_executor(timeout)

    def _let_pool_end(self, late: LatePool) -> None:
        before = self._newest_call()
        late.begin.release()
        self._let_thread_work(before)

    def _call_ended(self, future: asyncio.Future[Any]) -> None:
        self._outside.calls -= 1

    def _is_encrypted(self, fd: int) -> bool:
        """Return whether *fd* belongs to a transport under TLS."""
        transport = watchers.transport_of(self, fd)
        get_protocol = getattr(transport, "get_protocol", None)
        return get_protocol is not None and type(get_protocol()) is SSLProtocol

    # ── connections ──────────────────────────────────────────────────────────────────────────

    async def create_server(self, *args: Any, **options: Any) -> Server:
        server = await super().create_server(*args, **options)
        self._connections.servers.add(server)
        return server

    async def create_unix_server(self, *args: Any, **options: Any) -> Server:
        server = await super().create_unix_server(*args, **options)
        self._connections.servers.add(server)
        return server

    def _usual_names(self) -> None:
        """Have the default executor resolve names: a seed decides when its answers come."""

    async def getaddrinfo(self, host: Any, *args: Any, **options: Any) -> Any:
        if is_name(host) and self._happens("slow_name"):
            await asyncio.sleep(self.random() * SLOW_NAME_MAX_S)
        if is_name(host) and self._happens("no_name"):
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if self.network.knows(host):
            host = self.network.address(host)
        elif host not in (None, "", LOCALHOST):
            return await super().getaddrinfo(host, *args, **options)
        # Resolve the name at once: a thread would take time.
        return socket.getaddrinfo(host, *args, **options)

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        # A socket of a class of the program's own stays as it is.
        is_plain = type(sock) in (socket.socket, VirtualSocket) and sock.type == socket.SOCK_STREAM
        if is_plain and not self._kernel_sockets:
            if self.get_debug():
                check_nonblocking(sock)
            if sock.family != socket.AF_UNIX:
                infos = await ensure_resolved(
                    self, address, family=sock.family, type=sock.type, proto=sock.proto
                )
                if not infos:
                    raise OSError("getaddrinfo() returned empty list")
                address = infos[0][4]
            if isinstance(sock, VirtualSocket):
                raise OSError(errno.EISCONN, os.strerror(errno.EISCONN))
            if await self._connections.connect(sock, address):
                return
        await super().sock_connect(sock, address)

    async def create_datagram_endpoint(
        self, protocol_factory: Any, local_addr: Any = None, remote_addr: Any = None, **options: Any
    ) -> Any:
        host = self.network.current_address()
        wanted = remote_addr or ("", 0)
        is_internet = options.get("family", 0) in (0, socket.AF_INET) and ":" not in str(wanted[0])
        is_chosen = bool(local_addr or options.get("sock"))
        if host and is_internet and not is_chosen and (remote_addr or options.get("family")):
            # Otherwise connect(2) would bind the socket to the address of localhost.
            local_addr = (host, 0)
        return await super().create_datagram_endpoint(
            protocol_factory, local_addr, remote_addr, **options
        )

    def _make_datagram(
        self, sock: socket.socket, protocol: Any, address: Any, waiter: asyncio.Future[None]
    ) -> Any:
        if self._kernel_sockets or sock.type != socket.SOCK_DGRAM:
            return super()._make_datagram(sock, protocol, address, waiter)
        family = sock.family
        endpoint = make_datagram(self, sock, protocol, address, waiter, Endpoint)
        self._datagrams.add(endpoint, family, address)
        return endpoint

    # ── faults ───────────────────────────────────────────────────────────────────────────────

    def _parts(self, data: bytes) -> list[bytes]:
        """Return *data*, or the parts into which faults take it apart."""
        if len(data) > 1 and self._happens("split"):
            size = 1 if len(data) <= SPLIT_MAX else self._size_below(len(data))
            return [data[start : start + size] for start in range(0, len(data), size)]
        parts = []
        while len(data) > 1 and self._happens("short"):
            is_small = len(data) > SHORT_MAX and self.random() < 0.5
            size = self._size_below(SHORT_MAX + 1 if is_small else len(data))
            parts.append(data[:size])
            data = data[size:]
        return [*parts, data]

    def _size_below(self, limit: int) -> int:
        """Return a random size from 1 to *limit* - 1 bytes."""
        return 1 + int(self.random() * (limit - 1))

    def _network_delay(self) -> float:
        """Return for how many seconds longer a piece of data is under way."""
        return self.random() * DELAY_MAX_S if self._happens("delay") else 0.0

    def _happens(self, kind: str) -> bool:
        """Return whether a fault happens now, and count it."""
        chance = self._faults.chance(kind)
        # The random number 0 must never make a fault happen: see simulation_random_below().
        if not chance or 1 - self.random() > chance:
            return False
        self._happened[kind] += 1
        return True

    @property
    def faults(self) -> Faults:
        """What goes wrong, and how often; a test may change it at any time."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        self._set_chances([faults.chance(kind) for kind in FAULTS], faults.stall)

    def close(self) -> None:
        global _closed_s
        was_open = not self.is_closed()
        super().close()
        with warnings.catch_warnings():
            # The transports within the network are not the program's, which cannot close them.
            warnings.simplefilter("ignore", ResourceWarning)
            self._connections.forget()
        if was_open:
            _closed_s += self.elapsed()
        # Drop what refers back to the loop, so that its last reference frees it.
        self._outside.forget()
        self._connections.loop = self._datagrams.loop = None  # type: ignore[assignment]

    def faults_happened(self) -> dict[str, int]:
        """Return how often each kind of fault has happened."""
        # The ring and this package's Python each count their own.
        of_ring = self._faults_happened()
        kinds = [field.name for field in dataclasses.fields(Faults)]
        return {kind: of_ring.get(kind, 0) + self._happened[kind] for kind in kinds}

    def elapsed(self) -> float:
        """Return for how many seconds the loop's clock has advanced."""
        return self.time() - self.START_S
