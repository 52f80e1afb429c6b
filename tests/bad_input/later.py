"""Datagrams, pipes and subprocesses: errors in the arguments only; no process is started.

A method that class Loop does not define is called on asyncio only, and has to fail there. The calls
of all other methods are compared.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Callable
from typing import Any

from bad_input.stage import Call, Stage, cases

HOST = "127.0.0.1"


def _raise() -> asyncio.BaseProtocol:
    raise ValueError("no protocol")


# ── create_datagram_endpoint ─────────────────────────────────────────────────────────────────


def _endpoint(*args: Any, factory: Any = asyncio.DatagramProtocol, **options: Any) -> Call:
    async def call(s: Stage) -> object:
        transport, _ = await s.loop.create_datagram_endpoint(factory, *args, **options)
        transport.abort()
        return "open"

    return call


def _endpoint_of(make: Callable[[Stage], Any], **options: Any) -> Call:
    return lambda s: _endpoint(sock=make(s), **options)(s)


DATAGRAMS: dict[str, Call] = {
    "": _endpoint(),
    "family=0": _endpoint(family=0),
    "local_addr=1": _endpoint(1),
    "local_addr='text'": _endpoint("text"),
    "local_addr=()": _endpoint(()),
    "local_addr=(host,)": _endpoint((HOST,)),
    "local_addr=(host, 'x')": _endpoint((HOST, "no such service")),
    "local_addr=(host, -1)": _endpoint((HOST, -1)),
    "local_addr=(host, 1, 2)": _endpoint((HOST, 1, 2)),
    "local_addr of another machine": _endpoint(("192.0.2.1", 0)),
    "remote_addr=1": _endpoint(remote_addr=1),
    "remote_addr=(host,)": _endpoint(remote_addr=(HOST,)),
    "IPv4 local_addr, IPv6 remote_addr": _endpoint((HOST, 0), ("::1", 9)),
    "family=AF_INET6, IPv4 local_addr": _endpoint(
        (HOST, 0), family=socket.AF_INET6, flags=socket.AI_NUMERICHOST
    ),
    "family=9999": _endpoint((HOST, 0), family=9999),
    "UNIX, local_addr=(host, port)": _endpoint((HOST, 0), family=socket.AF_UNIX),
    "UNIX, local_addr=1": _endpoint(1, family=socket.AF_UNIX),
    "UNIX, remote_addr missing": _endpoint(remote_addr="/missing/socket", family=socket.AF_UNIX),
    "UNIX, local_addr too long": _endpoint("/tmp/" + "x" * 200, family=socket.AF_UNIX),
    "reuse_address=True": _endpoint((HOST, 0), reuse_address=True),
    "port in use": lambda s: _endpoint(_bound(s))(s),
    "sock=TCP": _endpoint_of(Stage.fresh),
    "sock=closed": _endpoint_of(Stage.closed),
    "sock, local_addr": _endpoint_of(Stage.udp, local_addr=(HOST, 0)),
    "sock, remote_addr": _endpoint_of(Stage.udp, remote_addr=(HOST, 9)),
    "sock, family": _endpoint_of(Stage.udp, family=socket.AF_INET),
    "sock, proto": _endpoint_of(Stage.udp, proto=17),
    "sock, flags": _endpoint_of(Stage.udp, flags=1),
    "sock, reuse_port": _endpoint_of(Stage.udp, reuse_port=True),
    "sock, allow_broadcast": _endpoint_of(Stage.udp, allow_broadcast=True),
    "sock, several": _endpoint_of(Stage.udp, local_addr=(HOST, 0), proto=17, flags=1),
    "sock=1": _endpoint(sock=1),
    "unknown": _endpoint((HOST, 0), unknown=1),
    "factory=None": _endpoint((HOST, 0), factory=None),
    "factory that raises": _endpoint((HOST, 0), factory=_raise),
}


def _bound(s: Stage) -> tuple[str, int]:
    sock = s.udp()
    sock.bind((HOST, 0))
    host, port = sock.getsockname()
    return host, port


# ── pipes ────────────────────────────────────────────────────────────────────────────────────


def _pipe(method: str, make: Callable[[Stage], Any], factory: Any = asyncio.Protocol) -> Call:
    async def call(s: Stage) -> object:
        transport, _ = await getattr(s.loop, method)(factory, make(s))
        transport.close()
        return "open"

    return call


# No objects without fileno(): with these asyncio's transport raises in __del__.
PIPES: dict[str, Callable[[Stage], Any]] = {
    "regular file": Stage.file,
    "closed": Stage.closed,
}

# ── subprocesses ─────────────────────────────────────────────────────────────────────────────

PIPE = subprocess.PIPE


def _exec(*args: Any, factory: Any = asyncio.SubprocessProtocol, **options: Any) -> Call:
    return lambda s: s.loop.subprocess_exec(factory, *args, **options)


def _shell(*args: Any, factory: Any = asyncio.SubprocessProtocol, **options: Any) -> Call:
    return lambda s: s.loop.subprocess_shell(factory, *args, **options)


OPTIONS: dict[str, dict[str, Any]] = {
    "universal_newlines=True": {"universal_newlines": True},
    "bufsize=1": {"bufsize": 1},
    "bufsize=None": {"bufsize": None},
    "text=True": {"text": True},
    "encoding": {"encoding": "utf-8"},
    "errors": {"errors": "strict"},
    "unknown=1": {"unknown": 1},
    "stdin='x'": {"stdin": "x"},
    "cwd missing": {"cwd": "/missing"},
}
EXEC: dict[str, Call] = {
    "()": _exec(),
    "(program=1)": _exec(1),
    "(program=None)": _exec(None),
    "(argument=1)": _exec("true", 1),
    "(argument with a null byte)": _exec("true", "a\0b"),
    "(program='')": _exec(""),
    "(program missing)": _exec("/missing/program"),
    "(program is a directory)": _exec("/"),
    "(shell=True)": _exec("true", shell=True),
    "(factory=None)": _exec("true", factory=None),
    "(factory that raises)": _exec("true", factory=_raise),
    **{f"({name})": _exec("true", **options) for name, options in OPTIONS.items()},
}
SHELL: dict[str, Call] = {
    "()": _shell(),
    "(1)": _shell(1),
    "(None)": _shell(None),
    "([])": _shell(["true"]),
    "(shell=False)": _shell("true", shell=False),
    "(command with a null byte)": _shell("a\0b"),
    "(factory=None)": _shell("true", factory=None),
    **{f"({name})": _shell("true", **options) for name, options in OPTIONS.items()},
}

# Cases by method.
CASES = {
    "create_datagram_endpoint": cases(
        "plain", {f"create_datagram_endpoint({name})": call for name, call in DATAGRAMS.items()}
    ),
    "connect_read_pipe": cases(
        "plain",
        {
            f"connect_read_pipe({name})": _pipe("connect_read_pipe", make)
            for name, make in PIPES.items()
        },
    ),
    "connect_write_pipe": cases(
        "plain",
        {
            f"connect_write_pipe({name})": _pipe("connect_write_pipe", make)
            for name, make in PIPES.items()
        },
    ),
    "subprocess_exec": cases(
        "plain", {f"subprocess_exec{name}": call for name, call in EXEC.items()}
    ),
    "subprocess_shell": cases(
        "plain", {f"subprocess_shell{name}": call for name, call in SHELL.items()}
    ),
}
