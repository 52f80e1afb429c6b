"""run(), new_event_loop(), and the event loop policy for programs that still set one.

Policies are deprecated since Python 3.14 and removed in 3.16. `uringloop.run`,
`asyncio.Runner(loop_factory=...)` and `asyncio.run(..., loop_factory=...)` do not use them.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import warnings
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from uringloop._loop import nesting, options
from uringloop._ring import backends, features
from uringloop.loop import Loop

T = TypeVar("T")

# Python 3.16 removes policies from asyncio, with the functions and classes for them.
HAS_POLICIES = sys.version_info < (3, 16)

if TYPE_CHECKING:
    _Base = asyncio.DefaultEventLoopPolicy
elif not HAS_POLICIES:
    _Base = object
elif sys.version_info >= (3, 14):
    # Access to the public name warns, and importing uringloop must not warn.
    _Base = getattr(asyncio.events, "_BaseDefaultEventLoopPolicy", object)
else:
    _Base = asyncio.DefaultEventLoopPolicy


def new_event_loop() -> Loop:
    """Return a new event loop; suitable for ``loop_factory=``."""
    return Loop()


def describe_ring() -> str:
    """Return which ring a loop gets in this process and why, or why no loop can be created.

    Creates and closes a loop; logs no warning.
    """
    try:
        loop = Loop(warn_fallback=False)
    except (OSError, ValueError) as exc:
        return f"no ring: {exc}"
    loop.close()
    return f"{loop.backend} ({loop.backend_reason})"


def ask_kernel() -> None:
    """Find out whether the kernel refuses rings, before any loop exists; log the warning if so.

    A server calls this before it forks its workers. They inherit the result, so that the server
    logs one warning instead of one for each worker. Raises what each worker would raise for ever:
    ValueError for a wrong variable, and OSError if io_uring is asked for and refused.
    """
    options.check()
    wanted = options.BACKEND.value(None)
    if wanted == backends.SOFT or backends.known_refusal() is not None:
        return
    try:
        features.report(backends.IO_URING)
    except OSError as exc:
        if wanted == backends.IO_URING:
            raise backends.with_cause(exc) from None
        if backends.is_refusal(exc):
            reason = backends.record_refusal(exc)
            if options.WARN_FALLBACK.value():
                backends.warn_fallback_at_start(reason)


class EventLoopPolicy(_Base):
    """asyncio's default event loop policy, except that it creates uringloop loops.

    Raises RuntimeError from Python 3.16 on, where asyncio has no policies.
    """

    def __init__(self) -> None:
        _require_policies("uringloop.EventLoopPolicy()")
        super().__init__()

    def _loop_factory(self) -> Loop:
        return new_event_loop()


def _require_policies(wanted: str) -> None:
    if not HAS_POLICIES:
        raise RuntimeError(
            f"{wanted} needs event loop policies, which Python 3.16 has removed: use "
            "uringloop.run(main()), asyncio.run(main(), loop_factory=uringloop.new_event_loop) or "
            "asyncio.Runner(loop_factory=uringloop.new_event_loop)"
        )


def install() -> None:
    """Make uringloop the default event loop of asyncio in this process.

    Warns with a RuntimeWarning if this is too late for the calling thread, because a loop of
    another kind runs in that thread or is its current event loop. Raises RuntimeError from Python
    3.16 on, where asyncio has no policies and no default loop to change.
    """
    _require_policies("uringloop.install()")
    install_policy(EventLoopPolicy, "uringloop.install()")


def install_policy(policy: Callable[[], EventLoopPolicy], name: str) -> None:
    """Set a policy. A warning names the function *name* and points at that function's caller."""
    with warnings.catch_warnings():
        # The caller asks for a policy explicitly; the documentation repeats asyncio's advice.
        warnings.simplefilter("ignore", DeprecationWarning)
        late = _loop_before(asyncio.get_event_loop_policy())
        asyncio.set_event_loop_policy(policy())
    if late is not None:
        warnings.warn(
            f"{name} came too late: {late!r} already exists in this thread; "
            "call it before asyncio.run() and before any code creates or gets an event loop",
            RuntimeWarning,
            stacklevel=3,
        )


def _loop_before(policy: asyncio.AbstractEventLoopPolicy) -> asyncio.AbstractEventLoop | None:
    """Return this thread's open loop of another kind, which install() cannot replace, or None."""
    running = asyncio._get_running_loop()
    # policy.get_event_loop() could create a loop, or warn about that.
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
    streams: bool = False,
) -> T:
    """Run *main* like asyncio.run(), on a uringloop loop, and return its result.

    If *streams* is true, `uringloop.streams.install()` is called first. Its effect lasts for the
    rest of the process.

    Raises the exception that *main* raises. Raises RuntimeError if a loop already runs in this
    thread, unless that loop is nestable: then *main* runs on that loop.
    """
    if streams:
        # Imported here: few programs use this module.
        importlib.import_module("uringloop.streams").install()
    running = nesting.loop_for_nested_run()
    if running is not None:
        return nesting.run(running, main, debug=debug)
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("asyncio.run() cannot be called from a running event loop")
    with asyncio.Runner(debug=debug, loop_factory=loop_factory) as runner:
        return runner.run(main)
