"""getaddrinfo and getnameinfo: arguments that the resolver refuses."""

from __future__ import annotations

import socket
from typing import Any

from bad_input.stage import Call, cases


def _resolve(*args: Any, **options: Any) -> Call:
    return lambda s: s.loop.getaddrinfo(*args, **options)


def _name(*args: Any) -> Call:
    return lambda s: s.loop.getnameinfo(*args)


NUMERIC = socket.AI_NUMERICHOST

CASES = cases(
    "plain debug closed",
    {
        "getaddrinfo(None, None)": _resolve(None, None),
        "getaddrinfo(1, 80)": _resolve(1, 80),
        "getaddrinfo([], 80)": _resolve([], 80),
        "getaddrinfo('a b', 80)": _resolve("a b", 80, flags=NUMERIC),
        "getaddrinfo(name, 80, numeric)": _resolve("localhost", 80, flags=NUMERIC),
        "getaddrinfo('a..b', 80)": _resolve("a..b", 80),
        "getaddrinfo(too long, 80)": _resolve("a" * 70, 80),
        "getaddrinfo(null, 80)": _resolve("a\0b", 80, flags=NUMERIC),
        "getaddrinfo(surrogate, 80)": _resolve("\udcff", 80, flags=NUMERIC),
        "getaddrinfo(bytes, 80)": _resolve(b"\xff", 80, flags=NUMERIC),
        "getaddrinfo(host, 'x')": _resolve("127.0.0.1", "x"),
        "getaddrinfo(host, '-1', stream)": _resolve(
            "127.0.0.1", "no such service", type=socket.SOCK_STREAM
        ),
        "getaddrinfo(host, -1)": _resolve("127.0.0.1", -1),
        "getaddrinfo(host, 65536)": _resolve("127.0.0.1", 65536),
        "getaddrinfo(host, 2**70)": _resolve("127.0.0.1", 2**70),
        "getaddrinfo(host, 1.5)": _resolve("127.0.0.1", 1.5),
        "getaddrinfo(host, [])": _resolve("127.0.0.1", []),
        "getaddrinfo(family=9999)": _resolve("127.0.0.1", 80, family=9999),
        "getaddrinfo(family='x')": _resolve("127.0.0.1", 80, family="x"),
        "getaddrinfo(family=None)": _resolve("127.0.0.1", 80, family=None),
        "getaddrinfo(type=9999)": _resolve("127.0.0.1", 80, type=9999),
        "getaddrinfo(type='x')": _resolve("127.0.0.1", 80, type="x"),
        "getaddrinfo(proto=9999)": _resolve("127.0.0.1", 80, type=1, proto=9999),
        "getaddrinfo(proto='x')": _resolve("127.0.0.1", 80, proto="x"),
        "getaddrinfo(flags=-1)": _resolve("127.0.0.1", 80, flags=-1),
        "getaddrinfo(flags='x')": _resolve("127.0.0.1", 80, flags="x"),
        "getaddrinfo(other family)": _resolve(
            "127.0.0.1", 80, family=socket.AF_INET6, flags=NUMERIC
        ),
        "getaddrinfo()": _resolve(),
        "getaddrinfo(host)": _resolve("127.0.0.1"),
        "getaddrinfo(unknown=1)": _resolve("127.0.0.1", 80, unknown=1),
        "getaddrinfo(five positional)": _resolve("127.0.0.1", 80, 0, 0, 0),
        "getnameinfo(None)": _name(None),
        "getnameinfo('text')": _name("text"),
        "getnameinfo(1)": _name(1),
        "getnameinfo(())": _name(()),
        "getnameinfo((host,))": _name(("127.0.0.1",)),
        "getnameinfo((host, 'x'))": _name(("127.0.0.1", "x")),
        "getnameinfo((host, -1))": _name(("127.0.0.1", -1)),
        "getnameinfo((1, 80))": _name((1, 80)),
        "getnameinfo(('a b', 80))": _name(("a b", 80)),
        "getnameinfo(flags='x')": _name(("127.0.0.1", 80), "x"),
        "getnameinfo(flags=-1)": _name(("127.0.0.1", 80), -1),
        "getnameinfo(list)": _name(["127.0.0.1", 80]),
        "getnameinfo()": _name(),
    },
)
