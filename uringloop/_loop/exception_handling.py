"""The loop's exception handlers, for exceptions that no code awaits."""

from __future__ import annotations

import asyncio
import contextvars
import traceback
from asyncio.log import logger
from collections.abc import Callable, Mapping
from typing import TypeAlias

from uringloop._cpython import stdlib

Context: TypeAlias = dict[str, object]
ExceptionHandler: TypeAlias = Callable[[asyncio.AbstractEventLoop, Context], object]

TRACEBACK_TITLES = {
    "source_traceback": "Object created at (most recent call last):\n",
    "handle_traceback": "Handle created at (most recent call last):\n",
}


def log(context: Context, handle_traceback: object) -> None:
    """Log *context* as asyncio's default handler does."""
    lines = [str(context.get("message") or "Unhandled exception in event loop")]
    if "source_traceback" not in context and handle_traceback:
        context["handle_traceback"] = handle_traceback
    for key in sorted(context):
        if key in ("message", "exception"):
            continue
        lines.append(f"{key}: {_described(key, context[key])}")
    exception = context.get("exception")
    logger.error(
        "\n".join(lines), exc_info=exception if isinstance(exception, BaseException) else None
    )


def _described(key: str, value: object) -> str:
    title = TRACEBACK_TITLES.get(key)
    if title is None:
        return repr(value)
    # format_list() raises for a value that is not a traceback; `dispatch` logs that exception.
    return title + "".join(traceback.format_list(value)).rstrip()  # type: ignore[arg-type]


def dispatch(
    loop: asyncio.AbstractEventLoop, handler: ExceptionHandler | None, context: Context
) -> None:
    """Call *handler*, or the default handler, with *context*; log exceptions that it raises.

    SystemExit and KeyboardInterrupt propagate.
    """
    if handler is None:
        _default(loop, context, "Exception in default exception handler")
        return
    try:
        _run(loop, handler, context)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as exc:
        _default(
            loop,
            {
                "message": "Unhandled error in exception handler",
                "exception": exc,
                "context": context,
            },
            "Exception in default exception handler while handling an unexpected error "
            "in custom exception handler",
        )


def _default(loop: asyncio.AbstractEventLoop, context: Context, failure: str) -> None:
    try:
        loop.default_exception_handler(context)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        # A subclass may override the default handler; an exception of it is only logged.
        logger.error(failure, exc_info=True)


def _run(loop: asyncio.AbstractEventLoop, handler: ExceptionHandler, context: Context) -> None:
    """Run *handler*, since 3.12 in the context of the task, future or handle that failed."""
    own = _context_of(context) if stdlib.HANDLER_HAS_CONTEXT else None
    if own is None:
        handler(loop, context)
    else:
        own.run(handler, loop, context)


def _context_of(context: Mapping[str, object]) -> contextvars.Context | None:
    for key in ("task", "future", "handle"):
        subject = context.get(key)
        if subject is not None:
            get_context = getattr(subject, "get_context", None)
            found = get_context() if get_context is not None else None
            return found if isinstance(found, contextvars.Context) else None
    return None
