"""Functions of `os`, `shutil` and `pathlib` that take paths, as coroutines.

Names, arguments, results and errors are those of the original functions. The ring performs the
operations that it has (open, stat, mkdir, rename, unlink, rmdir, symlink, link, read, write,
fsync); what the kernel's caches have of a local file is returned at once. The docstrings say which
functions run in a thread of the loop's executor. Under other event loops, all functions do so.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import mmap
import os
import shutil
import stat as modes
from typing import TYPE_CHECKING, Any

from uringloop.files import path_operations
from uringloop.files.atomic import write_atomic
from uringloop.files.base import in_thread
from uringloop.files.codecs import decoded, encoded, new_decoder
from uringloop.files.directories import listdir, scandir, walk
from uringloop.files.open import open
from uringloop.files.scheduling import CallLock, free, joined

if TYPE_CHECKING:
    from _typeshed import (
        FileDescriptorOrPath,
        ReadableBuffer,
        StrOrBytesPath,
        StrPath,
    )

__all__ = [
    "abspath",
    "access",
    "aligned_buffer",
    "copy",
    "copyfile",
    "direct",
    "exists",
    "getatime",
    "getctime",
    "getcwd",
    "getmtime",
    "getsize",
    "isdir",
    "isfile",
    "islink",
    "ismount",
    "lexists",
    "link",
    "listdir",
    "lstat",
    "makedirs",
    "mkdir",
    "read_bytes",
    "read_text",
    "readlink",
    "remove",
    "removedirs",
    "rename",
    "renames",
    "replace",
    "rmdir",
    "samefile",
    "scandir",
    "sendfile",
    "stat",
    "statvfs",
    "symlink",
    "truncate",
    "unlink",
    "walk",
    "write_atomic",
    "write_bytes",
    "write_text",
]

# Since Python 3.14 os.link follows a symbolic link in its first argument, as the documentation of
# earlier versions said.
LINK_FOLLOWS = "follow_symlinks=True" not in str(getattr(os.link, "__text_signature__", ""))
COPY_BYTES = 1024 * 1024


# ── status ───────────────────────────────────────────────────────────────────────────────────


async def stat(
    path: FileDescriptorOrPath, *, dir_fd: int | None = None, follow_symlinks: bool = True
) -> os.stat_result:
    """os.stat, on the ring."""
    return await path_operations.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)


async def lstat(path: StrOrBytesPath, *, dir_fd: int | None = None) -> os.stat_result:
    """os.lstat, on the ring."""
    return await path_operations.stat(
        path, dir_fd=dir_fd, follow_symlinks=False, os_function=_os_lstat
    )


def _os_lstat(path: Any, *, dir_fd: Any, follow_symlinks: bool) -> os.stat_result:
    return os.lstat(path, dir_fd=dir_fd)


async def _mode(path: Any, *, follow_symlinks: bool = True) -> int:
    """Return the mode of the file, 0 if it does not exist or *path* is invalid."""
    try:
        return (await (stat(path) if follow_symlinks else lstat(path))).st_mode
    except (OSError, ValueError):
        return 0


async def exists(path: FileDescriptorOrPath) -> bool:
    """os.path.exists, on the ring."""
    return bool(await _mode(path))


async def lexists(path: StrOrBytesPath) -> bool:
    """os.path.lexists, on the ring."""
    return bool(await _mode(path, follow_symlinks=False))


async def isfile(path: FileDescriptorOrPath) -> bool:
    """os.path.isfile, on the ring."""
    return modes.S_ISREG(await _mode(path))


async def isdir(path: FileDescriptorOrPath) -> bool:
    """os.path.isdir, on the ring."""
    return modes.S_ISDIR(await _mode(path))


async def islink(path: StrOrBytesPath) -> bool:
    """os.path.islink, on the ring."""
    return modes.S_ISLNK(await _mode(path, follow_symlinks=False))


async def ismount(path: FileDescriptorOrPath) -> bool:
    """os.path.ismount, in a thread."""
    return await in_thread(os.path.ismount, path)


async def getsize(path: FileDescriptorOrPath) -> int:
    """os.path.getsize, on the ring."""
    return (await stat(path)).st_size


async def getatime(path: FileDescriptorOrPath) -> float:
    """os.path.getatime, on the ring."""
    return (await stat(path)).st_atime


async def getmtime(path: FileDescriptorOrPath) -> float:
    """os.path.getmtime, on the ring."""
    return (await stat(path)).st_mtime


async def getctime(path: FileDescriptorOrPath) -> float:
    """os.path.getctime, on the ring."""
    return (await stat(path)).st_ctime


async def samefile(f1: FileDescriptorOrPath, f2: FileDescriptorOrPath) -> bool:
    """os.path.samefile, on the ring."""
    one, other = await stat(f1), await stat(f2)
    return (one.st_ino, one.st_dev) == (other.st_ino, other.st_dev)


async def access(
    path: FileDescriptorOrPath,
    mode: int,
    *,
    dir_fd: int | None = None,
    effective_ids: bool = False,
    follow_symlinks: bool = True,
) -> bool:
    """os.access, in a thread."""
    return await in_thread(
        lambda: os.access(
            path, mode, dir_fd=dir_fd, effective_ids=effective_ids, follow_symlinks=follow_symlinks
        )
    )


async def statvfs(path: FileDescriptorOrPath) -> os.statvfs_result:
    """os.statvfs, in a thread."""
    return await in_thread(os.statvfs, path)


async def getcwd() -> str:
    """os.getcwd, in a thread."""
    return await in_thread(os.getcwd)


async def abspath(path: Any) -> Any:
    """os.path.abspath, in a thread, because it may call os.getcwd."""
    return await in_thread(os.path.abspath, path)


async def readlink(path: Any, *, dir_fd: int | None = None) -> Any:
    """os.readlink, in a thread."""
    return await in_thread(lambda: os.readlink(path, dir_fd=dir_fd))


# ── names ────────────────────────────────────────────────────────────────────────────────────


async def mkdir(path: StrOrBytesPath, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
    """os.mkdir, on the ring."""
    await path_operations.mkdir(path, mode, dir_fd)


async def makedirs(name: StrOrBytesPath, mode: int = 0o777, exist_ok: bool = False) -> None:
    """os.makedirs, on the ring."""
    parent, last = os.path.split(name)
    if not last:
        parent, last = os.path.split(parent)
    if parent and last and not await exists(parent):
        # Another task or process may have created it in the meantime.
        with contextlib.suppress(FileExistsError):
            await makedirs(parent, exist_ok=exist_ok)
        if last in (os.curdir, os.fsencode(os.curdir)):
            return
    try:
        await mkdir(name, mode)
    except OSError:
        # Not only FileExistsError: for an existing directory the kernel may return EROFS.
        if not exist_ok or not await isdir(name):
            raise


async def rename(
    src: StrOrBytesPath,
    dst: StrOrBytesPath,
    *,
    src_dir_fd: int | None = None,
    dst_dir_fd: int | None = None,
) -> None:
    """os.rename, on the ring."""
    await path_operations.rename(src, dst, src_dir_fd, dst_dir_fd)


async def replace(
    src: StrOrBytesPath,
    dst: StrOrBytesPath,
    *,
    src_dir_fd: int | None = None,
    dst_dir_fd: int | None = None,
) -> None:
    """os.replace, on the ring."""
    await path_operations.rename(src, dst, src_dir_fd, dst_dir_fd, os_function=os.replace)


async def renames(old: StrOrBytesPath, new: StrOrBytesPath) -> None:
    """os.renames, in a thread."""
    await in_thread(os.renames, old, new)


async def removedirs(name: StrOrBytesPath) -> None:
    """os.removedirs, in a thread."""
    await in_thread(os.removedirs, name)


async def remove(path: StrOrBytesPath, *, dir_fd: int | None = None) -> None:
    """os.remove, on the ring."""
    await path_operations.unlink(path, dir_fd, os_function=os.remove)


async def unlink(path: StrOrBytesPath, *, dir_fd: int | None = None) -> None:
    """os.unlink, on the ring."""
    await path_operations.unlink(path, dir_fd)


async def rmdir(path: StrOrBytesPath, *, dir_fd: int | None = None) -> None:
    """os.rmdir, on the ring."""
    await path_operations.rmdir(path, dir_fd)


async def symlink(
    src: StrOrBytesPath,
    dst: StrOrBytesPath,
    target_is_directory: bool = False,
    *,
    dir_fd: int | None = None,
) -> None:
    """os.symlink, on the ring."""
    await path_operations.symlink(src, dst, dir_fd)


async def link(
    src: StrOrBytesPath,
    dst: StrOrBytesPath,
    *,
    src_dir_fd: int | None = None,
    dst_dir_fd: int | None = None,
    follow_symlinks: bool = True,
) -> None:
    """os.link, on the ring."""
    plain = src_dir_fd is None and dst_dir_fd is None
    follow = follow_symlinks and (LINK_FOLLOWS or not plain)
    await path_operations.link(
        src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow
    )


async def sendfile(out_fd: int, in_fd: int, offset: int | None, count: int) -> int:
    """os.sendfile, in a thread; `loop.sendfile` also waits until a socket has room."""
    return await in_thread(os.sendfile, out_fd, in_fd, offset, count)


async def truncate(path: FileDescriptorOrPath, length: int) -> None:
    """os.truncate, in a thread, because the ring can only truncate open files."""
    await in_thread(os.truncate, path, length)


# ── whole files ──────────────────────────────────────────────────────────────────────────────


async def read_bytes(path: StrOrBytesPath) -> bytes:
    """pathlib.Path.read_bytes, on the ring."""
    data = path_operations.read_cached(path)
    if data is not None:
        return data
    async with open(path, "rb", buffering=0) as file:
        return await file.read()


async def read_text(
    path: StrOrBytesPath,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> str:
    """pathlib.Path.read_text, on the ring."""
    # Raises errors of the arguments before the file is opened.
    layer = io.TextIOWrapper(io.BytesIO(), encoding, errors, newline)
    lock = CallLock()
    decoder = new_decoder(layer.encoding, layer.errors or "strict", newline)
    held = [await read_bytes(path)]
    text = await joined(lock, await decoded(lock, decoder, held[0], final=True))
    free(held)
    return text


async def write_bytes(path: StrOrBytesPath, data: ReadableBuffer) -> int:
    """pathlib.Path.write_bytes, on the ring."""
    view = memoryview(data)
    async with open(path, "wb", buffering=0) as file:
        return await file.write(view)


async def write_text(
    path: StrOrBytesPath,
    data: str,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> int:
    """pathlib.Path.write_text, on the ring. If *data* cannot be encoded, the file is unchanged."""
    if not isinstance(data, str):
        raise TypeError(f"data must be str, not {type(data).__name__}")
    layer = io.TextIOWrapper(io.BytesIO(), encoding, errors, newline)
    encoder = codecs.getincrementalencoder(layer.encoding)(layer.errors or "strict")
    held = [await encoded(CallLock(), layer.encoding, encoder, data, newline or None)]
    await write_bytes(path, held[0])
    free(held)
    return len(data)


# ── direct I/O ───────────────────────────────────────────────────────────────────────────────


def direct(path: str, flags: int) -> int:
    """An `opener` for open(), for reads and writes that bypass the page cache (O_DIRECT).

    The file system then decides which offsets, sizes and memory it accepts; it always accepts
    multiples of 4096 and an `aligned_buffer`. OSError with EINVAL is raised for others, and on a
    file system without direct I/O.
    """
    return os.open(path, flags | os.O_DIRECT, 0o666)


def aligned_buffer(size: int) -> memoryview:
    """Return *size* bytes of page-aligned memory, to read into and write from."""
    return memoryview(mmap.mmap(-1, size))


# ── copies ───────────────────────────────────────────────────────────────────────────────────


async def copyfile(src: StrPath, dst: StrPath, *, follow_symlinks: bool = True) -> StrPath:
    """shutil.copyfile, on the ring."""
    source, target = await _stat_or_none(src), await _stat_or_none(dst)
    if source and target and os.path.samestat(source, target):
        raise shutil.SameFileError(f"{src!r} and {dst!r} are the same file")
    for path, facts in ((src, source), (dst, target)):
        if facts and modes.S_ISFIFO(facts.st_mode):
            raise shutil.SpecialFileError(f"`{os.fspath(path)}` is a named pipe")
    if not follow_symlinks and await islink(src):
        await symlink(await readlink(src), dst)
        return dst
    async with open(src, "rb", buffering=0) as reader:
        try:
            async with open(dst, "wb", buffering=0) as writer:
                block = memoryview(bytearray(COPY_BYTES))
                while count := await reader.readinto(block):
                    await writer.write(block[:count])
        except IsADirectoryError as exc:
            if await exists(dst):
                raise
            raise FileNotFoundError(f"Directory does not exist: {dst}") from exc
    return dst


async def copy(src: StrPath, dst: StrPath, *, follow_symlinks: bool = True) -> StrPath:
    """shutil.copy: the bytes on the ring, the permissions in a thread."""
    if await isdir(dst):
        dst = os.path.join(dst, os.path.basename(src))
    await copyfile(src, dst, follow_symlinks=follow_symlinks)
    await in_thread(lambda: shutil.copymode(src, dst, follow_symlinks=follow_symlinks))
    return dst


async def _stat_or_none(path: StrPath) -> os.stat_result | None:
    try:
        return await stat(path)
    except OSError:
        return None
