"""call_soon, call_at and call_later with all forms of arguments: common ones have a fast path."""

from __future__ import annotations

import asyncio
import contextvars
import fractions
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


def test_a_context_may_come_by_a_name_that_is_another_object(each_loop: AbstractEventLoop) -> None:
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="of the caller")
    context = contextvars.Context()
    context.run(var.set, "given")
    options: dict[str, Any] = {"".join(["con", "text"]): context}
    got: list[str] = []
    each_loop.call_soon(lambda: got.append(var.get()), **options)
    each_loop.call_soon_threadsafe(lambda: got.append(var.get()), **options)
    each_loop.call_later(0, lambda: got.append(var.get()), **options)
    each_loop.call_at(0.0, lambda: got.append(var.get()), **options)
    run_turns(each_loop, 3)
    assert got == ["given"] * 4


@pytest.mark.parametrize("option", ["contexts", "contexz", "kontext", "cöntext"])
def test_other_options_of_the_same_length_are_refused(
    each_loop: AbstractEventLoop, option: str
) -> None:
    options: dict[str, Any] = {option: contextvars.Context()}
    with pytest.raises(TypeError):
        each_loop.call_soon(print, **options)
    with pytest.raises(TypeError):
        each_loop.call_at(0.0, print, **options)


@pytest.mark.parametrize("delay", [0, 0.0, fractions.Fraction(0), -1])
@pytest.mark.parametrize("count", range(4))
def test_timers_receive_any_number_of_arguments(
    each_loop: AbstractEventLoop, delay: Any, count: int
) -> None:
    args = tuple(object() for _ in range(count))
    taken: list[tuple[object, ...]] = []

    def take(*args: object) -> None:
        taken.append(args)

    handles = [
        each_loop.call_later(delay, take, *args),
        each_loop.call_later(delay, take, *args, context=contextvars.Context()),
        each_loop.call_at(delay, take, *args),
        each_loop.call_at(delay, take, *args, context=None),
    ]
    assert [handle._args for handle in handles] == [args] * 4
    assert [handle.when() for handle in handles[2:]] == [delay] * 2
    run_turns(each_loop, 3)
    assert taken == [args] * 4


@pytest.mark.parametrize("args", [(), (1.0,), (1,), (None, print), ("1", print)])
def test_timers_refuse_other_arguments(each_loop: AbstractEventLoop, args: Any) -> None:
    with pytest.raises(TypeError):
        each_loop.call_later(*args)
    if args != ("1", print):
        # asyncio compares the deadline later only.
        with pytest.raises(TypeError):
            each_loop.call_at(*args)


def test_a_delay_that_no_float_can_hold_is_refused(each_loop: AbstractEventLoop) -> None:
    with pytest.raises(OverflowError):
        each_loop.call_later(10**400, print)


def test_call_at_of_a_subclass_gets_the_deadlines_of_call_later() -> None:
    class Noting(uringloop.Loop):
        deadlines: list[float]

        def call_at(  # type: ignore[override]
            self, when: float, callback: Any, *args: Any, context: Any = None
        ) -> Any:
            self.deadlines.append(when)
            return super().call_at(when, callback, *args, context=context)

    loop = Noting()
    loop.deadlines = []
    try:
        begin = loop.time()
        handle = loop.call_later(60, print)
        assert loop.deadlines == [handle.when()]
        assert begin + 60 <= handle.when() <= loop.time() + 60
    finally:
        loop.close()


def test_timers_show_their_signatures() -> None:
    assert str(inspect.signature(uringloop.Loop.call_later)) == (
        "(self, /, delay, callback, *args, context=None)"
    )
    assert str(inspect.signature(uringloop.Loop.call_at)) == (
        "(self, /, when, callback, *args, context=None)"
    )
