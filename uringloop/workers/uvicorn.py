"""gunicorn's worker for ASGI applications: uvicorn on this loop.

`gunicorn -k uringloop.workers.uvicorn.Worker app:app`. gunicorn imports it by that name, in its
main process and without a loop; the loop is made after the fork, by uvicorn.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from typing import ClassVar

from uringloop import policy
from uringloop._ring import backends
from uringloop.loop import Loop

try:
    import uvicorn
    from gunicorn.arbiter import Arbiter
    from uvicorn_worker import UvicornWorker
except ImportError as exc:
    raise ImportError(
        "uringloop.workers.uvicorn needs gunicorn, uvicorn and uvicorn-worker: "
        "pip install gunicorn 'uvicorn-worker>=0.4'"
    ) from exc


# How long a worker that ends reads the requests of the connections that it has accepted last.
GRACE_S = 0.05

# uvicorn's, which its worker connects to gunicorn's log.
logger = logging.getLogger("uvicorn.error")


def new_event_loop() -> Loop:
    """Return the loop of a worker."""
    loop = policy.new_event_loop()
    logger.info(backends.described(loop.backend, loop.backend_reason))
    return loop


class Server(uvicorn.Server):
    """uvicorn's server, which loses no connection when its worker is replaced."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, answer what has been accepted, then shut down as uvicorn does.

        uvicorn takes a connection for idle whose request has not been read yet, and closes it. The
        listening sockets are gunicorn's: its new workers accept what comes from now on.
        """
        for server in self.servers:
            server.close()
        await asyncio.sleep(GRACE_S)
        await super().shutdown(sockets)


class Worker(UvicornWorker):
    """uvicorn's worker on uringloop; a subclass may say more in CONFIG_KWARGS."""

    CONFIG_KWARGS: ClassVar = {
        **UvicornWorker.CONFIG_KWARGS,
        "loop": f"{__name__}:{new_event_loop.__name__}",
    }

    async def _serve(self) -> None:
        self.config.app = self.wsgi
        self._install_sigquit_handler()
        server = Server(self.config)
        await server.serve(sockets=self.sockets)
        if not server.started:
            # gunicorn does not start a worker again that has failed so.
            sys.exit(Arbiter.WORKER_BOOT_ERROR)

    @classmethod
    def setup(cls) -> None:
        """Runs once, in gunicorn's main process."""
        backends.ask()
