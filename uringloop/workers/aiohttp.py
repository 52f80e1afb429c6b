"""gunicorn's worker for aiohttp applications, on uringloop.

`gunicorn -k uringloop.workers.aiohttp.Worker app:app`. gunicorn's main process imports this module
and has no loop; each worker creates its loop after the fork. No policy is set, because policies are
deprecated. A worker that is replaced answers one last request on each connection, unless the
application makes its own AppRunner.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
import warnings
from typing import Any

from uringloop._ring import backends
from uringloop.policy import new_event_loop
from uringloop.workers.serving import draining, limit_connections, prepare

try:
    from aiohttp import GunicornWebWorker, web
    from gunicorn.workers import base
except ImportError as exc:
    raise ImportError(
        "uringloop.workers.aiohttp needs gunicorn and aiohttp: pip install gunicorn aiohttp"
    ) from exc

__all__ = ["Worker"]


# How often cleanup() looks whether uploads have ended.
UPLOADS_POLL_S = 0.05


def close_inherited_loop() -> None:
    """Close a loop that a preloaded application has created in gunicorn's main process."""
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        # Without a current loop, get_event_loop() creates one and warns on Python 3.12 and 3.13,
        # and raises RuntimeError from 3.14 on.
        warnings.simplefilter("ignore", DeprecationWarning)
        asyncio.get_event_loop().close()


class Runner(web.AppRunner):
    """aiohttp's runner, which answers one last request on each connection when it ends.

    It also lets clients finish their uploads: from Server.pre_shutdown() on, aiohttp ignores what a
    client sends, so that the handler of an upload in progress would wait until it is cancelled.
    """

    __slots__ = ("_keep_alive_s",)

    def __init__(self, app: web.Application, keepalive_timeout: float, **options: Any) -> None:
        super().__init__(app, keepalive_timeout=keepalive_timeout, **options)
        self._keep_alive_s = keepalive_timeout

    async def cleanup(self) -> None:
        """Stop accepting, answer one last request on each connection, then do as aiohttp does."""
        if self.server is not None:
            close_after_responses(self.server)
        listening = [getattr(site, "_server", None) for site in self.sites]
        async with draining(listening, self._keep_alive_s):
            deadline = time.monotonic() + self._shutdown_timeout  # type: ignore[has-type]
            await self._receive_uploads(deadline)
            # What is left of the time is for the handlers.
            self._shutdown_timeout = max(0.0, deadline - time.monotonic())  # type: ignore[misc]
            await super().cleanup()

    async def _receive_uploads(self, deadline: float) -> None:
        """Wait until the body of each request in progress is there, or until *deadline*."""
        # Nothing tells when an upload ends.
        while self.server is not None and any(map(is_uploading, self.server.connections)):
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(UPLOADS_POLL_S)


def is_uploading(connection: web.RequestHandler[Any]) -> bool:
    """Return whether the body of the request in progress has not been received completely."""
    # There is no public name for the request.
    request = getattr(connection, "_current_request", None)
    return request is not None and not request.content.is_eof()


def close_after_responses(server: web.Server) -> None:
    """Have each response tell the client that the connection ends."""
    handler = server.request_handler

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        close_after_response(request)
        return await handler(request)

    server.request_handler = answer
    for connection in server.connections:
        # There is no other way for connections that exist. Without these private names they are
        # closed when they are idle.
        with contextlib.suppress(AttributeError):
            connection._request_handler = answer
            if connection._current_request is not None:
                close_after_response(connection._current_request)


def close_after_response(request: web.BaseRequest) -> None:
    """Have the response tell the client that the connection ends, unless it has begun."""
    # As if the client had asked for it: a response may send its headers in the handler.
    with contextlib.suppress(AttributeError):
        request._message = request._message._replace(should_close=True)


class Worker(GunicornWebWorker):
    """aiohttp's worker on uringloop."""

    @classmethod
    def setup(cls) -> None:
        """Probe for io_uring; gunicorn calls this once, in its main process."""
        prepare()

    def init_process(self) -> None:
        close_inherited_loop()
        self.loop = loop = new_event_loop()
        self.log.info(backends.startup_line(loop.backend, loop.backend_reason))
        asyncio.set_event_loop(loop)
        limit_connections(loop, self.cfg, self.sockets)
        # Skip aiohttp's init_process(), which would replace the loop by an asyncio loop.
        base.Worker.init_process(self)

    async def _run(self) -> None:
        given: Any = self.wsgi  # type: ignore[has-type]
        if isinstance(given, web.Application) or inspect.iscoroutinefunction(given):
            self.wsgi = functools.partial(self._runner, given)
        await super()._run()

    async def _runner(self, given: Any) -> web.AppRunner:
        app = given if isinstance(given, web.Application) else await given()
        if isinstance(app, web.AppRunner):
            return app
        return Runner(
            app,
            logger=self.log,
            keepalive_timeout=self.cfg.keepalive,
            access_log=self.log.access_log if self.cfg.accesslog else None,
            access_log_format=self._get_valid_log_format(self.cfg.access_log_format),
            # The rest of the time is for the end of the process.
            shutdown_timeout=0.95 * self.cfg.graceful_timeout,
        )
