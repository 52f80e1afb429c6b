"""asyncio's set of all tasks, whose methods are compiled, does what a WeakSet does."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

import uringloop
from uringloop._cpython import stdlib
from uringloop._loop import task_set

pytestmark = pytest.mark.skipif(
    stdlib.report()["task_set"] == "absent", reason="this asyncio keeps no WeakSet of its tasks"
)


class Item:
    """Something that a WeakSet can hold."""


def made() -> tuple[Any, task_set.TaskSet]:
    """Return a WeakSet, and compiled methods that are used in it."""
    items: Any = weakref.WeakSet()
    compiled = task_set.TaskSet(items)
    items.add = compiled.add
    items._remove = compiled.remove
    return items, compiled


def test_a_task_is_in_the_set_until_it_is_gone(each_loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> tuple[weakref.ref[asyncio.Task[None]], list[bool]]:
        task = each_loop.create_task(asyncio.sleep(0))
        found = [task in asyncio.all_tasks()]
        await task
        found.append(task in asyncio.all_tasks())
        return weakref.ref(task), found

    reference, found = each_loop.run_until_complete(main())
    assert found == [True, False]
    gc.collect()
    assert reference() is None
    assert asyncio.all_tasks(each_loop) == set()


def test_a_loop_on_stock_asyncio_finds_its_tasks_beside_one_of_ours() -> None:
    ours, stock = uringloop.new_event_loop(), asyncio.SelectorEventLoop()
    try:
        tasks = [loop.create_task(asyncio.sleep(0)) for loop in (ours, stock)]
        for loop, task in zip((ours, stock), tasks, strict=True):
            assert asyncio.all_tasks(loop) == {task}
            loop.run_until_complete(task)
            assert asyncio.all_tasks(loop) == set()
    finally:
        ours.close()
        stock.close()


def test_an_item_is_added_once_and_leaves_with_its_last_reference() -> None:
    items, _ = made()
    item = Item()
    items.add(item)
    items.add(item)
    assert list(items) == [item]
    assert weakref.getweakrefcount(item) == 1
    del item
    assert len(items.data) == 0


def test_items_that_die_during_an_iteration_are_removed_after_it() -> None:
    items, _ = made()
    kept = [Item(), Item()]
    for item in kept:
        items.add(item)
    del item
    iterating = iter(items)
    found = next(iterating)
    kept = [found]
    # The other one is dead, and its reference is still there.
    assert len(items.data) == 2
    assert len(items._pending_removals) == 1
    del iterating
    assert list(items) == kept
    assert len(items.data) == 1


def test_the_next_addition_removes_what_died_during_an_iteration() -> None:
    items, _ = made()
    item = Item()
    items.add(item)
    # As if an iteration had begun.
    items._iterating.add(None)
    del item
    items._iterating.clear()
    assert len(items.data) == 1
    other = Item()
    items.add(other)
    assert list(items) == [other]
    assert len(items.data) == 1


def test_what_has_no_weak_references_is_refused() -> None:
    items, _ = made()
    with pytest.raises(TypeError, match="cannot create weak reference to 'int' object"):
        items.add(1)


def test_methods_that_a_program_has_put_there_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[object] = []
    monkeypatch.setattr(stdlib.ALL_TASKS, "add", added.append)
    loop = uringloop.new_event_loop()
    try:
        task = loop.create_task(asyncio.sleep(0))
        loop.run_until_complete(task)
        assert added[0] is task
    finally:
        loop.close()
