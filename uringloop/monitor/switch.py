"""Switches a server of this process on and off, after a call or for an environment variable.

The first loop of a process that finds the variable set obeys it. A server that cannot start (for
lack of a thread, a descriptor or a place) logs one warning, and the program continues. Servers end
with the process. A forked child has none until it makes a loop of its own.

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

    PENDING ──the next loop, or a call──> HANDLED ──off()──> STOPPED ──a call──> HANDLED

    off() also leads from PENDING to STOPPED. A fork leads from HANDLED to PENDING in the child,
    whose first loop may start a server of its own.
    """

    PENDING = 1  # the next loop obeys it
    HANDLED = 2  # it was obeyed, or the program has called: it is ignored from now on
    STOPPED = 3  # off() was called: it is ignored, in forked children too


class Plan(Generic[Kind]):
    """How a server is made. One with the same *key*, other than None, need not be made again."""

    def __init__(self, key: object, make: Callable[[], Kind]) -> None:
        self.key = key
        self.make = make


class Switch(Generic[Kind]):
    """The server of one kind that this process has, if any, and what it does with the variable."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.server: Kind | None = None
        self.key: object = None
        self.variable = Variable.PENDING
        SWITCHES.append(self)

    def on(self, plan: Callable[[], Plan[Kind]]) -> Kind | None:
        """Start the planned server in the place of the one that runs; return None if that fails."""
        with _State.lock:
            self.variable = Variable.HANDLED
            return self._start(plan)

    def obey(self, plan: Callable[[], Plan[Kind]]) -> None:
        """Do the same for the variable; once in a process."""
        # Check without the lock first: all loops but the first return here.
        if self.variable is not Variable.PENDING:
            return
        with _State.lock:
            if self.variable is Variable.PENDING:
                self.variable = Variable.HANDLED
                self._start(plan)

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

    def _start(self, plan: Callable[[], Plan[Kind]]) -> Kind | None:
        try:
            planned = plan()
            if self.server is None or planned.key is None or planned.key != self.key:
                # First, as it may have what the other needs.
                self._stop()
                self.server = self._running(planned.make())
                self.key = planned.key
                time_turns()
        except (OSError, RuntimeError, ValueError) as exc:
            logger.warning("%s of this process cannot start: %s", self.name, exc)
            return None
        return self.server

    def _running(self, server: Kind) -> Kind:
        try:
            server.start()
        except RuntimeError:
            server.close()
            raise
        return server

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
