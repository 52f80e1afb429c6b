"""The event loop policy, for programs and test suites that still set one.

Policies are deprecated from Python 3.14 on: `uringloop.run`, `asyncio.Runner(loop_factory=...)`
and `asyncio.run(..., loop_factory=...)` need none.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from uringloop.loop import Loop

T = TypeVar("T")

if TYPE_CHECKING:
    _Base = asyncio.DefaultEventLoopPolicy
elif sys.version_info >= (3, 14):
    # The public name warns when it is touched: an import must not.
    _Base = getattr(asyncio.events, "_BaseDefaultEventLoopPolicy", object)
else:
    _Base = asyncio.DefaultEventLoopPolicy


def new_event_loop() -> Loop:
    """Return a new event loop; fit for ``loop_factory=``."""
    return Loop()


class EventLoopPolicy(_Base):
    """Makes uringloop's loops; everything else is asyncio's default policy."""

    def _loop_factory(self) -> Loop:
        return new_event_loop()


def install() -> None:
    """Make asyncio's default loop a uringloop one, from now on in this process."""
    with warnings.catch_warnings():
        # The caller asks for a policy by this call; asyncio's advice is in our documentation.
        warnings.simplefilter("ignore", DeprecationWarning)
        asyncio.set_event_loop_policy(EventLoopPolicy())


def run(
    main: Coroutine[Any, Any, T],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = new_event_loop,
    debug: bool | None = None,
) -> T:
    """Run *main* as asyncio.run does, on a uringloop loop.

    Raises what *main* raises, and RuntimeError when a loop runs in this thread already.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("asyncio.run() cannot be called from a running event loop")
    with asyncio.Runner(debug=debug, loop_factory=loop_factory) as runner:
        return runner.run(main)
