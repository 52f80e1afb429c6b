"""The workloads by name: the same code under every loop.

Each is written as a user would write it, not tuned for one loop, and runs in its loop's thread.
"""

from __future__ import annotations

from uringloop.bench import echo
from uringloop.bench.echo import Serve

from . import clients, datagrams, files, http, pairs, programs, secure, transfer

# The echo servers, and those for loads other than the load generator.
SERVERS: dict[str, Serve] = {
    **echo.SERVERS,
    "sink": transfer.serve_sink,
    "source": transfer.serve_source,
    "datagrams": datagrams.serve_datagrams,
    **secure.SERVERS,
    "http-raw": http.serve_raw,
    "uvicorn": http.serve_uvicorn,
    "uvicorn-sync": http.serve_sync_endpoint,
    "aiohttp": http.serve_aiohttp,
}

PROGRAMS = {**programs.PROGRAMS, **files.PROGRAMS}
CLIENTS = clients.CLIENTS
PAIRS = pairs.PAIRS
