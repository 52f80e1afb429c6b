"""gunicorn's worker for ASGI applications: uvicorn on uringloop.

`gunicorn -k uringloop.workers.uvicorn.Worker app:app`. gunicorn's main process imports this module
and has no loop; uvicorn creates the loop after the fork. A worker that is replaced answers one last
request on each connection.
"""

from __future__ import annotations

import asyncio
import sys
from typing import ClassVar

try:
    from gunicorn.arbiter import Arbiter
    from uvicorn_worker import UvicornWorker

    from uringloop.workers.serving import limit_connections, prepare
    from uringloop.workers.uvicorn_serving import LOOP, Server
except ImportError as exc:
    raise ImportError(
        "uringloop.workers.uvicorn needs gunicorn, uvicorn and uvicorn-worker: "
        "pip install gunicorn 'uvicorn-worker>=0.4'"
    ) from exc

__all__ = ["Worker"]


class Worker(UvicornWorker):
    """uvicorn's worker on uringloop; a subclass may extend CONFIG_KWARGS."""

    CONFIG_KWARGS: ClassVar = {**UvicornWorker.CONFIG_KWARGS, "loop": LOOP}

    async def _serve(self) -> None:
        limit_connections(asyncio.get_running_loop(), self.cfg, self.sockets)
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
        prepare()
