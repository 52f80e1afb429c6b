"""gunicorn's worker for aiohttp applications, on uringloop.

`gunicorn -k uringloop.workers.aiohttp.Worker app:app`. gunicorn's main process imports this module
and has no loop; each worker creates its loop after the fork. No policy is set, because policies are
deprecated.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings

from uringloop._ring import backends
from uringloop.policy import ask_kernel, new_event_loop

try:
    from aiohttp import GunicornWebWorker
    from gunicorn.workers import base
except ImportError as exc:
    raise ImportError(
        "uringloop.workers.aiohttp needs gunicorn and aiohttp: pip install gunicorn aiohttp"
    ) from exc


def close_inherited_loop() -> None:
    """Close a loop that a preloaded application has created in gunicorn's main process."""
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        # Without a current loop, get_event_loop() creates one and warns on Python 3.12 and 3.13,
        # and raises RuntimeError from 3.14 on.
        warnings.simplefilter("ignore", DeprecationWarning)
        asyncio.get_event_loop().close()


class Worker(GunicornWebWorker):
    """aiohttp's worker on uringloop."""

    @classmethod
    def setup(cls) -> None:
        """Probe for io_uring; gunicorn calls this once, in its main process."""
        ask_kernel()

    def init_process(self) -> None:
        close_inherited_loop()
        self.loop = loop = new_event_loop()
        self.log.info(backends.startup_line(loop.backend, loop.backend_reason))
        asyncio.set_event_loop(loop)
        # Skip aiohttp's init_process(), which would replace the loop by an asyncio loop.
        base.Worker.init_process(self)
