"""Switches a server of this process on and off: by a call, or by an environment variable.

The first loop of a process obeys the variable. A server that cannot start (for lack of a thread, a
descriptor or a place) logs one warning, and the program continues. Servers end with the process. A
forked child has none until it makes a loop of its own.

Any thread may call this. While a server runs, the turns of all loops are timed.
"""

from __future__ import annotations

import atexit
import enum
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from uringloop._turn.stats import stop_timing_turns, time_turns
from uringloop.monitor.serving import Server

logger = logging.getLogger("uringloop")

Kind = TypeVar("Kind", bound=Server)


class Variable(enum.Enum):
    """What this process does with the environment variable of a server.

    PENDING ──the first loop, or a call──> HANDLED ──off()──> STOPPED ──a call──> HANDLED

    off() leads from PENDING to STOPPED, too. A fork leads from HANDLED to PENDING in the child,
    whose first loop may start a server of its own.
    """

    PENDING = 1  # the next loop obeys it
    HANDLED = 2  # it was obeyed, or the program has called: it is ignored from now on
    STOPPED = 3  # off() was called: it is ignored, in forked children too


class Switch(Generic[Kind]):
    """The server of one kind that this process has, if any, and what it does with the variable."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.server: Kind | None = None
        self.variable = Variable.PENDING
        SWITCHES.append(self)

    def on(self, make: Callable[[Kind | None], Kind]) -> Kind | None:
        """Start the server that *make* returns, and return it; None if that fails.

        *make* gets the server that runs, and may return or close it. Otherwise that one is closed
        when there is another.
        """
        with _State.lock:
            self.variable = Variable.HANDLED
            return self._start(make)

    def obey(self, make: Callable[[Kind | None], Kind]) -> None:
        """Do the same for the variable; once in a process."""
        # Check without the lock first: all loops but the first return here.
        if self.variable is not Variable.PENDING:
            return
        with _State.lock:
            if self.variable is Variable.PENDING:
                self.variable = Variable.HANDLED
                self._start(make)

    def off(self) -> None:
        """Close the server. Later loops and forked children do not start one again."""
        with _State.lock:
            self.variable = Variable.STOPPED
            self._stop()

    def drop(self) -> None:
        """Leave the server to the parent, in a forked child."""
        if self.variable is Variable.HANDLED:
            self.variable = Variable.PENDING
        if self.server is not None:
            self.server.close_descriptors()
            self.server = None

    def _start(self, make: Callable[[Kind | None], Kind]) -> Kind | None:
        try:
            server = make(self.server)
            if server is self.server:
                return server
            self._stop()
            self._run(server)
        except (OSError, RuntimeError, ValueError) as exc:
            if self.server is not None and self.server.ending:
                self._stop()
            logger.warning("%s of this process cannot start: %s", self.name, exc)
            return None
        return server

    def _run(self, server: Kind) -> None:
        try:
            server.start()
        except RuntimeError:
            server.close()
            raise
        self.server = server
        time_turns()

    def _stop(self) -> None:
        server, self.server = self.server, None
        _time_turns_if_needed()
        if server is None:
            return
        if server.pid == os.getpid():
            server.close()
        else:
            # This is a child of a fork that Python did not make.
            server.close_descriptors()


class _State:
    """One lock for all switches: they share the timing of turns."""

    lock = threading.Lock()


SWITCHES: list[Switch[Any]] = []


def _time_turns_if_needed() -> None:
    if not any(switch.server is not None for switch in SWITCHES):
        stop_timing_turns()


def _after_fork() -> None:
    _State.lock = threading.Lock()
    for switch in SWITCHES:
        switch.drop()
    _time_turns_if_needed()


def _at_exit() -> None:
    for switch in SWITCHES:
        switch.off()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
