"""gunicorn's worker for ASGI applications: uvicorn on this loop.

`gunicorn -k uringloop.workers.uvicorn.Worker app:app`. gunicorn imports it by that name, in its
main process and without a loop; the loop is made after the fork, by uvicorn.
"""

from __future__ import annotations

import logging
from typing import ClassVar

from uringloop import availability, policy
from uringloop.loop import Loop

try:
    from uvicorn_worker import UvicornWorker
except ImportError as exc:
    raise ImportError(
        "uringloop.workers.uvicorn needs gunicorn, uvicorn and uvicorn-worker: "
        "pip install gunicorn 'uvicorn-worker>=0.4'"
    ) from exc


# uvicorn's, which its worker connects to gunicorn's log.
logger = logging.getLogger("uvicorn.error")


def new_event_loop() -> Loop:
    """Return the loop of a worker."""
    loop = policy.new_event_loop()
    logger.info(availability.described(loop.backend, loop.backend_reason))
    return loop


class Worker(UvicornWorker):
    """uvicorn's worker on uringloop; a subclass may say more in CONFIG_KWARGS."""

    CONFIG_KWARGS: ClassVar = {
        **UvicornWorker.CONFIG_KWARGS,
        "loop": f"{__name__}:{new_event_loop.__name__}",
    }

    @classmethod
    def setup(cls) -> None:
        """Runs once, in gunicorn's main process."""
        availability.ask()
