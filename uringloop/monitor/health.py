"""Health over HTTP: whether the loops of a service are alive and ready, while they are busy.

Off by default; the environment variable URINGLOOP_HEALTH or serve() switches it on.
docs/monitoring.md describes it, and docs/decisions/0028-health.md has the reasons.

Of the processes that want the same address, one has it, and asks the others (siblings.py) for each
request. The others try to take the address each second, so one of them takes it when that process
ends.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import socket
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus

from uringloop import prometheus
from uringloop._loop import base_loop, options
from uringloop.monitor import answers, siblings, socket_paths
from uringloop.monitor.answers import Report
from uringloop.monitor.over_http import Page, Pages
from uringloop.monitor.serving import Server, peer_of
from uringloop.monitor.switch import Switch
from uringloop.monitor.watchdog import Watchdog

# A loop that has been in one turn for so many seconds is dead.
DEAD_AFTER_S = 30.0
# And one in a turn of so many seconds is not ready.
READY_AFTER_S = 1.0
# How often a process without the address tries to take it.
TAKE_S = 1.0
BACKLOG = 128
NO_ADDRESS = (
    "{!r} is no address: it must be the number of a host and a port, as 127.0.0.1:9100 or "
    "[::1]:9100, or unix:/path"
)
PORT_MAX = 65535
# What the kernel keeps of an answer that the client does not read; an answer is bounded otherwise.
SEND_BUFFER_BYTES = 65536

logger = logging.getLogger("uringloop")


# ── where, and what counts ───────────────────────────────────────────────────────────────────


class Place:
    """An address: of a host and a port, or, if it begins with `unix:`, the path of a socket."""

    def __init__(self, text: str) -> None:
        """Parse *text*. Raises ValueError if it is no address."""
        self.path = ""
        self.host = ipaddress.ip_address("127.0.0.1")
        self.port = 0
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path or "\0" in path:
                raise ValueError(NO_ADDRESS.format(text))
            self.path = os.path.abspath(path)
            self.name = f"unix:{self.path}"
            return
        host, colon, port = text.rpartition(":")
        in_brackets = host.startswith("[") and host.endswith("]")
        if not (colon and port.isascii() and port.isdigit()) or (":" in host) != in_brackets:
            raise ValueError(NO_ADDRESS.format(text))
        self.port = int(port)
        try:
            if host not in ("", "localhost"):
                self.host = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            raise ValueError(NO_ADDRESS.format(text)) from None
        if self.port > PORT_MAX:
            raise ValueError(NO_ADDRESS.format(text))
        self.name = self._name()

    def _name(self) -> str:
        host = f"[{self.host}]" if self.host.version == 6 else str(self.host)
        return f"{host}:{self.port}"

    def is_public(self) -> bool:
        """Return whether other machines may reach the address."""
        mapped = getattr(self.host, "ipv4_mapped", None)
        return not self.path and not (mapped or self.host).is_loopback

    def listen(self) -> socket.socket:
        """Return a socket that listens there. Raises OSError, of a path FileExistsError."""
        if self.path:
            return socket_paths.listen(self.path, BACKLOG)
        sock = socket.socket(socket.AF_INET6 if self.host.version == 6 else socket.AF_INET)
        try:
            # The next process may have the address at once.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections get this from the socket that listens.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            sock.bind((str(self.host), self.port))
            sock.listen(BACKLOG)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        self.port = sock.getsockname()[1]
        self.name = self._name()
        return sock

    def is_taken(self, exc: OSError) -> bool:
        """Return whether listen() has failed because a process listens there."""
        if self.path:
            return isinstance(exc, FileExistsError) and socket_paths.has_listener(self.path)
        return exc.errno == errno.EADDRINUSE


class Limits:
    """How long a turn may last, in seconds, and whether stacks are shown and systemd is told."""

    def __init__(
        self, dead_after: float, ready_after: float, *, stacks: bool, watchdog: bool
    ) -> None:
        for name, value in (("dead_after", dead_after), ("ready_after", ready_after)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a number of seconds above 0, not {value!r}")
        self.dead_after = dead_after
        self.ready_after = ready_after
        self.stacks = stacks
        self.watchdog = Watchdog(os.environ) if watchdog else None


# ── pages ────────────────────────────────────────────────────────────────────────────────────


def own_pages() -> dict[str, Callable[[], Page]]:
    """Return the pages with which a process answers its siblings."""
    return {
        "/loops": lambda: Page(answers.reports_text()),
        "/metrics": lambda: Page(answers.metrics()),
        "/stacks": lambda: Page(answers.stacks()),
    }


class Own(Pages):
    """What a process tells its siblings: about itself."""

    def refusal_of(self, sock: socket.socket) -> bytes | None:
        _, user = peer_of(sock)
        return None if user in (0, os.geteuid()) else b""


class Shared:
    """The pages about all processes."""

    def __init__(self, limits: Limits, others: siblings.Siblings) -> None:
        self.limits = limits
        self.others = others

    def pages(self) -> dict[str, Callable[[], Page]]:
        pages = {"/live": self.live, "/ready": self.ready, "/metrics": self.metrics}
        return {**pages, "/stacks": self.stacks} if self.limits.stacks else pages

    def live(self) -> Page:
        """Answer 503 if a loop has been in one turn for too long."""
        found, silent = self._reports()
        return _page(_longest(found, silent) < self.limits.dead_after, found, silent)

    def ready(self) -> Page:
        """Answer 503 if a loop has been in one turn for too long, or if no loop runs."""
        found, silent = self._reports()
        runs = bool(silent) or any(one["running"] for one in found)
        return _page(runs and _longest(found, silent) < self.limits.ready_after, found, silent)

    def metrics(self) -> Page:
        texts, _ = self.others.ask("/metrics")
        text = prometheus.merged([answers.metrics(), *texts.values()])
        return Page(text, kind=prometheus.CONTENT_TYPE)

    def stacks(self) -> Page:
        texts, silent = self.others.ask("/stacks")
        lines = [f"process {pid}: {_silence(seconds)}\n" for pid, seconds in silent.items()]
        return Page("\n".join([answers.stacks(), *texts.values(), *lines]))

    def _reports(self) -> tuple[list[Report], dict[int, float]]:
        """Return the reports of all loops, and the silent processes."""
        texts, silent = self.others.ask("/loops")
        found = answers.reports()
        for text in texts.values():
            found += answers.parsed(text)
        return found, silent


def _longest(found: list[Report], silent: dict[int, float]) -> float:
    """Return for how many seconds the worst loop has been in one turn."""
    return max([0.0, *silent.values(), *[report["busy"] for report in found]])


def _page(is_well: bool, found: list[Report], silent: dict[int, float]) -> Page:
    status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
    lines = [_line(report) for report in found]
    lines += [f"process {pid}: {_silence(seconds)}" for pid, seconds in silent.items()]
    return Page("\n".join(lines or ["no loop"]) + "\n", status)


def _line(report: Report) -> str:
    state = "asleep" if report["running"] else "not running"
    if report["busy"]:
        state = f"busy for {report['busy']:.2f} s, {report['doing']}"
    return f"process {report['pid']}, loop {report['loop']}: {state}"


def _silence(seconds: float) -> str:
    return f"has not answered for {seconds:.2f} s"


# ── the server ───────────────────────────────────────────────────────────────────────────────


class Health(Server):
    """The thread of a process, which serves *place* or waits to take it."""

    def __init__(self, place: Place, limits: Limits) -> None:
        watchdog = limits.watchdog
        super().__init__(
            "uringloop-health", min(TAKE_S, watchdog.interval_s) if watchdog else TAKE_S
        )
        self.place = place
        self.watchdog = watchdog
        # The socket at the place, while this process has it, and its file if it is a path.
        self.public: socket.socket | None = None
        self.file: os.stat_result | None = None
        self.others: siblings.Siblings | None = None
        self.warned = False
        try:
            self._take_if_free()
            # The number of the port is known now.
            group = siblings.group_of(place.name)
            own = siblings.listen(group)
        except OSError:
            self.close()
            raise
        self.listeners[own] = Own(own_pages())
        self.others = siblings.Siblings(group, own.getsockname()[1:].decode())
        self.shared = Shared(limits, self.others)
        self._serve_public()

    def close(self) -> None:
        """End the thread, and remove the socket file unless it was replaced by another."""
        super().close()
        # The file, its directory or the permission to remove it may be gone.
        with contextlib.suppress(OSError):
            if self._has_file():
                os.unlink(self.place.path)

    def close_descriptors(self) -> None:
        """Close the descriptors. A forked child does only this, for the rest is its parent's."""
        super().close_descriptors()
        if self.public is not None:
            self.public.close()
        if self.others is not None:
            self.others.close()

    def tick(self) -> None:
        """Take the place if it is free, leave it if its file is another's; tell systemd."""
        if self.file is not None and not self._has_file():
            self._leave()
        if self.public is None:
            try:
                self._take_if_free()
            except OSError as exc:
                self._warn(str(exc))
            self._serve_public()
            assert self.others is not None
            if self.public is None and not self.others.names():
                self._warn("another program has the address")
        # One process tells for all: the one that has the place.
        if self.public is not None and self.watchdog is not None and self.watchdog.is_due():
            self._tell(self.watchdog)

    def _tell(self, watchdog: Watchdog) -> None:
        try:
            if self.shared.live().status is HTTPStatus.OK:
                watchdog.tell()
        except OSError as exc:
            self._warn(f"systemd cannot be told: {exc}")
        except Exception as exc:
            # The program's own classes of loops and tasks can raise anything.
            self._warn(f"systemd was not told: {type(exc).__name__}: {exc}")

    def _take_if_free(self) -> None:
        """Listen at the place unless another process does. Raises OSError."""
        assert self.public is None
        try:
            sock = self.place.listen()
        except OSError as exc:
            if not self.place.is_taken(exc):
                raise
            return
        try:
            self.file = os.lstat(self.place.path) if self.place.path else None
        except OSError:
            # Somebody has removed the file.
            sock.close()
            raise
        self.public = sock

    def _serve_public(self) -> None:
        """Serve clients at the place, if this process has it."""
        if self.public is not None:
            self.listeners[self.public] = Pages(self.shared.pages())
            if self.place.is_public():
                self._warn("other machines can reach it: let only those that should")

    def _leave(self) -> None:
        """Close the socket at the place: two processes have taken it, and this is not the last."""
        assert self.public is not None
        del self.listeners[self.public]
        self.public.close()
        self.public = self.file = None

    def _has_file(self) -> bool:
        if self.file is None:
            return False
        try:
            return os.path.samestat(os.lstat(self.place.path), self.file)
        except OSError:
            return False

    def _warn(self, reason: str) -> None:
        if not self.warned:
            self.warned = True
            logger.warning("health at %s: %s", self.place.name, reason)


# ── start and stop ───────────────────────────────────────────────────────────────────────────

SWITCH: Switch[Health] = Switch("health")

Make = Callable[["Health | None"], Health]


class _Served:
    """What serve() was called with: forked children serve the same place."""

    make: Make | None = None


def serve(
    address: str,
    *,
    dead_after: float = DEAD_AFTER_S,
    ready_after: float = READY_AFTER_S,
    stacks: bool = False,
    watchdog: bool = False,
) -> str | None:
    """Answer at *address* by HTTP whether the loops of this service are alive, while they are busy.

    *address* is a number of a host and a port, such as "127.0.0.1:9100", or "unix:/path". All
    processes of this user that name the same one are answered for. `GET /live` is 503 when a loop
    has been in one turn for *dead_after* seconds, `GET /ready` after *ready_after* seconds, or if
    no loop runs. `GET /metrics` is Prometheus' text. `GET /stacks` shows threads and tasks, if
    *stacks* is true. With *watchdog*, systemd is told while `/live` is 200. An earlier call is
    undone.

    Returns the address, with the number of the port if it was 0; None if that fails, and the logger
    `uringloop` has a warning with the reason. Raises ValueError for an argument out of range, and
    for *watchdog* if systemd does not want it.
    """
    place = Place(address)
    limits = Limits(dead_after, ready_after, stacks=stacks, watchdog=watchdog)
    _Served.make = _maker(place, limits)
    base_loop.when_created["health"] = _serve_in_child
    health = SWITCH.on(_Served.make)
    return health.place.name if health is not None else None


def stop_serving() -> None:
    """End what serve() or the environment variable URINGLOOP_HEALTH started.

    Later loops and forked children do not start it again.
    """
    SWITCH.off()


def start_from_variable(text: str) -> None:
    """Serve the address that the variable names; once in a process."""
    SWITCH.obey(_Served.make or (lambda current: _maker(*_parsed(text))(current)))


def _serve_in_child(_: base_loop.BaseLoop, __: int) -> None:
    if _Served.make is not None:
        SWITCH.obey(_Served.make)


def _maker(place: Place, limits: Limits) -> Make:
    def make(current: Health | None) -> Health:
        if current is not None:
            # It may have the address.
            current.close()
        return Health(place, limits)

    return make


def _parsed(text: str) -> tuple[Place, Limits]:
    """Return what the variable says: an address, and after a question mark what counts."""
    address, _, query = text.partition("?")
    values = dict(urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    dead_after = float(values.pop("dead_after", DEAD_AFTER_S))
    ready_after = float(values.pop("ready_after", READY_AFTER_S))
    stacks = values.pop("stacks", "0").lower() not in ("", *options.OFF)
    watchdog = values.pop("watchdog", "0").lower() not in ("", *options.OFF)
    if values:
        raise ValueError(f"{options.HEALTH.variable} has no {', '.join(values)}")
    return Place(address), Limits(dead_after, ready_after, stacks=stacks, watchdog=watchdog)
