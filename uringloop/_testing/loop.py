"""class Loop: a loop for tests."""

from __future__ import annotations

import asyncio
import collections
import errno
import math
import os
import socket
import warnings
import weakref
from asyncio import constants
from concurrent.futures import Executor
from typing import Any, Literal

import uringloop.loop
from uringloop._net.argument_checks import check_nonblocking
from uringloop._net.listener import Listener
from uringloop._net.resolver import ensure_resolved
from uringloop._net.servers import Server
from uringloop._testing import outside
from uringloop._testing.core import FAULTS, TestingCore
from uringloop._testing.faults import Faults
from uringloop._testing.network import LOCALHOST, Network
from uringloop._testing.servers import EVERY_ADDRESS, Servers
from uringloop._testing.virtual_sockets import (
    VirtualSocket,
    connect_pair,
    name_ends,
    replace_descriptor,
)
from uringloop._testing.wire import Wire
from uringloop._turn import tracing

# Ports of clients, in this order: the kernel's would differ from run to run.
PORT_MIN, PORT_MAX = 49152, 65535
LOCAL_ADDRESS: dict[int, str] = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
# How long TCP tries to connect: Linux sends a SYN seven times.
CONNECT_TIMEOUT_S = 127.0
# The longest delay of a fault, and the most bytes that one takes apart into single ones.
DELAY_MAX_S = 0.5
SPLIT_MAX = 64
# The faults that this module lets happen.
NETWORK_FAULTS = ("delay", "split", "refused", "no_name", "no_files")


class NumberedTask(asyncio.Task[Any]):
    """A task with its number as its hash: sets of tasks have the same order in each run."""

    def __init__(self, number: int, coroutine: Any, **options: Any) -> None:
        # First: the task is put into a set while it is made.
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class RouteWaiter:
    """Resolves a future when the routes of a network change."""

    def __init__(self, changed: asyncio.Future[None]) -> None:
        self.changed = changed

    def route_changed(self) -> None:
        if not self.changed.done():
            self.changed.set_result(None)


class Loop(TestingCore, uringloop.loop.Loop):
    """A loop for tests: virtual time, and an order of callbacks that *seed* chooses.

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

    # The clock of a new loop. Not 0: a program that takes 0 for "never" would differ from what it
    # does on a machine, whose clock counts from its start.
    START_S = 1000.0

    def __init__(
        self,
        seed: int = 0,
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
        super().__init__(backend="soft", warn_fallback=False, nestable=False, stall_ms=0)
        limit = math.inf if time_limit is None else time_limit
        trace_fd = -1 if trace is None else tracing.output(os.fspath(trace))
        self._outside = outside.Outside(self, limit)
        self._simulate(seed, self.START_S, order == "random", self._outside, trace_fd)
        self.faults = Faults() if faults is None else faults
        self.network = Network() if network is None else network
        self._kernel_sockets = kernel_sockets
        self._happened: collections.Counter[str] = collections.Counter()
        self._wires: list[weakref.ref[Wire]] = []
        self._servers = Servers()
        self._newest_port = PORT_MIN - 1
        self._newest_task = 0

    def reseed(self, seed: int) -> None:
        """Begin again with the random numbers of *seed*."""
        self._reseed(seed)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if self.get_task_factory() is not None:
            task: asyncio.Task[Any] = super().create_task(coro, **options)
            return task
        self._check_closed()
        self._newest_task += 1
        return NumberedTask(self._newest_task, coro, loop=self, **options)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._outside.calls += 1
        future.add_done_callback(self._call_ended)
        return future

    def _call_ended(self, future: asyncio.Future[Any]) -> None:
        self._outside.calls -= 1

    # ── connections ──────────────────────────────────────────────────────────────────────────

    async def create_server(self, *args: Any, **options: Any) -> Server:
        server = await super().create_server(*args, **options)
        self._servers.add(server)
        return server

    async def create_unix_server(self, *args: Any, **options: Any) -> Server:
        server = await super().create_unix_server(*args, **options)
        self._servers.add(server)
        return server

    async def getaddrinfo(self, host: Any, *args: Any, **options: Any) -> Any:
        if self._happens("no_name", self._faults.no_name):
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if self.network.knows(host):
            host = self.network.address(host)
        elif host not in (None, "", LOCALHOST):
            return await super().getaddrinfo(host, *args, **options)
        # At once: a thread would take time.
        return socket.getaddrinfo(host, *args, **options)

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        if sock.family != socket.AF_UNIX:
            (_, _, _, _, address), *_ = await ensure_resolved(
                self, address, family=sock.family, type=sock.type, proto=sock.proto
            )
        # A class of the program's own keeps its socket.
        if type(sock) not in (socket.socket, VirtualSocket) or sock.type != socket.SOCK_STREAM:
            await super().sock_connect(sock, address)
            return
        if self.get_debug():
            check_nonblocking(sock)
        if isinstance(sock, VirtualSocket):
            raise OSError(errno.EISCONN, os.strerror(errno.EISCONN))
        if self._kernel_sockets:
            await super().sock_connect(sock, address)
            return
        name = self._name_of(sock, address)
        hosts = self.network.host_of(name), self.network.host_of(address)
        listener = self._servers.find(sock.family, address)
        if listener is not None or hosts[0] != hosts[1]:
            await self._reach(hosts)
            listener = self._servers.find(sock.family, address)
        if listener is None:
            await super().sock_connect(sock, address)
            return
        route = self.network.route(*hosts)
        if self._happens("refused", self._faults.refused):
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {address}")
        if route.is_direct and hosts[0] == hosts[1] and not self._has_network_faults():
            accepted = connect_pair(sock, name, address)
        else:
            accepted = self._connect_wire(sock, name, address, hosts)
        # As a timer: the seed chooses when the server accepts.
        self.call_later(0, self._accept, listener, accepted)

    async def _reach(self, hosts: tuple[str, str]) -> None:
        """Wait until the other host has answered. Raises the TimeoutError of TCP."""
        gives_up = self.time() + CONNECT_TIMEOUT_S
        while True:
            while not (route := self.network.route(*hosts)).open:
                changed = self.create_future()
                self.network.add_waiting(waiting := RouteWaiter(changed))
                timer = self.call_at(gives_up, waiting.route_changed)
                try:
                    await changed
                finally:
                    timer.cancel()
                if self.time() >= gives_up:
                    raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            if route.is_direct:
                return
            await asyncio.sleep(2 * route.latency + route.jitter * self._random())
            if self.network.route(*hosts).open:
                return

    def _connect_wire(
        self, sock: socket.socket, name: Any, address: Any, hosts: tuple[str, str]
    ) -> socket.socket:
        wire = Wire(self, *hosts)
        self._wires = [known for known in self._wires if known() is not None]
        self._wires.append(weakref.ref(wire))
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        wire.attach(0, far)
        replace_descriptor(sock, near)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        wire.attach(1, far)
        return name_ends(sock, near, name, address)

    def _has_network_faults(self) -> bool:
        return bool(self._faults.delay or self._faults.split)

    def pieces(self, data: bytes) -> list[bytes]:
        """Return *data*, or the parts into which a fault takes it apart."""
        if not self._happens("split", self._faults.split):
            return [data]
        size = 1 if len(data) <= SPLIT_MAX else 1 + int(self._random() * len(data))
        return [data[start : start + size] for start in range(0, len(data), size)]

    def network_delay(self) -> float:
        """Return for how many seconds longer a piece of data is under way."""
        if not self._happens("delay", self._faults.delay):
            return 0.0
        return self._random() * DELAY_MAX_S

    def random(self) -> float:
        """Return a random number from 0 to below 1, from the seed's sequence."""
        return self._random()

    def _happens(self, kind: str, chance: float) -> bool:
        """Return whether a fault happens now, and count it."""
        if not chance or self._random() >= chance:
            return False
        self._happened[kind] += 1
        return True

    def _name_of(self, sock: socket.socket, address: Any) -> Any:
        """Return the name of a client's socket, which TCP chooses when it connects."""
        name = sock.getsockname()
        if sock.family == socket.AF_UNIX or name[1]:
            return name
        host = name[0]
        if host in EVERY_ADDRESS.values():
            current = self.network.current_address()
            host = current or address[0]
            if host == EVERY_ADDRESS[sock.family]:
                host = LOCAL_ADDRESS[sock.family]
            if current is None and self.network.knows_address(host):
                host = self.network.address(LOCALHOST)
        self._newest_port = self._newest_port + 1 if self._newest_port < PORT_MAX else PORT_MIN
        return (host, self._newest_port, *address[2:])

    def _accept(self, listener: Listener, accepted: socket.socket) -> None:
        if self._happens("no_files", self._faults.no_files):
            # As the loop does when it has no descriptor left for a connection.
            error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self.call_exception_handler(
                {"message": "socket.accept() out of system resource", "exception": error}
            )
            self.call_later(constants.ACCEPT_RETRY_DELAY, self._accept, listener, accepted)
        elif listener.is_paused():
            self.call_later(constants.ACCEPT_RETRY_DELAY, self._accept, listener, accepted)
        elif listener.is_accepting():
            listener.serve(accepted)
        else:
            # The server has been closed with the connection in its backlog.
            accepted.close()

    @property
    def faults(self) -> Faults:
        """What goes wrong, and how often; a test may change it at any time."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        self._set_chances([faults.chance(kind) for kind in FAULTS], faults.stall)

    def close(self) -> None:
        super().close()
        with warnings.catch_warnings():
            # The transports within the network are not the program's.
            warnings.simplefilter("ignore", ResourceWarning)
            for known in self._wires:
                if (wire := known()) is not None:
                    wire.forget()

    def faults_happened(self) -> dict[str, int]:
        """Return how often each kind of fault has happened."""
        happened = self._faults_happened()
        for kind in NETWORK_FAULTS:
            happened[kind] = happened.get(kind, 0) + self._happened[kind]
        return happened

    def elapsed(self) -> float:
        """Return for how many seconds the loop's clock has advanced."""
        return self.time() - self.START_S
