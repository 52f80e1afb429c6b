"""Helpers of the tests of protocols that end the run, or the connection, within a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from support.roles import PATIENCE, Loop

LEAVING = pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])


def runs(loop: Loop, coroutine: Coroutine[Any, Any, None], leaving: type[BaseException]) -> int:
    """Run *coroutine* to its end; return how many runs ended with *leaving* before that."""
    task = loop.create_task(asyncio.wait_for(coroutine, PATIENCE))
    count = 0
    while not task.done():
        try:
            loop.run_until_complete(task)
        except leaving:
            count += 1
    task.result()
    return count


def after(protocol: object, name: str, action: Callable[[], object]) -> None:
    """Have the first call of the protocol's method *name* do *action* at its end."""
    method: Callable[..., object] = getattr(protocol, name)
    pending = [action]

    def call(*args: object) -> object:
        result = method(*args)
        if pending:
            pending.pop()()
        return result

    setattr(protocol, name, call)


def leave_in(protocol: object, name: str, leaving: type[BaseException]) -> None:
    """Make the first call of the protocol's method *name* raise *leaving* at its end."""

    def leave() -> None:
        raise leaving

    after(protocol, name, leave)
