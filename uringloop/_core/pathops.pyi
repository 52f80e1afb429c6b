"""What takes a path, as an operation of the ring: open, stat, mkdir, rename, unlink, link."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorOrPath, StrOrBytesPath

async def open_descriptor(path: StrOrBytesPath, flags: int) -> int: ...
async def stat(
    path: FileDescriptorOrPath,
    dir_fd: int | None = None,
    follow_symlinks: bool = True,
    *,
    judge: Callable[..., os.stat_result] = ...,
) -> os.stat_result: ...
def read_now(path: StrOrBytesPath) -> bytes | None: ...
async def mkdir(path: StrOrBytesPath, mode: int = 0o777, dir_fd: int | None = None) -> None: ...
async def unlink(
    path: StrOrBytesPath, dir_fd: int | None = None, *, judge: Callable[..., None] = ...
) -> None: ...
async def rmdir(path: StrOrBytesPath, dir_fd: int | None = None) -> None: ...
async def rename(
    src: StrOrBytesPath,
    dst: StrOrBytesPath,
    src_dir_fd: int | None = None,
    dst_dir_fd: int | None = None,
    *,
    judge: Callable[..., None] = ...,
) -> None: ...
async def link(
    src: StrOrBytesPath,
    dst: StrOrBytesPath,
    src_dir_fd: int | None = None,
    dst_dir_fd: int | None = None,
    follow_symlinks: bool = True,
) -> None: ...
async def symlink(src: StrOrBytesPath, dst: StrOrBytesPath, dir_fd: int | None = None) -> None: ...
async def sync(fd: int, path: StrOrBytesPath) -> None: ...
