"""The workloads by name: the same code under every loop.

Each is written as a user would write it, and not tuned for one loop. Runs in its loop's thread.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

from . import databases, datagrams, echo, files, http, pairs, programs, secure, transfer

# Starts a server: returns as soon as it accepts connections; it serves as long as its loop runs.
Serve = Callable[[socket.socket], Awaitable[None]]

# The modes of `python -m uringloop.bench`.
WORKLOADS: dict[str, Serve] = {
    "protocol": echo.serve_protocol,
    "buffered": echo.serve_buffered,
    "streams": echo.serve_streams,
    "compiled-streams": echo.serve_compiled_streams,
    "sockets": echo.serve_sockets,
}

# All servers; the additional ones are for loads other than the load generator.
SERVERS: dict[str, Serve] = {
    **WORKLOADS,
    "sink": transfer.serve_sink,
    "source": transfer.serve_source,
    "datagrams": datagrams.serve_datagrams,
    "tls": secure.serve_tls,
    "http-raw": http.serve_raw,
    "uvicorn": http.serve_uvicorn,
    "aiohttp": http.serve_aiohttp,
}

# The servers with a datagram socket.
DATAGRAMS = ("datagrams",)

PROGRAMS = {**programs.PROGRAMS, **files.PROGRAMS}
CLIENTS = databases.CLIENTS
PAIRS = pairs.PAIRS
