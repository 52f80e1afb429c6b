"""`os.scandir`, `os.listdir` and `os.walk`, in threads: the ring cannot list directories."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, AnyStr, Generic, Self

from uringloop.files.base import Closing, in_thread

if TYPE_CHECKING:
    from _typeshed import GenericPath

# How many entries one call in a thread fetches.
ENTRIES = 256


class Scan(Closing, Generic[AnyStr]):
    """The entries of a directory, for `async for`; `async with` closes it.

    Awaiting it fetches all entries and returns an iterator like that of os.scandir.
    """

    def __init__(self, path: Any) -> None:
        self._path = path
        self._entries: Any = None
        self._fetched: deque[os.DirEntry[AnyStr]] = deque()
        self._ended = False
        # A thread may still run _fetch() after its caller has been cancelled.
        self._lock = threading.Lock()

    def __await__(self) -> Generator[Any, None, Self]:
        while not self._ended:
            yield from in_thread(self._fetch).__await__()
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> os.DirEntry[AnyStr]:
        if not self._ended:
            raise TypeError("await it first, or use `async for`")
        if not self._fetched:
            raise StopIteration
        return self._fetched.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> os.DirEntry[AnyStr]:
        if not self._fetched and not self._ended:
            await in_thread(self._fetch)
        if not self._fetched:
            raise StopAsyncIteration
        return self._fetched.popleft()

    def _fetch(self) -> None:
        """Fetch up to ENTRIES entries; runs in a thread."""
        with self._lock:
            if self._ended:
                return
            if self._entries is None:
                self._entries = os.scandir(self._path)
            for entry in self._entries:
                self._fetched.append(entry)
                if len(self._fetched) >= ENTRIES:
                    return
            self._ended = True

    async def close(self) -> None:
        """Close the directory."""
        if self._lock.locked():
            await in_thread(self._close)
        else:
            self._close()

    def _close(self) -> None:
        with self._lock:
            self._ended = True
            self._fetched.clear()
            if self._entries is not None:
                self._entries.close()


def scandir(path: Any = ".") -> Scan[Any]:
    """os.scandir, in threads: `async for` yields `os.DirEntry` objects.

    `stat()` of an entry may block; `is_dir()`, `is_file()` and `is_symlink()` rarely do.
    """
    return Scan(path)


async def listdir(path: Any = ".") -> list[Any]:
    """os.listdir, in a thread."""
    return await in_thread(os.listdir, path)


async def walk(
    top: GenericPath[AnyStr],
    topdown: bool = True,
    onerror: Callable[[OSError], object] | None = None,
    followlinks: bool = False,
) -> AsyncIterator[tuple[AnyStr, list[AnyStr], list[AnyStr]]]:
    """os.walk, one directory at a time in a thread; the loop's thread calls *onerror*."""
    errors: list[OSError] = []
    folders: Any = os.walk(top, topdown, errors.append, followlinks)
    try:
        while True:
            found = await in_thread(next, folders, None)
            for error in errors:
                if onerror is not None:
                    onerror(error)
            errors.clear()
            if found is None:
                return
            yield found
    finally:
        with contextlib.suppress(ValueError):
            # ValueError: after a cancel a thread may still run the generator.
            folders.close()
