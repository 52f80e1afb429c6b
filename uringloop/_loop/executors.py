"""The default executor: created at first use, joined without blocking the loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import warnings


class DefaultExecutor:
    """The thread pool of one loop."""

    def __init__(self) -> None:
        self.pool: concurrent.futures.ThreadPoolExecutor | None = None
        self.shutdown_called = False

    def get(self) -> concurrent.futures.ThreadPoolExecutor:
        if self.shutdown_called:
            raise RuntimeError("Executor shutdown has been called")
        if self.pool is None:
            self.pool = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="asyncio")
        return self.pool

    def set(self, executor: object) -> None:
        if not isinstance(executor, concurrent.futures.ThreadPoolExecutor):
            raise TypeError("executor must be ThreadPoolExecutor instance")
        self.pool = executor

    def close(self) -> None:
        """Shut the pool down without waiting: its threads end after the queued work."""
        self.shutdown_called = True
        if self.pool is not None:
            self.pool.shutdown(wait=False)
            self.pool = None

    async def shutdown(self, loop: asyncio.AbstractEventLoop, timeout: float | None) -> None:
        """Join the threads; after *timeout* seconds, warn and return without joining them."""
        self.shutdown_called = True
        pool = self.pool
        if pool is None:
            return
        joined: asyncio.Future[None] = loop.create_future()
        thread = threading.Thread(target=_join, args=(pool, loop, joined))
        thread.start()
        try:
            async with asyncio.timeout(timeout):
                await joined
        except TimeoutError:
            warnings.warn(
                f"The executor did not finishing joining its threads within {timeout} seconds.",
                RuntimeWarning,
                stacklevel=2,
            )
            pool.shutdown(wait=False)
        else:
            thread.join()


def _join(
    pool: concurrent.futures.ThreadPoolExecutor,
    loop: asyncio.AbstractEventLoop,
    joined: asyncio.Future[None],
) -> None:
    try:
        pool.shutdown(wait=True)
    except Exception as exc:
        _resolve_in_loop(loop, joined, exc)
    else:
        _resolve_in_loop(loop, joined, None)


def _resolve_in_loop(
    loop: asyncio.AbstractEventLoop, joined: asyncio.Future[None], exc: Exception | None
) -> None:
    if loop.is_closed():
        return
    loop.call_soon_threadsafe(_resolve, joined, exc)


def _resolve(joined: asyncio.Future[None], exc: Exception | None) -> None:
    if joined.done():
        return
    if exc is None:
        joined.set_result(None)
    else:
        joined.set_exception(exc)
