"""uvicorn's command with uringloop: `python -m uringloop.workers.uvicorn_server app:app`.

It accepts the options of `uvicorn`; `--loop auto`, the default, is uringloop. A server that shuts
down, because a worker is replaced or uvicorn reloads, answers one last request on each connection.
A program that calls `uvicorn.run` itself imports this module for the same effects. The import is
needed in the main process, and in workers that multiprocessing spawns; these import the main
module.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import socket
import sys
from collections.abc import Callable
from typing import Any

from uringloop import policy
from uringloop._ring import backends
from uringloop.loop import Loop
from uringloop.workers.serving import draining, prepare

try:
    import uvicorn
    import uvicorn.config
    import uvicorn.main
    import uvicorn.supervisors.multiprocess
except ImportError as exc:
    raise ImportError(
        "uringloop.workers.uvicorn_server needs uvicorn: pip install uvicorn"
    ) from exc

# The factory of the loop, as uvicorn finds it; this module may be the main module.
LOOP = "uringloop.workers.uvicorn_server:new_event_loop"
# The header of the last response on a connection.
CLOSE = (b"connection", b"close")

logger = logging.getLogger("uvicorn.error")


def new_event_loop() -> Loop:
    """Return a new loop for a worker, and log which ring it uses."""
    loop = policy.new_event_loop()
    logger.info(backends.startup_line(loop.backend, loop.backend_reason))
    return loop


def loop_factory(use_subprocess: bool = False) -> Callable[[], Loop]:
    """Return the factory of a worker's loop, as uvicorn asks for it."""
    return new_event_loop


class Server(uvicorn.Server):
    """uvicorn's server, which answers one last request on each connection when it ends."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ws_protocol_class is not None:
            self.config.ws_protocol_class = functools.partial(
                make_websocket, self.config.ws_protocol_class
            )
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, answer one last request on each connection, then do as uvicorn does."""
        # Requests in progress may have an older list: uvicorn makes a new one each second.
        state = self.server_state
        state.default_headers = [*state.default_headers, CLOSE]
        for connection in state.connections:
            cycle: Any = getattr(connection, "cycle", None)
            # Without these private names, the client is not told that its connection ends.
            with contextlib.suppress(AttributeError):
                if not cycle.response_started:
                    cycle.default_headers = [*cycle.default_headers, CLOSE]
        async with draining(self.servers, self.config.timeout_keep_alive):
            await super().shutdown(sockets)


def make_websocket(kind: Callable[..., Any], *, server_state: Any, **others: Any) -> Any:
    """Return a protocol for a websocket, whose handshake does not end the connection."""
    own = copy.copy(server_state)
    own.default_headers = [header for header in own.default_headers if header != CLOSE]
    return kind(server_state=own, **others)


# uvicorn finds its server and its loop by these names: there is no option for the server. A
# function also has the name uvicorn.main.
sys.modules["uvicorn.main"].Server = Server  # type: ignore[attr-defined]
uvicorn.supervisors.multiprocess.Server = Server
uvicorn.config.LOOP_FACTORIES["auto"] = "uringloop.workers.uvicorn_server:loop_factory"

if __name__ == "__main__":
    prepare()
    uvicorn.main()
