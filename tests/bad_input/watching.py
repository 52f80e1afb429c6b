"""Watched descriptors and signals: invalid numbers and invalid callbacks."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

from bad_input.stage import AsyncCallable, BadFileno, Call, Stage, cases, coroutine_function

# ── descriptors ──────────────────────────────────────────────────────────────────────────────


def _closed_number(s: Stage) -> int:
    """Return an unused descriptor, far above those that tests open."""
    return 900


def _directory(s: Stage) -> int:
    number = os.open(s.directory, os.O_RDONLY)
    s.on_close(lambda: os.close(number))
    return number


FILES: dict[str, Call] = {
    "None": lambda s: None,
    "'text'": lambda s: "text",
    "'1'": lambda s: "1",
    "1.5": lambda s: 1.5,
    "[]": lambda s: [],
    "-1": lambda s: -1,
    "2**31": lambda s: 2**31,
    "2**70": lambda s: 2**70,
    "closed number": _closed_number,
    "closed socket": Stage.closed,
    "regular file": Stage.file,
    "directory": _directory,
    "fileno()=None": lambda s: BadFileno(None),
    "fileno()='x'": lambda s: BadFileno("x"),
    "fileno()='1'": lambda s: BadFileno("900"),
    "fileno()=1.5": lambda s: BadFileno(900.5),
    "fileno()=-1": lambda s: BadFileno(-1),
    "fileno()=2**70": lambda s: BadFileno(2**70),
    "fileno() raises ValueError": lambda s: BadFileno(ValueError("closed")),
    "fileno() raises OSError": lambda s: BadFileno(OSError("closed")),
    "fileno is not a method": lambda s: type(
        "Odd", (), {"fileno": 1, "__repr__": lambda _: "Odd"}
    )(),
}


def _methods(make: Call) -> dict[str, Call]:
    return {
        "add_reader": lambda s: s.loop.add_reader(make(s), s.note),
        "add_writer": lambda s: s.loop.add_writer(make(s), s.note),
        "remove_reader": lambda s: s.loop.remove_reader(make(s)),
        "remove_writer": lambda s: s.loop.remove_writer(make(s)),
    }


def _callback(method: str, make: Call) -> Call:
    """Watch an idle socket, and stop watching it."""

    def call(s: Stage) -> object:
        sock = s.tcp()
        result = getattr(s.loop, method)(sock, make(s))
        getattr(s.loop, method.replace("add", "remove"))(sock)
        return result

    return call


def _raising(s: Stage) -> object:
    """Watch with a callback that raises."""
    sock = s.tcp()

    def broken() -> None:
        s.loop.call_soon(s.loop.remove_writer, sock)
        raise ValueError("callback")

    return s.loop.add_writer(sock, broken) and None


def _owned(call: Callable[[Stage, int], Any]) -> Call:
    async def run(s: Stage) -> object:
        transport = await s.transport()
        return call(s, transport.get_extra_info("socket").fileno())

    return run


def _add_and_remove(s: Stage) -> object:
    sock = s.tcp()
    first = s.loop.add_reader(sock, s.note)
    return first, s.loop.remove_reader(sock), s.loop.remove_reader(sock)


WATCHERS: dict[str, Call] = {
    **{
        f"{method}({name})": call
        for name, make in FILES.items()
        for method, call in _methods(make).items()
    },
    "remove_reader twice": _add_and_remove,
    "remove_reader(unknown)": lambda s: s.loop.remove_reader(s.tcp()),
    "remove_writer(unknown)": lambda s: s.loop.remove_writer(s.tcp()),
    "add_reader(sock)": lambda s: s.loop.add_reader(s.tcp()),
    "add_reader(sock, callback, unknown=1)": lambda s: s.loop.add_reader(
        s.tcp(), s.note, unknown=1
    ),
}
CALLBACKS: dict[str, Call] = {
    "None": lambda s: None,
    "'text'": lambda s: "text",
    "coroutine function": lambda s: coroutine_function,
    "coroutine": lambda s: s.coroutine(),
}
WATCHED: dict[str, Call] = {
    **{
        f"{method}(callback={name})": _callback(method, make)
        for name, make in CALLBACKS.items()
        for method in ("add_reader", "add_writer")
    },
    "add_writer, callback that raises": _raising,
    "add_reader(of a transport)": _owned(lambda s, fd: s.loop.add_reader(fd, s.note)),
    "add_writer(of a transport)": _owned(lambda s, fd: s.loop.add_writer(fd, s.note)),
    "remove_reader(of a transport)": _owned(lambda s, fd: s.loop.remove_reader(fd)),
    "remove_writer(of a transport)": _owned(lambda s, fd: s.loop.remove_writer(fd)),
}

# ── signals ──────────────────────────────────────────────────────────────────────────────────

NUMBERS: dict[str, Any] = {
    "None": None,
    "'SIGTERM'": "SIGTERM",
    "1.5": 1.5,
    "[]": [],
    "-1": -1,
    "0": 0,
    "1000": 1000,
    "2**70": 2**70,
    "SIGKILL": signal.SIGKILL,
    "SIGSTOP": signal.SIGSTOP,
    "32": 32,
    "SIGUSR1": signal.SIGUSR1,
}


def _handled(number: Any) -> Call:
    def call(s: Stage) -> object:
        result = s.loop.add_signal_handler(number, s.note)
        return result, s.loop.remove_signal_handler(number)

    return call


def _removed(number: Any) -> Call:
    return lambda s: s.loop.remove_signal_handler(number)


def _handler(make: Call) -> Call:
    """Add an invalid handler of a signal, and send the signal."""

    def call(s: Stage) -> object:
        result = s.loop.add_signal_handler(signal.SIGUSR1, make(s))
        if not s.loop.is_closed():
            os.kill(os.getpid(), signal.SIGUSR1)
        return result

    return call


def _elsewhere(call: Call) -> Call:
    return lambda s: s.elsewhere(lambda: call(s))


def _give_up_signals() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)


def _removed_elsewhere(s: Stage) -> object:
    # The loop forgets the handler before it fails: the test itself has to reset the signal.
    s.on_close(_give_up_signals)
    s.loop.add_signal_handler(signal.SIGUSR1, s.note)
    return s.elsewhere(lambda: s.loop.remove_signal_handler(signal.SIGUSR1))


HANDLERS: dict[str, Call] = {
    "None": lambda s: None,
    "'text'": lambda s: "text",
    "coroutine function": lambda s: coroutine_function,
    "partial coroutine function": lambda s: functools.partial(coroutine_function),
    "async callable": lambda s: AsyncCallable(),
    "coroutine": lambda s: s.coroutine(),
}
SIGNALS: dict[str, Call] = {
    **{f"add_signal_handler({name})": _handled(value) for name, value in NUMBERS.items()},
    **{f"remove_signal_handler({name})": _removed(value) for name, value in NUMBERS.items()},
    **{f"add_signal_handler(SIGUSR1, {name})": _handler(make) for name, make in HANDLERS.items()},
    "add_signal_handler(SIGUSR1)": lambda s: s.loop.add_signal_handler(signal.SIGUSR1),
    "add_signal_handler(0, coroutine function)": lambda s: s.loop.add_signal_handler(
        0, coroutine_function
    ),
    "add_signal_handler in another thread": _elsewhere(_handled(signal.SIGUSR1)),
    "add_signal_handler(0) in another thread": _elsewhere(_handled(0)),
    "remove_signal_handler in another thread": _elsewhere(_removed(signal.SIGUSR1)),
}

CASES = [
    *cases("plain closed", WATCHERS),
    *cases("plain debug", WATCHED),
    *cases("plain debug running closed", SIGNALS),
    *cases(
        "plain", {"remove_signal_handler in another thread, with a handler": _removed_elsewhere}
    ),
]
