"""Operations on paths, on the ring: open, stat, mkdir, rename, unlink, link."""

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from uringloop.files.operation import FileOperation

if TYPE_CHECKING:
    from _typeshed import FileDescriptorOrPath, StrOrBytesPath

async def open_descriptor(path: StrOrBytesPath, flags: int, mode: int = 0o666) -> int: ...
async def stat(
    path: FileDescriptorOrPath,
    *,
    dir_fd: int | None = None,
    follow_symlinks: bool = True,
    os_function: Callable[..., os.stat_result] = ...,
) -> os.stat_result: ...
def read_cached(path: StrOrBytesPath) -> bytes | None: ...
async def mkdir(path: StrOrBytesPath, mode: int = 0o777, dir_fd: int | None = None) -> None: ...
async def unlink(
    path: StrOrBytesPath, dir_fd: int | None = None, *, os_function: Callable[..., None] = ...
) -> None: ...
async def rmdir(path: StrOrBytesPath, dir_fd: int | None = None) -> None: ...
async def rename(
    src: StrOrBytesPath,
    dst: StrOrBytesPath,
    src_dir_fd: int | None = None,
    dst_dir_fd: int | None = None,
    *,
    os_function: Callable[..., None] = ...,
) -> None: ...
async def link(
    src: StrOrBytesPath,
    dst: StrOrBytesPath,
    *,
    src_dir_fd: int | None = None,
    dst_dir_fd: int | None = None,
    follow_symlinks: bool = True,
) -> None: ...
async def open_nameless(folder: StrOrBytesPath, mode: int) -> int: ...
async def link_and_rename(
    src: StrOrBytesPath, temporary: StrOrBytesPath, dst: StrOrBytesPath
) -> None: ...
def perform_both(first: FileOperation, second: FileOperation) -> None: ...
async def wait_uncancelled(future: asyncio.Future[object]) -> None: ...
async def symlink(src: StrOrBytesPath, dst: StrOrBytesPath, dir_fd: int | None = None) -> None: ...
async def sync(fd: int, path: StrOrBytesPath) -> None: ...
