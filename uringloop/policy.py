"""The event loop policy, for programs and test suites that still set one.

Policies are deprecated from Python 3.14 on and gone in 3.16: `uringloop.run`,
`asyncio.Runner(loop_factory=...)` and `asyncio.run(..., loop_factory=...)` need none.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from uringloop._loop import nesting
from uringloop.loop import Loop

T = TypeVar("T")

# From Python 3.16 on asyncio has no policies, and its functions and classes for them are gone.
HAS_POLICIES = sys.version_info < (3, 16)

if TYPE_CHECKING:
    _Base = asyncio.DefaultEventLoopPolicy
elif not HAS_POLICIES:
    _Base = object
elif sys.version_info >= (3, 14):
    # The public name warns when it is touched: an import must not.
    _Base = getattr(asyncio.events, "_BaseDefaultEventLoopPolicy", object)
else:
    _Base = asyncio.DefaultEventLoopPolicy


def new_event_loop() -> Loop:
    """Return a new event loop; fit for ``loop_factory=``."""
    return Loop()


def ring_here() -> str:
    """Return which ring a loop gets in this process and why, or why it gets none.

    Makes a loop, and logs no warning.
    """
    try:
        loop = Loop(warn_fallback=False)
    except (OSError, ValueError) as exc:
        return f"no ring: {exc}"
    loop.close()
    return f"{loop.backend} ({loop.backend_reason})"


class EventLoopPolicy(_Base):
    """Makes uringloop's loops; everything else is asyncio's default policy.

    From Python 3.16 on asyncio has no policies: RuntimeError.
    """

    def __init__(self) -> None:
        _demand_policies("uringloop.EventLoopPolicy()")
        super().__init__()

    def _loop_factory(self) -> Loop:
        return new_event_loop()


def _demand_policies(wanted: str) -> None:
    if not HAS_POLICIES:
        raise RuntimeError(
            f"{wanted} needs event loop policies, which Python 3.16 has removed: use "
            "uringloop.run(main()), asyncio.run(main(), loop_factory=uringloop.new_event_loop) or "
            "asyncio.Runner(loop_factory=uringloop.new_event_loop)"
        )


def install() -> None:
    """Make asyncio's default loop a uringloop one, from now on in this process.

    Warns, with a RuntimeWarning, when it comes too late for this thread: a loop of another kind
    runs in it, or has been made its current one. From Python 3.16 on asyncio has no policies, and
    no default loop to change: RuntimeError.
    """
    _demand_policies("uringloop.install()")
    install_policy(EventLoopPolicy, "uringloop.install()")


def install_policy(policy: Callable[[], EventLoopPolicy], name: str) -> None:
    """Set a policy for *name*, whose caller is who a warning is for."""
    with warnings.catch_warnings():
        # The caller asks for a policy by this call; asyncio's advice is in our documentation.
        warnings.simplefilter("ignore", DeprecationWarning)
        late = _loop_before(asyncio.get_event_loop_policy())
        asyncio.set_event_loop_policy(policy())
    if late is not None:
        warnings.warn(
            f"{name} came too late: {late!r} is there already; "
            "call it before asyncio.run() and before anything asks for a loop",
            RuntimeWarning,
            stacklevel=3,
        )


def _loop_before(policy: asyncio.AbstractEventLoopPolicy) -> asyncio.AbstractEventLoop | None:
    """Return the loop of this thread that `install` does not change, if there is one."""
    running = asyncio._get_running_loop()
    # A policy's own method would make a loop, or warn of that.
    current = getattr(getattr(policy, "_local", None), "_loop", None)
    for loop in (running, current):
        if loop is not None and not isinstance(loop, Loop) and not loop.is_closed():
            return loop
    return None


def run(
    main: Coroutine[Any, Any, T],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = new_event_loop,
    debug: bool | None = None,
) -> T:
    """Run *main* as asyncio.run does, on a uringloop loop.

    Raises what *main* raises, and RuntimeError when a loop runs in this thread already, unless
    that one is nestable: then *main* runs on it.
    """
    running = nesting.running()
    if running is not None:
        return nesting.run(running, main, debug)
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("asyncio.run() cannot be called from a running event loop")
    with asyncio.Runner(debug=debug, loop_factory=loop_factory) as runner:
        return runner.run(main)
