"""call_soon with all forms of arguments: the common ones have a fast path."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from asyncio import AbstractEventLoop
from typing import Any

import pytest
from support.loops import run_turns

import uringloop


class Word(str):
    """A keyword that equals a str, but is not the same object."""


@pytest.mark.parametrize("count", range(5))
def test_callback_receives_any_number_of_arguments(
    each_loop: AbstractEventLoop, count: int
) -> None:
    class Receiver:
        def take(self, *args: object) -> None:
            taken.append(args)

    args = tuple(object() for _ in range(count))
    taken: list[tuple[object, ...]] = []
    handles = [
        each_loop.call_soon(lambda *args: taken.append(args), *args),
        each_loop.call_soon(Receiver().take, *args, context=contextvars.Context()),
        each_loop.call_soon(functools.partial(Receiver().take), *args, context=None),
        each_loop.call_soon_threadsafe(Receiver().take, *args),
        each_loop.call_later(0, Receiver().take, *args),
    ]
    # A keyword may be of a subclass of str.
    option: dict[str, Any] = {Word("context"): contextvars.Context()}
    handles.append(each_loop.call_soon(Receiver().take, *args, **option))
    assert [handle._args for handle in handles] == [args] * 6
    run_turns(each_loop, 3)
    assert taken == [args] * 6


@pytest.mark.parametrize(
    ("args", "options"),
    [((), {}), ((), {"context": None}), ((print,), {"when": 0}), ((print,), {"args": ()})],
)
def test_call_soon_refuses_other_arguments(
    each_loop: AbstractEventLoop, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        each_loop.call_soon(*args, **options)


def test_call_soon_accepts_its_callback_as_keyword(each_loop: AbstractEventLoop) -> None:
    ran: list[int] = []
    each_loop.call_soon(callback=functools.partial(ran.append, 1))  # type: ignore[call-arg, unused-ignore]
    run_turns(each_loop, 1)
    assert ran == [1]


def test_call_soon_of_a_subclass_overrides_the_fast_path() -> None:
    class Counting(uringloop.Loop):
        calls = 0

        def call_soon(  # type: ignore[override]
            self, callback: Any, *args: Any, context: Any = None
        ) -> Any:
            self.calls += 1
            return super().call_soon(callback, *args, context=context)

    loop = Counting()
    try:
        loop.run_until_complete(asyncio.sleep(0))
        assert loop.calls >= 2
    finally:
        loop.close()


def test_call_soon_shows_its_signature() -> None:
    signature = inspect.signature(uringloop.Loop.call_soon)
    assert str(signature) == "(self, /, callback, *args, context=None)"
