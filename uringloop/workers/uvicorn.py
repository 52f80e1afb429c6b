"""gunicorn's worker for ASGI applications: uvicorn on this loop.

`gunicorn -k uringloop.workers.uvicorn.Worker app:app`. gunicorn imports it by that name, in its
main process and without a loop; the loop is made after the fork, by uvicorn.
"""

from __future__ import annotations

from typing import ClassVar

try:
    from uvicorn_worker import UvicornWorker
except ImportError as exc:
    raise ImportError(
        "uringloop.workers.uvicorn needs gunicorn, uvicorn and uvicorn-worker: "
        "pip install gunicorn 'uvicorn-worker>=0.4'"
    ) from exc


class Worker(UvicornWorker):
    """uvicorn's worker on uringloop; a subclass may say more in CONFIG_KWARGS."""

    CONFIG_KWARGS: ClassVar = {**UvicornWorker.CONFIG_KWARGS, "loop": "uringloop:new_event_loop"}
