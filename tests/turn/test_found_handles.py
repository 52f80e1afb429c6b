"""Handles that a program reaches while they run or wait to be used again, as a debugger does."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.loops import run_turns
from support.roles import in_thread

ITEMS = 1000


class Target(list[int]):
    """A list that notes when it is freed; its method `extend` is compiled code."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def __del__(self) -> None:
        self.events.append(f"freed with {len(self)} items")


class Items:
    """An iterable that calls *meanwhile* before its second item."""

    def __init__(self, meanwhile: Callable[[object], None]) -> None:
        self.meanwhile = meanwhile

    def __iter__(self) -> Iterator[int]:
        for number in range(ITEMS):
            if number == 1:
                self.meanwhile(self)
            yield number


def handles_of(objects: list[Any]) -> list[asyncio.Handle]:
    return [found for found in objects if isinstance(found, asyncio.Handle)]


def cancel_referrers(argument: object) -> None:
    for handle in handles_of(gc.get_referrers(argument)):
        handle.cancel()


@pytest.mark.parametrize("name", ["call_soon", "call_soon_threadsafe", "call_later"])
def test_a_running_callback_is_kept_when_the_collector_finds_its_handle(
    each_loop: AbstractEventLoop, name: str
) -> None:
    events: list[str] = []
    arguments = (0,) if name == "call_later" else ()
    getattr(each_loop, name)(*arguments, Target(events).extend, Items(cancel_referrers))
    each_loop.call_later(0.01, each_loop.stop)
    each_loop.run_forever()
    gc.collect()
    assert events == [f"freed with {ITEMS} items"]


def test_a_running_callback_is_kept_when_a_weak_reference_finds_its_handle(
    each_loop: AbstractEventLoop,
) -> None:
    events: list[str] = []
    references: list[weakref.ref[asyncio.Handle]] = []

    def cancel(_: object) -> None:
        handle = references[0]()
        if handle is not None:
            handle.cancel()

    def schedule() -> None:
        handle = each_loop.call_soon_threadsafe(Target(events).extend, Items(cancel))
        references.append(weakref.ref(handle))

    in_thread(schedule)
    run_turns(each_loop)
    gc.collect()
    assert events == [f"freed with {ITEMS} items"]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="asyncio does not wait before 3.14")
def test_a_cancel_by_a_weak_reference_waits_for_the_callback(each_loop: AbstractEventLoop) -> None:
    events: list[str] = []
    began = threading.Event()

    def call() -> None:
        began.set()
        time.sleep(0.1)
        events.append("called")

    def cancel() -> None:
        reference = weakref.ref(each_loop.call_soon_threadsafe(call))
        began.wait()
        handle = reference()
        assert handle is not None
        handle.cancel()
        events.append("cancelled")
        each_loop.call_soon_threadsafe(each_loop.stop)

    thread = threading.Thread(target=cancel)
    thread.start()
    each_loop.run_forever()
    thread.join()
    assert events == ["called", "cancelled"]


def test_a_call_runs_although_a_spare_handle_was_cancelled(each_loop: AbstractEventLoop) -> None:
    called: list[int] = []

    def cancel_spares() -> None:
        for handle in handles_of(gc.get_objects()):
            if handle._callback is None:  # type: ignore[attr-defined]
                handle.cancel()
        del handle
        for number in range(10):
            each_loop.call_soon(called.append, number)
            each_loop.call_later(0, called.append, 10 + number)

    for _ in range(10):
        each_loop.call_soon(int)
        each_loop.call_later(0, int)
    run_turns(each_loop)
    each_loop.call_soon(cancel_spares)
    each_loop.call_later(0.01, each_loop.stop)
    each_loop.run_forever()
    assert sorted(called) == list(range(20))
