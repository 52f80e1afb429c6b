"""The default executor: created at first use, joined without blocking the loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import thread
from typing import Any, TypeVar

from uringloop._cpython.stdlib import Original
from uringloop._loop import jobs

T = TypeVar("T")

SUBMIT = Original(concurrent.futures.ThreadPoolExecutor, "submit")


class IdleThreads:
    """What a ThreadPoolExecutor asks for an idle thread, in place of its semaphore."""

    def __init__(self, queue: jobs.JobQueue) -> None:
        self.queue = queue

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        return self.queue.has_idle()

    def release(self) -> None:
        """Do nothing: the queue knows the threads that wait at it."""


class ThreadPool(concurrent.futures.ThreadPoolExecutor):
    """A ThreadPoolExecutor with a compiled queue, through which it performs the calls of loops."""

    _work_queue: jobs.JobQueue  # type: ignore[assignment]
    _idle_semaphore: IdleThreads  # type: ignore[assignment]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._work_queue = jobs.JobQueue()
        self._idle_semaphore = IdleThreads(self._work_queue)

    def call(
        self, loop: asyncio.AbstractEventLoop, function: Callable[..., T], args: tuple[Any, ...]
    ) -> asyncio.Future[T]:
        """Do what run_in_executor() does with the future of submit()."""
        queue = self._work_queue
        # Tracers replace submit(), which then has to be called.
        patched = "submit" in vars(self) or "submit" in vars(ThreadPool)
        if SUBMIT.is_in_place() and not patched:
            future = queue.add_job(loop, function, args)
            if future is not None:
                try:
                    if queue.has_idle() or self._is_full() or self._has_threads():
                        return future
                except BaseException:
                    future.cancel()
                    raise
                # The pool has been shut down.
                future.cancel()
        return asyncio.wrap_future(self.submit(function, *args), loop=loop)

    def _is_full(self) -> bool:
        """Return whether there are as many threads as there may be: they perform what is queued."""
        return len(self._threads) >= self._max_workers

    def _has_threads(self) -> bool:
        """Start a thread if there may be one more; return whether there is one for a new job."""
        with self._shutdown_lock, thread._global_shutdown_lock:
            if not (self._shutdown or thread._shutdown):
                try:
                    self._adjust_thread_count()
                except (MemoryError, RuntimeError):
                    # The job waits for one of the others.
                    if not self._threads:
                        raise
            return bool(self._threads)

    def _initializer_failed(self) -> None:
        self._work_queue.close()
        super()._initializer_failed()


class DefaultExecutor:
    """The thread pool of one loop."""

    def __init__(self) -> None:
        self.pool: concurrent.futures.ThreadPoolExecutor | None = None
        self.shutdown_called = False

    def get(self) -> concurrent.futures.ThreadPoolExecutor:
        if self.shutdown_called:
            raise RuntimeError("Executor shutdown has been called")
        if self.pool is None:
            kind = ThreadPool if jobs.is_used() else concurrent.futures.ThreadPoolExecutor
            self.pool = kind(thread_name_prefix="asyncio")
        return self.pool

    def load(self) -> dict[str, float]:
        """Return what stats() says of the pool. Any thread may call it."""
        pool = self.pool
        queue = getattr(pool, "_work_queue", None)
        # A pool that has ended still has its threads, and a plain one the None that ends them. The
        # loop's thread may add one meanwhile.
        threads = sum(each.is_alive() for each in getattr(pool, "_threads", set()).copy())
        queued, wait_s = 0, 0.0
        if threads and isinstance(queue, jobs.JobQueue):
            queued, wait_s = queue.waits()
        elif threads and queue is not None and hasattr(queue, "qsize"):
            queued = queue.qsize()
        return {
            "executor_threads": threads,
            "executor_queue": queued,
            "executor_wait": wait_s,
        }

    def set(self, executor: object) -> None:
        if not isinstance(executor, concurrent.futures.ThreadPoolExecutor):
            raise TypeError("executor must be ThreadPoolExecutor instance")
        self.pool = executor

    def is_plain(self) -> bool:
        """Return whether its class is not one of the program's own."""
        kinds = (ThreadPool, concurrent.futures.ThreadPoolExecutor)
        return self.pool is None or type(self.pool) in kinds

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
        joiner = threading.Thread(target=_join, args=(pool, loop, joined))
        joiner.start()
        try:
            async with asyncio.timeout(timeout):
                await joined
        except TimeoutError:
            warnings.warn(
                f"The executor did not finishing joining its threads within {timeout} seconds.",
                RuntimeWarning,
                stacklevel=3,
            )
            pool.shutdown(wait=False)
        else:
            joiner.join()


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
