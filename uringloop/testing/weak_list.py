"""class WeakList: objects that others own, in the order in which they were added."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakList(Generic[T]):
    """Objects that live, in their order; a WeakSet has another order in each run."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[T]] = []

    def add(self, item: T) -> None:
        self._references = [known for known in self._references if known() is not None]
        self._references.append(weakref.ref(item))

    def __iter__(self) -> Iterator[T]:
        for known in self._references:
            if (item := known()) is not None:
                yield item
