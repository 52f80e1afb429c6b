"""The names of uvloop for uringloop's loop: what `import uvloop` gives under `uringloop.as_uvloop`.

As in uvloop, `install` and `EventLoopPolicy` do not exist from Python 3.16 on, whose asyncio has no
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

# The newest uvloop whose names are here.
__version__ = f"0.23.0+uringloop.{uringloop.__version__}"

__all__ = ["Loop", "new_event_loop", "run"]

if policy.HAS_POLICIES:
    __all__ += ["EventLoopPolicy", "install"]

    class EventLoopPolicy(policy.EventLoopPolicy):
        """Makes uringloop's loops under the name of uvloop's."""

        def _loop_factory(self) -> Loop:
            return new_event_loop()

    def install() -> None:
        """Make asyncio's default loop this one, as `uringloop.install` does."""
        policy.install_policy(EventLoopPolicy, "uvloop.install()")


def run(
    main: Coroutine[Any, Any, T],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = new_event_loop,
    debug: bool | None = None,
) -> T:
    """Run *main* as `uringloop.run` does; TypeError if *loop_factory* makes other loops."""

    async def checked() -> T:
        if not isinstance(asyncio.get_running_loop(), Loop):
            raise TypeError("uvloop.run() uses a non-uvloop event loop")
        return await main

    return uringloop.run(checked(), loop_factory=loop_factory, debug=debug)
