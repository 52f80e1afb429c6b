"""Clients and servers: contradictory options, wrong sockets, addresses that do not work."""

from __future__ import annotations

import asyncio
import pathlib
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from bad_input.stage import (
    Call,
    Stage,
    cases,
    client_context,
    on_server,
    server_context,
)

P = asyncio.Protocol
AsyncCall = Callable[[Stage], Awaitable[object]]
HOST = "127.0.0.1"


def _raise() -> asyncio.BaseProtocol:
    raise ValueError("no protocol")


def _sockets(call: Callable[[Stage, Any], object]) -> dict[str, Call]:
    """Return *call* with each kind of wrong socket."""
    makers: dict[str, Call] = {
        "1": lambda s: 1,
        "'text'": lambda s: "text",
        "UDP": Stage.udp,
        "UNIX datagram": Stage.unix_datagram,
        "UNIX": Stage.unix,
        "TLS": Stage.tls,
        "closed": Stage.closed,
        "unconnected": Stage.fresh,
    }
    return {
        f"sock={name}": lambda s, make=make: call(s, make(s))  # type: ignore[misc]
        for name, make in makers.items()
    }


def _named(method: str, calls: dict[str, Call]) -> dict[str, Call]:
    return {f"{method}({name})": call for name, call in calls.items()}


# ── create_connection ────────────────────────────────────────────────────────────────────────


def _connect(*args: Any, factory: Any = P, **options: Any) -> AsyncCall:
    async def call(s: Stage) -> object:
        transport, _ = await s.loop.create_connection(factory, *args, **options)
        transport.abort()
        return "connected"

    return call


def _connect_sock(make: Callable[[Stage], Any], *args: Any, **options: Any) -> Call:
    async def call(s: Stage) -> object:
        return await _connect(*args, sock=make(s), **options)(s)

    return call


def _connect_to(port: Callable[[Stage], Any], host: Any = HOST, **options: Any) -> Call:
    async def call(s: Stage) -> object:
        return await _connect(host, port(s), **options)(s)

    return call


CONNECTION: dict[str, Call] = {
    "": _connect(),
    "host=None, port=None": _connect(None, None),
    "host": _connect(HOST),
    "port=None": _connect(HOST, None),
    "port": _connect_to(Stage.unused, host=None),
    "host='', port": _connect_to(Stage.unused, host=""),
    "host=1": _connect(1, 80),
    "host=[]": _connect([], 80),
    "host=[host]": _connect([HOST], 80),
    "host=object": _connect(1.5, 80),
    "host=''": _connect("", None),
    "host='a b'": _connect("a b", 80, flags=socket.AI_NUMERICHOST),
    "host='1.2.3.4.5'": _connect("1.2.3.4.5", 80, flags=socket.AI_NUMERICHOST),
    "host too long": _connect("a" * 70, 80),
    "host with a null byte": _connect("127.0.0.1\0", 80),
    "host=b'\\xff'": _connect(b"\xff", 80),
    "host with dots": _connect("a..b", 80),
    "port='x'": _connect(HOST, "x"),
    "port='no such service'": _connect(HOST, "no such service"),
    "port=-1": _connect(HOST, -1),
    "port=65536": _connect(HOST, 65536),
    "port=2**70": _connect(HOST, 2**70),
    "port=1.5": _connect_to(lambda s: float(s.unused())),
    "port=[]": _connect(HOST, []),
    "port=b'x'": _connect(HOST, b"x"),
    "port=0": _connect(HOST, 0),
    "port without a listener": _connect_to(Stage.unused),
    "port without a listener, eyeballs": _connect_to(Stage.unused, happy_eyeballs_delay=0.1),
    "eyeballs='x'": _connect_to(Stage.unused, happy_eyeballs_delay="x"),
    "eyeballs=-1": _connect_to(Stage.unused, happy_eyeballs_delay=-1),
    "interleave=-1": _connect_to(Stage.unused, interleave=-1),
    "interleave='x'": _connect_to(Stage.unused, interleave="x"),
    "family=AF_UNIX": _connect(HOST, 80, family=socket.AF_UNIX),
    "family=9999": _connect(HOST, 80, family=9999),
    "family='x'": _connect(HOST, 80, family="x"),
    "family=AF_INET6, IPv4 host": _connect(
        HOST, 80, family=socket.AF_INET6, flags=socket.AI_NUMERICHOST
    ),
    "proto=9999": _connect(HOST, 80, proto=9999),
    "proto=UDP": _connect(HOST, 80, proto=socket.IPPROTO_UDP),
    "proto='x'": _connect(HOST, 80, proto="x"),
    "flags=-1": _connect("localhost", 80, flags=-1),
    "flags='x'": _connect("localhost", 80, flags="x"),
    "local_addr=1": _connect_to(Stage.unused, local_addr=1),
    "local_addr=()": _connect_to(Stage.unused, local_addr=()),
    "local_addr=(host,)": _connect_to(Stage.unused, local_addr=(HOST,)),
    "local_addr=host": _connect_to(Stage.unused, local_addr=HOST),
    "local_addr is IPv6, IPv4 host": _connect_to(Stage.unused, local_addr=("::1", 0)),
    "local_addr of another machine": _connect_to(Stage.unused, local_addr=("192.0.2.1", 0)),
    "local_addr=(None, None)": _connect_to(Stage.unused, local_addr=(None, None)),
    "local_addr, port=-1": _connect_to(Stage.unused, local_addr=(HOST, -1)),
    "server_hostname": _connect(HOST, 80, server_hostname="x"),
    "server_hostname=''": _connect(HOST, 80, server_hostname=""),
    "server_hostname, sock": _connect_sock(Stage.tcp, server_hostname="x"),
    "ssl": _connect(ssl=True),
    "ssl, port": _connect(None, 80, ssl=True),
    "ssl, host=''": _connect("", 80, ssl=True),
    "ssl, sock": _connect_sock(Stage.tcp, ssl=True),
    "ssl='x', sock": _connect_sock(Stage.tcp, ssl="x", server_hostname="x"),
    "ssl=1, sock": _connect_sock(Stage.tcp, ssl=1, server_hostname="x"),
    "ssl, server_hostname=1": _connect_sock(Stage.tcp, ssl=client_context(), server_hostname=1),
    "ssl context for servers": _connect_sock(Stage.tcp, ssl=server_context(), server_hostname="x"),
    "ssl_handshake_timeout": _connect(HOST, 80, ssl_handshake_timeout=1),
    "ssl_shutdown_timeout": _connect(HOST, 80, ssl_shutdown_timeout=1),
    "ssl_handshake_timeout=0": _connect(HOST, 80, ssl_handshake_timeout=0),
    "both timeouts": _connect(HOST, 80, ssl_handshake_timeout=1, ssl_shutdown_timeout=1),
    "ssl, ssl_handshake_timeout=0": _connect_sock(
        Stage.tcp, ssl=client_context(), server_hostname="x", ssl_handshake_timeout=0
    ),
    "ssl, ssl_handshake_timeout=-1": _connect_sock(
        Stage.tcp, ssl=client_context(), server_hostname="x", ssl_handshake_timeout=-1
    ),
    "ssl, ssl_handshake_timeout='x'": _connect_sock(
        Stage.tcp, ssl=client_context(), server_hostname="x", ssl_handshake_timeout="x"
    ),
    "ssl, ssl_shutdown_timeout=-1": _connect_sock(
        Stage.tcp, ssl=client_context(), server_hostname="x", ssl_shutdown_timeout=-1
    ),
    "host, sock": _connect_sock(Stage.tcp, HOST),
    "host, port, sock": _connect_sock(Stage.tcp, HOST, 80),
    "port, sock": _connect_sock(Stage.tcp, None, 80),
    "host, TLS sock": _connect_sock(Stage.tls, HOST, 80),
    "sock, local_addr": _connect_sock(Stage.tcp, local_addr=(HOST, 0)),
    "sock, blocking": _connect_sock(Stage.blocking),
    "sock=None": _connect(sock=None),
    "factory=None, sock": _connect_sock(Stage.tcp, factory=None),
    "factory=1, sock": _connect_sock(Stage.tcp, factory=1),
    "factory that raises, sock": _connect_sock(Stage.tcp, factory=_raise),
    "factory that returns None, sock": _connect_sock(Stage.tcp, factory=lambda: None),
    "factory that raises, port": _connect_to(Stage.taken, factory=_raise),
    "factory that returns None, port": _connect_to(Stage.taken, factory=lambda: None),
    "unknown": _connect(HOST, 80, unknown=1),
    **_sockets(lambda s, sock: _connect(sock=sock)(s)),
}

if sys.version_info >= (3, 12):
    CONNECTION["all_errors"] = _connect_to(Stage.unused, all_errors=True)

# ── create_unix_connection, connect_accepted_socket ──────────────────────────────────────────


def _connect_unix(*args: Any, factory: Any = P, **options: Any) -> Call:
    async def call(s: Stage) -> object:
        transport, _ = await s.loop.create_unix_connection(factory, *args, **options)
        transport.abort()
        return "connected"

    return call


def _path_unix(name: str, make: Callable[[str], Any] = str, **options: Any) -> Call:
    return lambda s: _connect_unix(make(s.path(name)), **options)(s)


def _regular_file_unix(s: Stage) -> object:
    return _connect_unix(s.file().name)(s)


UNIX_CONNECTION: dict[str, Call] = {
    "": _connect_unix(),
    "path=None": _connect_unix(None),
    "path=1": _connect_unix(1),
    "path=[]": _connect_unix([]),
    "path=''": _connect_unix(""),
    "path too long": _connect_unix("/tmp/" + "x" * 200),
    "path with a null byte": _connect_unix("/tmp/\0x"),
    "path does not exist": _path_unix("missing"),
    "path does not exist, bytes": _path_unix("missing", str.encode),
    "path does not exist, Path": _path_unix("missing", pathlib.Path),
    "directory does not exist": _path_unix("missing/socket"),
    "path is a directory": _path_unix("."),
    "path is a file": _regular_file_unix,
    "abstract path": _connect_unix("\0uringloop-nobody-listens"),
    "path, sock": lambda s: _connect_unix(s.path(), sock=s.unix())(s),
    "server_hostname": _path_unix("x", server_hostname="x"),
    "ssl": _path_unix("x", ssl=True),
    "ssl_handshake_timeout": _path_unix("x", ssl_handshake_timeout=1),
    "ssl_shutdown_timeout": _path_unix("x", ssl_shutdown_timeout=1),
    "ssl, no path": _connect_unix(ssl=True),
    "sock=TCP": lambda s: _connect_unix(sock=s.tcp())(s),
    **_sockets(lambda s, sock: _connect_unix(sock=sock)(s)),
}


def _accept(sock: Any, factory: Any = P, **options: Any) -> Call:
    async def call(s: Stage) -> object:
        transport, _ = await s.loop.connect_accepted_socket(factory, sock, **options)
        transport.abort()
        return "connected"

    return call


def _accept_tcp(**options: Any) -> Call:
    return lambda s: _accept(s.tcp(), **options)(s)


ACCEPTED: dict[str, Call] = {
    "None": _accept(None),
    "ssl_handshake_timeout": _accept_tcp(ssl_handshake_timeout=1),
    "ssl_shutdown_timeout": _accept_tcp(ssl_shutdown_timeout=1),
    "ssl='x'": _accept_tcp(ssl="x"),
    "ssl=True": _accept_tcp(ssl=True),
    "ssl context for clients": _accept_tcp(ssl=client_context()),
    "ssl, ssl_handshake_timeout=-1": _accept_tcp(ssl=server_context(), ssl_handshake_timeout=-1),
    "ssl, ssl_shutdown_timeout=0": _accept_tcp(ssl=server_context(), ssl_shutdown_timeout=0),
    "factory=None": _accept_tcp(factory=None),
    "factory that raises": _accept_tcp(factory=_raise),
    "blocking": lambda s: _accept(s.blocking())(s),
    "listener": lambda s: _accept(s.listener())(s),
    **_sockets(lambda s, sock: _accept(sock)(s)),
}

# ── create_server ────────────────────────────────────────────────────────────────────────────


def _serve(*args: Any, factory: Any = P, **options: Any) -> Call:
    async def call(s: Stage) -> object:
        server = await s.loop.create_server(factory, *args, **options)
        server.close()
        return "served"

    return call


def _serve_sock(make: Callable[[Stage], Any], *args: Any, **options: Any) -> Call:
    return lambda s: _serve(*args, sock=make(s), **options)(s)


SERVER: dict[str, Call] = {
    "": _serve(),
    "host=None, port=None": _serve(None, None),
    "host": _serve(HOST),
    "host=1": _serve(1, 0),
    "host=[]": _serve([], 0),
    "host=[1]": _serve([1], 0),
    "host=[host, 1]": _serve([HOST, 1], 0),
    "host=1.5": _serve(1.5, 0),
    "host=b'host'": _serve(HOST.encode(), 0),
    "host='a b'": _serve("a b", 0, flags=socket.AI_NUMERICHOST),
    "host=''": _serve("", 0),
    "host of another machine": _serve("192.0.2.1", 0),
    "host of another machine, and a local host": _serve(["192.0.2.1", HOST], 0),
    "port='x'": _serve(HOST, "x"),
    "port=-1": _serve(HOST, -1),
    "port=65536": _serve(HOST, 65536),
    "port=1.5": _serve(HOST, 1.5),
    "port=[]": _serve(HOST, []),
    "port in use": lambda s: _serve(HOST, s.taken())(s),
    "port in use, no reuse_address": lambda s: _serve(HOST, s.taken(), reuse_address=False)(s),
    "port in use, two hosts": lambda s: _serve([HOST, "::1"], s.taken())(s),
    "family='x'": _serve(HOST, 0, family="x"),
    "family=AF_UNIX": _serve(HOST, 0, family=socket.AF_UNIX),
    "family=AF_INET6, IPv4 host": _serve(
        HOST, 0, family=socket.AF_INET6, flags=socket.AI_NUMERICHOST
    ),
    "flags='x'": _serve("localhost", 0, flags="x"),
    "backlog='x'": _serve(HOST, 0, backlog="x"),
    "backlog=None": _serve(HOST, 0, backlog=None),
    "backlog=-1": _serve(HOST, 0, backlog=-1),
    "backlog=2**40": _serve(HOST, 0, backlog=2**40),
    "ssl=True": _serve(HOST, 0, ssl=True),
    "ssl=False": _serve(HOST, 0, ssl=False),
    "ssl='x'": _serve(HOST, 0, ssl="x"),
    "ssl=''": _serve(HOST, 0, ssl=""),
    "ssl=1": _serve(HOST, 0, ssl=1),
    "ssl context for clients": _serve(HOST, 0, ssl=client_context()),
    "ssl_handshake_timeout": _serve(HOST, 0, ssl_handshake_timeout=1),
    "ssl_shutdown_timeout": _serve(HOST, 0, ssl_shutdown_timeout=1),
    "ssl_handshake_timeout=0": _serve(HOST, 0, ssl_handshake_timeout=0),
    "ssl, ssl_handshake_timeout=-1": _serve(
        HOST, 0, ssl=server_context(), ssl_handshake_timeout=-1
    ),
    "reuse_address='x'": _serve(HOST, 0, reuse_address="x"),
    "reuse_port='x'": _serve(HOST, 0, reuse_port="x"),
    "factory=None": _serve(HOST, 0, factory=None),
    "host, sock": _serve_sock(Stage.fresh, HOST),
    "port, sock": _serve_sock(Stage.fresh, None, 0),
    "sock=connected": _serve_sock(Stage.tcp),
    "sock=None": _serve(sock=None),
    "unknown": _serve(HOST, 0, unknown=1),
    **_sockets(lambda s, sock: _serve(sock=sock)(s)),
}

# ── create_unix_server ───────────────────────────────────────────────────────────────────────


def _serve_unix(*args: Any, factory: Any = P, **options: Any) -> AsyncCall:
    async def call(s: Stage) -> object:
        server = await s.loop.create_unix_server(factory, *args, **options)
        server.close()
        return "served"

    return call


def _path_server(name: str, make: Callable[[str], Any] = str, **options: Any) -> Call:
    return lambda s: _serve_unix(make(s.path(name)), **options)(s)


async def _path_in_use(s: Stage) -> object:
    """Serve twice on one path: the second server replaces the socket of the first as stale."""
    server = await s.loop.create_unix_server(P, s.path())
    try:
        return await _serve_unix(s.path())(s)
    finally:
        server.close()


async def _abstract_in_use(s: Stage) -> object:
    server = await s.loop.create_unix_server(P, "\0uringloop-taken")
    try:
        return await _serve_unix("\0uringloop-taken")(s)
    finally:
        server.close()


UNIX_SERVER: dict[str, Call] = {
    "": _serve_unix(),
    "path=None": _serve_unix(None),
    "path=1": _serve_unix(1),
    "path=[]": _serve_unix([]),
    "path=''": _serve_unix(""),
    "path too long": _serve_unix("/tmp/" + "x" * 200),
    "path too long, bytes": _serve_unix(b"/tmp/" + b"x" * 200),
    "path with a null byte": _serve_unix("/tmp/\0x"),
    "directory does not exist": _path_server("missing/socket"),
    "directory does not exist, bytes": _path_server("missing/socket", str.encode),
    "directory does not exist, Path": _path_server("missing/socket", pathlib.Path),
    "path is a directory": _path_server("."),
    "path is a file": lambda s: _serve_unix(s.file().name)(s),
    "path in a file": lambda s: _serve_unix(s.file().name + "/socket")(s),
    "path in use": _path_in_use,
    "abstract path in use": _abstract_in_use,
    "path, sock": lambda s: _serve_unix(s.path(), sock=s.unix())(s),
    "sock=TCP": lambda s: _serve_unix(sock=s.tcp())(s),
    "ssl=True": _path_server("x", ssl=True),
    "ssl='x'": _path_server("x", ssl="x"),
    "ssl_handshake_timeout": _path_server("x", ssl_handshake_timeout=1),
    "ssl_shutdown_timeout": _path_server("x", ssl_shutdown_timeout=1),
    "backlog='x'": _path_server("x", backlog="x"),
    **_sockets(lambda s, sock: _serve_unix(sock=sock)(s)),
}

# ── methods of servers ───────────────────────────────────────────────────────────────────────


async def _serve_forever_twice(server: Any) -> object:
    first = asyncio.ensure_future(server.serve_forever())
    await asyncio.sleep(0)
    try:
        return await server.serve_forever()
    finally:
        first.cancel()
        await asyncio.wait([first])


def _closed_then(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def closed(server: Any) -> Any:
        server.close()
        return call(server)

    return closed


async def _start_twice(server: Any) -> object:
    await server.start_serving()
    await server.start_serving()
    return server.is_serving()


SERVERS: dict[str, Call] = {
    "start_serving twice": on_server(_start_twice),
    "start_serving twice, not started": on_server(_start_twice, start_serving=False),
    "serve_forever twice": on_server(_serve_forever_twice),
    "close twice": on_server(_closed_then(lambda server: server.close())),
    "closed: start_serving": on_server(_closed_then(lambda server: server.start_serving())),
    "closed: serve_forever": on_server(_closed_then(lambda server: server.serve_forever())),
    "closed: wait_closed": on_server(_closed_then(lambda server: server.wait_closed())),
    "closed: sockets": on_server(_closed_then(lambda server: server.sockets)),
    "closed: is_serving": on_server(_closed_then(lambda server: server.is_serving())),
    "closed: repr": on_server(_closed_then(repr)),
    "unstarted, closed: start_serving": on_server(
        _closed_then(lambda server: server.start_serving()), start_serving=False
    ),
    "sockets is read only": on_server(lambda server: setattr(server, "sockets", ())),
    "close(1)": on_server(lambda server: server.close(1)),
}

CASES = [
    *cases("plain closed", _named("create_connection", CONNECTION)),
    *cases("plain", _named("create_unix_connection", UNIX_CONNECTION)),
    *cases("plain", _named("connect_accepted_socket", ACCEPTED)),
    *cases("plain closed", _named("create_server", SERVER)),
    *cases("plain closed", _named("create_unix_server", UNIX_SERVER)),
    *cases("plain", _named("Server", SERVERS)),
]
