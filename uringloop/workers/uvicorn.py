"""gunicorn's worker for ASGI applications: uvicorn on uringloop.

`gunicorn -k uringloop.workers.uvicorn.Worker app:app`. gunicorn's main process imports this module
and has no loop; uvicorn creates the loop after the fork.
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


# How long a worker that shuts down waits for requests of the connections that it accepted last.
GRACE_S = 0.05

# uvicorn's logger; its worker class gives it the handlers of gunicorn's error log.
logger = logging.getLogger("uvicorn.error")


def new_event_loop() -> Loop:
    """Return a new loop for a worker, and log which ring it uses."""
    loop = policy.new_event_loop()
    logger.info(backends.startup_line(loop.backend, loop.backend_reason))
    return loop


class Server(uvicorn.Server):
    """uvicorn's server, changed so that replacing a worker does not drop connections."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, answer the accepted connections, then shut down as uvicorn does.

        uvicorn considers a connection idle, and closes it, if its request has not been read yet.
        The listening sockets belong to gunicorn, whose new workers accept later connections.
        """
        for server in self.servers:
            server.close()
        await asyncio.sleep(GRACE_S)
        await super().shutdown(sockets)


class Worker(UvicornWorker):
    """uvicorn's worker on uringloop; a subclass may extend CONFIG_KWARGS."""

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
            # gunicorn does not restart a worker that exits with this status.
            sys.exit(Arbiter.WORKER_BOOT_ERROR)

    @classmethod
    def setup(cls) -> None:
        """Probe for io_uring; gunicorn calls this once, in its main process."""
        policy.ask_kernel()
