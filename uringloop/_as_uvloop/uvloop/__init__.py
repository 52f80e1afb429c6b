"""uvloop's public names for uringloop: the package `uvloop` under `uringloop.as_uvloop`.

As in uvloop, `install` and `EventLoopPolicy` do not exist from Python 3.16 on, where asyncio has no
policies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uringloop
from uringloop import policy

from .loop import Loop, new_event_loop

T = TypeVar("T")

# The newest version of uvloop whose names are covered.
__version__ = f"0.23.0+uringloop.{uringloop.__version__}"

__all__ = ["Loop", "new_event_loop", "run"]

if policy.HAS_POLICIES:
    __all__ += ["EventLoopPolicy", "install"]

    class EventLoopPolicy(policy.EventLoopPolicy):
        """Creates uringloop loops of the class `uvloop.Loop`."""

        def _loop_factory(self) -> Loop:
            return new_event_loop()

    def install() -> None:
        """Make this loop the default event loop of asyncio, as `uringloop.install` does."""
        policy.install_policy(EventLoopPolicy, "uvloop.install()")


def run(
    main: Coroutine[Any, Any, T],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = new_event_loop,
    debug: bool | None = None,
) -> T:
    """Run *main* like `uringloop.run`.

    Raises TypeError if *loop_factory* returns a loop that is not a `uvloop.Loop`.
    """

    async def checked() -> T:
        if not isinstance(asyncio.get_running_loop(), Loop):
            raise TypeError("uvloop.run() uses a non-uvloop event loop")
        return await main

    return uringloop.run(checked(), loop_factory=loop_factory, debug=debug)
