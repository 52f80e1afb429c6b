"""The loop's clock: deadlines of handles, and programs that replace the clock."""

from __future__ import annotations

import asyncio
import contextvars
import time
from asyncio import AbstractEventLoop
from fractions import Fraction
from typing import Any
from unittest import mock

import pytest
from support.loops import run_turns

import uringloop


@pytest.mark.parametrize("base", [asyncio.SelectorEventLoop, uringloop.Loop])
def test_a_subclass_may_have_a_clock_of_its_own(base: type[AbstractEventLoop]) -> None:
    class Shifted(base):  # type: ignore[misc, valid-type]
        def time(self) -> float:
            return float(super().time()) + 1000

    loop = Shifted()
    try:
        ran: list[str] = []
        loop.call_at(loop.time() + 0.002, ran.append, "at")
        handle = loop.call_later(0.001, ran.append, "later")
        assert handle.when() > 1000
        loop.call_later(0.004, loop.stop)
        loop.run_forever()
        assert ran == ["later", "at"]
    finally:
        loop.close()


@pytest.mark.parametrize("base", [asyncio.SelectorEventLoop, uringloop.Loop])
def test_call_later_goes_through_call_at_of_a_subclass(base: type[AbstractEventLoop]) -> None:
    class Noting(base):  # type: ignore[misc, valid-type]
        def call_at(self, when: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
            times.append(when)
            handle: asyncio.TimerHandle = super().call_at(when, *args, **options)
            return handle

    times: list[float] = []
    loop = Noting()
    try:
        ran: list[str] = []
        handle = loop.call_later(0.001, ran.append, "later", context=contextvars.Context())
        assert times == [handle.when()]
        loop.run_until_complete(asyncio.sleep(0.002))
        assert len(times) == 2
        assert ran == ["later"]
    finally:
        loop.close()


def test_call_at_may_be_replaced_on_one_loop(each_loop: AbstractEventLoop) -> None:
    with mock.patch.object(each_loop, "call_at") as call_at:
        with mock.patch.object(each_loop, "time", return_value=10.0):
            each_loop.call_later(1, print, "words")
        each_loop.call_later(1, print)
    assert call_at.call_args_list[0] == mock.call(11.0, print, "words", context=None)
    assert len(call_at.call_args_list) == 2
    assert each_loop.call_later(0, print).when() > 0


def test_time_may_be_replaced_on_one_loop(each_loop: AbstractEventLoop) -> None:
    """Tests of timeouts use mock.patch.object(loop, "time")."""
    ran: list[str] = []
    each_loop.call_later(3600, ran.append, "an hour")
    handle = each_loop.call_later(0, ran.append, "now")
    hour_later = each_loop.time() + 3600.5
    with mock.patch.object(each_loop, "time", return_value=hour_later) as time_now:
        run_turns(each_loop, 2)
        assert ran == ["now", "an hour"]
        handle = each_loop.call_later(60, ran.append, "a minute")
        assert handle.when() == hour_later + 60
        run_turns(each_loop, 2)
        assert len(ran) == 2
        time_now.return_value = hour_later + 60
        run_turns(each_loop, 2)
        assert ran == ["now", "an hour", "a minute"]
    assert abs(each_loop.time() - time.monotonic()) < 10
    each_loop.call_later(0.001, each_loop.stop)
    each_loop.run_forever()


def test_when_returns_the_deadline_with_its_type(each_loop: AbstractEventLoop) -> None:
    for when in (10, 10.5, Fraction(21, 2)):
        handle = each_loop.call_at(when, print)  # type: ignore[arg-type]
        assert handle.when() == when
        assert type(handle.when()) is type(when)
        handle.cancel()
