"""open(): an awaitable counterpart of the built-in, on the ring of the running loop.

Under other event loops threads of the loop's executor make the same system calls, so that a library
need not know which loop runs. The built-in open() itself checks the arguments and raises errors: it
is called with an opener that opens nothing.
"""

from __future__ import annotations

import asyncio
import builtins
import io
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from uringloop.files.base import AsyncFile
from uringloop.files.binary import BufferedFile, RawFile
from uringloop.files.path_operations import open_descriptor
from uringloop.files.text import TextFile

if TYPE_CHECKING:
    from _typeshed import FileDescriptorOrPath, OpenBinaryMode, OpenTextMode

Opener = Callable[[str, int], int]
F = TypeVar("F", bound="AsyncFile[Any]")


class Opening(Generic[F]):
    """A file to be opened, with `await` or `async with`."""

    def __init__(self, opening: Coroutine[Any, Any, F]) -> None:
        self._opening = opening
        self._obj: F | None = None

    def __await__(self) -> Generator[Any, None, F]:
        if self._obj is None:
            self._obj = yield from self._opening.__await__()
        return self._obj

    async def __aenter__(self) -> F:
        return await self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._obj is not None:
            await self._obj.__aexit__(kind, value, traceback)


@overload
def open(
    file: FileDescriptorOrPath,
    mode: OpenTextMode = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Opener | None = None,
) -> Opening[TextFile]: ...
@overload
def open(  # type: ignore[overload-overlap]
    file: FileDescriptorOrPath,
    mode: OpenBinaryMode,
    buffering: Literal[0],
    encoding: None = None,
    errors: None = None,
    newline: None = None,
    closefd: bool = True,
    opener: Opener | None = None,
) -> Opening[RawFile]: ...
@overload
def open(
    file: FileDescriptorOrPath,
    mode: OpenBinaryMode,
    buffering: int = -1,
    encoding: None = None,
    errors: None = None,
    newline: None = None,
    closefd: bool = True,
    opener: Opener | None = None,
) -> Opening[BufferedFile]: ...
@overload
def open(
    file: FileDescriptorOrPath,
    mode: str,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Opener | None = None,
) -> Opening[Any]: ...
def open(
    file: FileDescriptorOrPath,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Opener | None = None,
) -> Any:
    """Open *file* as the built-in does, for `await` or `async with`.

    The file belongs to no loop: each call uses the running loop. Calls on one file run one after
    the other, in the order in which they were made; calls with an offset (`pread`, `pwrite`) run
    concurrently.
    """
    return Opening(_open(file, mode, buffering, encoding, errors, newline, closefd, opener))


class _OpenerCalled(BaseException):
    """Carries path and flags from the opener out of the built-in open(), to `_check_arguments`."""

    def __init__(self, path: str, flags: int) -> None:
        self.path = path
        self.flags = flags


def _check_arguments(
    file: FileDescriptorOrPath, mode: str, buffering: int, closefd: bool, texts: tuple[Any, ...]
) -> tuple[int | str | bytes, int]:
    """Have the built-in check the arguments; return path and flags, or a descriptor and 0."""

    def stop(path: str, flags: int) -> int:
        raise _OpenerCalled(path, flags)

    check: Callable[..., object] = builtins.open
    if isinstance(file, int):
        # The built-in only checks the descriptor: with closefd=False it does not own it.
        check(file, mode, buffering, *texts, closefd=False, opener=stop)
        return file, 0
    try:
        check(file, mode, buffering, *texts, closefd=closefd, opener=stop)
    except _OpenerCalled as checked:
        return checked.path, checked.flags
    raise AssertionError("the built-in open() has not called its opener")


async def _open(
    file: FileDescriptorOrPath,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
    closefd: bool,
    opener: Opener | None,
) -> RawFile | BufferedFile | TextFile:
    path, flags = _check_arguments(file, mode, buffering, closefd, (encoding, errors, newline))
    if isinstance(path, int):
        fd = path
    elif opener is None:
        fd = await open_descriptor(path, flags)
    else:
        fd = await _call_opener(opener, path, flags)
    try:
        return make_file(fd, path, mode, buffering, encoding, errors, newline, closefd=closefd)
    except BaseException:
        if not isinstance(path, int):
            os.close(fd)
        raise


async def _call_opener(opener: Opener, path: Any, flags: int) -> int:
    """Call *opener* in a thread, as it may block, and return its descriptor."""
    lock = threading.Lock()
    opened: list[Any] = []
    wanted = True

    def call() -> None:
        fd = opener(path, flags)
        with lock:
            if wanted:
                opened.append(fd)
                return
        _close_unwanted(fd)

    try:
        await asyncio.get_running_loop().run_in_executor(None, call)
    except BaseException:
        with lock:
            wanted = False
        for fd in opened:
            _close_unwanted(fd)
        raise
    (fd,) = opened
    if not isinstance(fd, int):
        raise TypeError("expected integer from opener")
    if fd < 0:
        raise ValueError(f"opener returned {fd}")
    os.set_inheritable(fd, False)
    return fd


def _close_unwanted(fd: Any) -> None:
    if isinstance(fd, int) and fd >= 0:
        os.close(fd)


def make_file(
    fd: int,
    name: object,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
    *,
    closefd: bool,
) -> RawFile | BufferedFile | TextFile:
    """Return a raw, buffered or text file on *fd*, as *mode* and *buffering* say."""
    binary = "b" in mode
    if buffering == 0 and not binary:
        # Given a path, the built-in open() checks this only after the call of its opener.
        raise ValueError("can't have unbuffered text I/O")
    kind = next(letter for letter in mode if letter in "rwax")
    plus = "+" if "+" in mode else ""
    # The mode that built-in binary files show: before Python 3.15 "rb+" for "w+".
    raw_mode = "rb+" if kind + plus == "w+" and sys.version_info < (3, 15) else f"{kind}b{plus}"
    if buffering == 0:
        return RawFile(fd, name, mode=raw_mode, closefd=closefd)
    line_buffering = not binary and (buffering == 1 or (buffering < 0 and os.isatty(fd)))
    size = buffering if buffering > 1 else -1
    buffer = BufferedFile(fd, name, mode=raw_mode, closefd=closefd, buffer_size=size)
    if plus and not buffer._seekable:
        buffer._give_up_descriptor()
        raise io.UnsupportedOperation("File or stream is not seekable.")
    if binary:
        return buffer
    try:
        # TextIOWrapper supplies the default encoding and rejects unsuitable arguments.
        model = io.TextIOWrapper(io.BytesIO(), encoding, errors, newline)
        return TextFile(
            buffer,
            mode=mode,
            encoding=model.encoding,
            errors=model.errors or "strict",
            newline=newline,
            line_buffering=line_buffering,
        )
    except BaseException:
        buffer._give_up_descriptor()
        raise
