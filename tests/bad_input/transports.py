"""Transports: invalid data, calls after the end, invalid limits, start_tls and sendfile."""

from __future__ import annotations

import array
import asyncio
import sys
from collections.abc import Callable
from typing import Any

from bad_input.stage import Call, Stage, cases, client_context, on_transport

# Before 3.12 asyncio's writelines() joins and writes. Since then it fails with closed transports,
# with empty iterators, and with items that are not bytes.
JOINED = sys.version_info < (3, 12)

# Any: most of these are not data that a transport accepts.
DATA: dict[str, Any] = {
    "'text'": "text",
    "''": "",
    "None": None,
    "1": 1,
    "0": 0,
    "1.5": 1.5,
    "[]": [],
    "[b'x']": [b"x"],
    "[1]": [1],
    "()": (),
    "(b'x',)": (b"x",),
    "['text']": ["text"],
    "[None]": [None],
    "[b'x', 1]": [b"x", 1],
    "{}": {},
    "array": array.array("i", [1, 2]),
    "every second": memoryview(b"abcd")[::2],
    "released": None,
    "b''": b"",
    "[every second]": [memoryview(b"abcd")[::2]],
    "(array, 1)": (array.array("i", [1, 2]), 1),
    "{b'x': 1}": {b"x": 1},
}
if JOINED:
    DATA["[array]"] = [array.array("i", [1, 2])]
    DATA["generator"] = iter(())
RELEASED = memoryview(b"abcd")
RELEASED.release()
DATA["released"] = RELEASED


def _after(before: Callable[[Any], object], call: Callable[[Any], object]) -> Call:
    """Call after *before* has been called, and two turns later again."""

    async def run(s: Stage) -> object:
        transport = await s.transport()
        before(transport)
        first = call(transport)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return first, call(transport)

    return run


def _writes() -> dict[str, Call]:
    calls: dict[str, Call] = {}
    for name, data in DATA.items():
        for method in ("write", "writelines"):

            def call(transport: Any, method: str = method, data: Any = data) -> object:
                return getattr(transport, method)(data)

            calls[f"{method}({name})"] = on_transport(call)
            if JOINED or method == "write":
                calls[f"after close: {method}({name})"] = _after(lambda t: t.close(), call)
                calls[f"after abort: {method}({name})"] = _after(lambda t: t.abort(), call)
            if name != "released":
                calls[f"after write_eof: {method}({name})"] = _after(lambda t: t.write_eof(), call)
    return calls


def _limits(**options: Any) -> Call:
    def call(transport: Any) -> object:
        transport.set_write_buffer_limits(**options)
        return transport.get_write_buffer_limits()

    return on_transport(call)


def _set_protocol(protocol: Any) -> Call:
    def call(transport: Any) -> object:
        transport.set_protocol(protocol)
        return transport.get_protocol() is protocol

    return on_transport(call)


def _twice(method: str) -> Call:
    def call(transport: Any) -> object:
        results = (getattr(transport, method)(), getattr(transport, method)())
        return results, transport.is_reading(), transport.is_closing()

    return on_transport(call)


METHODS = (
    "close",
    "abort",
    "pause_reading",
    "resume_reading",
    "is_reading",
    "is_closing",
    "write_eof",
    "can_write_eof",
    "get_protocol",
    "get_write_buffer_size",
    "get_write_buffer_limits",
)

LIMITS: dict[str, Any] = {
    "high=-1": {"high": -1},
    "low=-1": {"low": -1},
    "high < low": {"high": 1, "low": 2},
    "high='x'": {"high": "x"},
    "low='x'": {"low": "x"},
    "both 'x'": {"high": "x", "low": "x"},
    "low=None": {"high": 5, "low": None},
    "high=1.5": {"high": 1.5},
    "high=nan": {"high": float("nan")},
    "high=inf": {"high": float("inf")},
    "high=2**70": {"high": 2**70},
    "low=2**70": {"low": 2**70},
    "high=0": {"high": 0},
    "low=0": {"low": 0},
    "high=[]": {"high": []},
    "unknown": {"unknown": 1},
}
SMALL: dict[str, Call] = {
    "get_extra_info('unknown')": on_transport(lambda t: t.get_extra_info("unknown")),
    "get_extra_info('unknown', 1)": on_transport(lambda t: t.get_extra_info("unknown", 1)),
    "get_extra_info(None)": on_transport(lambda t: t.get_extra_info(None)),
    "get_extra_info([])": on_transport(lambda t: t.get_extra_info([])),
    "set_protocol(None)": _set_protocol(None),
    "set_protocol(1)": _set_protocol(1),
    "set_protocol(object)": _set_protocol(object()),
    "set_protocol(class)": _set_protocol(asyncio.Protocol),
    **{f"set_write_buffer_limits({name})": _limits(**options) for name, options in LIMITS.items()},
    **{f"{method} twice": _twice(method) for method in METHODS},
    "abort, then close": on_transport(lambda t: (t.abort(), t.close())),
    "close, then abort": on_transport(lambda t: (t.close(), t.abort())),
    "write_eof, then close": on_transport(lambda t: (t.write_eof(), t.close())),
}
LATE: dict[str, Callable[[Any], object]] = {
    **{method: lambda t, method=method: getattr(t, method)() for method in METHODS[2:]},  # type: ignore[misc]
    "get_extra_info('peername')": lambda t: t.get_extra_info("peername") is None,
    "get_extra_info('unknown')": lambda t: t.get_extra_info("unknown", 1),
    "set_write_buffer_limits(high=-1)": lambda t: t.set_write_buffer_limits(high=-1),
}


def _late() -> dict[str, Call]:
    calls: dict[str, Call] = {}
    for name, call in LATE.items():
        if name == "get_protocol":
            continue
        calls[f"after close: {name}"] = _after(lambda t: t.close(), call)
        calls[f"after abort: {name}"] = _after(lambda t: t.abort(), call)
    return calls


# ── start_tls, sendfile ──────────────────────────────────────────────────────────────────────


def _start_tls(context: Callable[[], Any] = client_context, **options: Any) -> Call:
    async def call(s: Stage) -> object:
        transport = await s.transport()
        options.setdefault("server_hostname", "x")
        return await s.loop.start_tls(transport, asyncio.Protocol(), context(), **options)

    return call


def _start_tls_on(transport: Any) -> Call:
    return lambda s: s.loop.start_tls(transport, asyncio.Protocol(), client_context())


def _sendfile(file: Callable[[Stage], Any], *args: Any, **options: Any) -> Call:
    async def call(s: Stage) -> object:
        return await s.loop.sendfile(await s.transport(), file(s), *args, **options)

    return call


async def _sendfile_closing(s: Stage) -> object:
    transport = await s.transport()
    transport.close()
    return await s.loop.sendfile(transport, s.file())


async def _sendfile_after_eof(s: Stage) -> object:
    transport = await s.transport()
    transport.write_eof()
    return await s.loop.sendfile(transport, s.file())


async def _start_tls_closing(s: Stage) -> object:
    transport = await s.transport()
    transport.close()
    return await s.loop.start_tls(transport, asyncio.Protocol(), client_context())


UPGRADES: dict[str, Call] = {
    "start_tls(None)": _start_tls_on(None),
    "start_tls(1)": _start_tls_on(1),
    "start_tls(transport base)": _start_tls_on(asyncio.BaseTransport()),
    "start_tls(context=None)": _start_tls(lambda: None),
    "start_tls(context=True)": _start_tls(lambda: True),
    "start_tls(context='x')": _start_tls(lambda: "x"),
    "start_tls(handshake_timeout=0)": _start_tls(ssl_handshake_timeout=0),
    "start_tls(handshake_timeout=-1)": _start_tls(ssl_handshake_timeout=-1),
    "start_tls(handshake_timeout='x')": _start_tls(ssl_handshake_timeout="x"),
    "start_tls(shutdown_timeout=0)": _start_tls(ssl_shutdown_timeout=0),
    "start_tls(server_hostname=1)": _start_tls(server_hostname=1),
    "start_tls(unknown=1)": _start_tls(unknown=1),
    "sendfile(None)": lambda s: s.loop.sendfile(None, s.file()),
    "sendfile(1)": lambda s: s.loop.sendfile(1, s.file()),
    "sendfile(closing)": _sendfile_closing,
    "sendfile(file=None)": _sendfile(lambda s: None),
    "sendfile(file=1)": _sendfile(lambda s: 1),
    "sendfile(text mode)": _sendfile(lambda s: s.file("r")),
    "sendfile(offset=-1)": _sendfile(Stage.file, -1),
    "sendfile(offset='x')": _sendfile(Stage.file, "x"),
    "sendfile(count=0)": _sendfile(Stage.file, 0, 0),
    "sendfile(count=-1)": _sendfile(Stage.file, 0, -1),
    "sendfile(count='x')": _sendfile(Stage.file, 0, "x"),
    "sendfile(beyond the end)": _sendfile(Stage.file, 100),
    "sendfile(no fallback)": _sendfile(lambda s: None, fallback=False),
}

CASES = [
    *cases("plain", _writes()),
    *cases("plain", SMALL),
    *cases("plain", _late()),
    *cases("plain debug", UPGRADES),
]
