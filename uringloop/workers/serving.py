"""What the workers add to their servers: gunicorn's limit, and one last request on each connection.

The response to that request tells the client that the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Iterable
from typing import Any

from uringloop import policy
from uringloop._loop import options
from uringloop._net import servers
from uringloop.monitor import health_settings

# A server waits at least GRACE_S for requests on the connections that it accepted last, and at most
# LAST_REQUEST_S for a last request on each connection that a client keeps.
GRACE_S = 0.05
LAST_REQUEST_S = 0.5


def prepare() -> None:
    """Ask the kernel for rings before workers are forked; exit if every worker would fail.

    What a worker's first loop imports is imported here: a worker that is forked after the package
    was replaced on disk has the modules of one version.
    """
    try:
        policy.ask_kernel()
        if address := options.HEALTH.value():
            health_settings.parsed(address)
            importlib.import_module("uringloop.monitor.health")
        if options.STALL_MS.value(None):
            importlib.import_module("uringloop.monitor.stalls")
    except (OSError, ValueError) as exc:
        raise SystemExit(f"uringloop: {exc}") from None


def limit_connections(
    loop: asyncio.AbstractEventLoop, options: Any, sockets: Iterable[Any]
) -> None:
    """Limit the connections from each of gunicorn's *sockets* to gunicorn's worker_connections.

    The default of that option is meant for gunicorn's own workers: here it means no limit, and so
    does 0.
    """
    option = options.settings["worker_connections"]
    limit = option.get()
    if limit in (0, option.default):
        return
    create: Any = loop.create_server
    # The server has a socket object of its own. The application may also have servers.
    limited = {os.fstat(sock.fileno()).st_ino for sock in sockets}

    async def create_server(*arguments: Any, sock: Any = None, **others: Any) -> Any:
        if sock is not None and os.fstat(sock.fileno()).st_ino in limited:
            others["max_connections"] = limit
        return await create(*arguments, sock=sock, **others)

    loop.create_server = create_server  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def draining(listening: Iterable[object], keep_alive_s: float) -> AsyncIterator[None]:
    """Stop accepting, and wait for one last request on each connection before the body.

    The responses of the server must tell the clients that their connections end. Otherwise a
    request could be on its way while the server closes a connection that it considers idle, such as
    a new one whose request it has not read yet. Other processes that have the listening sockets
    accept later connections.
    """
    drains = [
        asyncio.create_task(server.drain())
        for server in listening
        if isinstance(server, servers.Server)
    ]
    try:
        if drains:
            await asyncio.wait(drains, timeout=max(GRACE_S, min(keep_alive_s, LAST_REQUEST_S)))
        yield
    finally:
        for drain in drains:
            drain.cancel()
