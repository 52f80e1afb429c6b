"""gunicorn's worker for aiohttp's applications, on this loop.

`gunicorn -k uringloop.workers.aiohttp.Worker app:app`. gunicorn imports it by that name, in its
main process and without a loop; the loop is made after the fork. No policy is set, for policies are
deprecated.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings

from uringloop._ring import backends
from uringloop.policy import new_event_loop

try:
    from aiohttp import GunicornWebWorker
    from gunicorn.workers import base
except ImportError as exc:
    raise ImportError(
        "uringloop.workers.aiohttp needs gunicorn and aiohttp: pip install gunicorn aiohttp"
    ) from exc


def close_inherited_loop() -> None:
    """Close the loop that an application has made which gunicorn has loaded before the fork."""
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        # Without one, Python 3.12 and 3.13 make one and warn; from 3.14 on it is a RuntimeError.
        warnings.simplefilter("ignore", DeprecationWarning)
        asyncio.get_event_loop().close()


class Worker(GunicornWebWorker):
    """aiohttp's worker on uringloop."""

    @classmethod
    def setup(cls) -> None:
        """Runs once, in gunicorn's main process."""
        backends.ask()

    def init_process(self) -> None:
        close_inherited_loop()
        self.loop = loop = new_event_loop()
        self.log.info(backends.described(loop.backend, loop.backend_reason))
        asyncio.set_event_loop(loop)
        # aiohttp's own would replace the loop by one of asyncio's.
        base.Worker.init_process(self)
