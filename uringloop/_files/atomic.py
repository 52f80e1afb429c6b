"""write_atomic(): the whole of the new contents or the whole of the old, whatever happens.

Where the file system has nameless files (O_TMPFILE) the contents are written and synced in one, so
that a process that is killed meanwhile leaves nothing. A new file is then linked to its name. One
that is there can not be replaced by a link: the nameless file gets a temporary name beside it, and
that is renamed in the same submission. A process that is killed between these two calls of the
kernel leaves the temporary name, with all of the new contents.

Elsewhere a file with a temporary name is written, and a killed process leaves it as far as it was
written. Temporary names begin with the name of the file, and end in a random number and `.tmp`.

While the data is written only the owner may read it, and only if the owner of the file that is
replaced may. The rights of that file are given when all is written (see `rights`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat as modes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, AnyStr

from uringloop._files import path_operations
from uringloop._files.binary import RawFile
from uringloop._files.permissions import PRIVATE, resemble

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, StrOrBytesPath

# What a temporary name adds to that of the file, and how often one is tried.
SUFFIX = ".tmp"
TRIES = 100
# As long as names are on most file systems, in bytes.
NAME_BYTES = 255
# What has no name in a folder has one here.
DESCRIPTORS = "/proc/self/fd"
# The mode that a new file is opened with, as by open().
NEW_MODE = 0o666


async def write_atomic(path: StrOrBytesPath, data: ReadableBuffer) -> None:
    """Have *path* hold *data*, durably, or what it held before: whatever happens meanwhile.

    The data is written and synced beside it, takes its place, and then the folder is synced. A file
    that is there keeps its permissions, its ACL, and its owner and group as far as the caller may
    give them; a link is replaced, not followed. Raises OSError, and leaves nothing behind. A
    process that is killed may leave a file whose name begins with that of *path* and ends in
    `.tmp`: docs/files.md says when.
    """
    name: Any = os.fspath(path)
    folder = os.path.dirname(name) or os.curdir
    before = await _facts(name)
    mode = NEW_MODE if before is None else modes.S_IMODE(before.st_mode) & PRIVATE
    if not await _write_nameless(name, folder, data, mode):
        await _write_named(name, data, mode)
    await _sync_folder(folder)


async def _write_nameless(name: Any, folder: Any, data: ReadableBuffer, mode: int) -> bool:
    """Do it with a file that has no name before it is whole; False if there are none here."""
    fd = await path_operations.open_nameless(folder, mode)
    if fd < 0:
        return False
    async with RawFile(fd, name, mode="wb") as file:
        source = f"{DESCRIPTORS}/{fd}"
        try:
            await path_operations.stat(source, None, True)
        except FileNotFoundError:
            # There is no /proc: it could not be given a name.
            return False
        await file.write(data)
        exists = await _resemble(file, name)
        await file.fsync()
        if not exists:
            try:
                await path_operations.link(source, name)
            except FileExistsError:
                # It is a link, or has been made meanwhile.
                if await _resemble(file, name):
                    await file.fsync()
            except OSError as exc:
                raise OSError(exc.errno, exc.strerror, name) from None
            else:
                return True
        await _replace(source, name)
    return True


async def _replace(source: str, name: Any) -> None:
    """Give the nameless file a temporary name, and let that take the place of *name*."""
    for temporary in _temporary_names(name):
        try:
            await path_operations.link_and_rename(source, temporary, name)
        except FileExistsError as exc:
            if exc.filename2 == temporary:
                continue
            raise
        except OSError as exc:
            if exc.errno == errno.ENAMETOOLONG:
                continue
            await _discard(temporary)
            raise OSError(exc.errno, exc.strerror, name) from None
        except BaseException:
            # The rename may have been done; then there is nothing to remove.
            await _discard(temporary)
            raise
        return
    raise FileExistsError(errno.EEXIST, "no name for a temporary file is free", name)


async def _write_named(name: Any, data: ReadableBuffer, mode: int) -> None:
    """Do it with a file that has a temporary name."""
    temporary, fd = await _temporary_beside(name, mode)
    try:
        async with RawFile(fd, temporary, mode="wb") as file:
            await file.write(data)
            await _resemble(file, name)
            await file.fsync()
        await path_operations.rename(temporary, name, judge=os.replace)
    except BaseException:
        await _discard(temporary)
        raise


async def _temporary_beside(name: Any, mode: int) -> tuple[Any, int]:
    for temporary in _temporary_names(name):
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            return temporary, await path_operations.open_descriptor(temporary, flags, mode)
        except FileExistsError:
            continue
        except OSError as exc:
            if exc.errno == errno.ENAMETOOLONG:
                continue
            raise OSError(exc.errno, exc.strerror, name) from None
        except BaseException:
            # It may have been made all the same.
            await _discard(temporary)
            raise
    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), name)


def _temporary_names(name: AnyStr) -> Iterator[AnyStr]:
    """Yield names beside *name* that begin with it, or with as much of it as there is room for."""
    folder, last = os.path.split(os.fsdecode(name))
    for number in range(TRIES):
        end = f".{os.urandom(6).hex()}{SUFFIX}"
        # Some file systems, and some paths, have room for less.
        room = (NAME_BYTES - len(end)) >> (number // 10)
        while len(os.fsencode(last)) > room:
            last = last[:-1]
        path = os.path.join(folder, last + end)
        yield os.fsencode(path) if isinstance(name, bytes) else path


async def _facts(name: Any) -> os.stat_result | None:
    """Return what is known of the file with this *name*, if it is one whose rights are kept."""
    try:
        facts = await path_operations.stat(name, None, False)
    except FileNotFoundError:
        return None
    return facts if modes.S_ISREG(facts.st_mode) else None


async def _resemble(file: RawFile, name: Any) -> bool:
    """Give *file* the rights of the one with this *name*; return whether there is one."""
    facts = await _facts(name)
    if facts is None:
        return False
    # Until its end: the thread has the descriptor, which is closed after that.
    loop = asyncio.get_running_loop()
    await path_operations.to_its_end(
        loop.run_in_executor(None, resemble, file.fileno(), name, facts)
    )
    return True


async def _discard(path: StrOrBytesPath) -> None:
    with contextlib.suppress(OSError):
        await asyncio.shield(path_operations.unlink(path))


async def _sync_folder(folder: StrOrBytesPath) -> None:
    fd = await path_operations.open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        await path_operations.sync(fd, folder)
    finally:
        os.close(fd)
