"""write_atomic(): replace all of a file's contents or, if anything fails, none of them.

On file systems with O_TMPFILE the data is written to an unnamed file and synced, so that a process
that is killed while it writes leaves nothing behind. If *path* does not exist, the unnamed file is
then linked to that name. As a link cannot replace an existing file, the unnamed file is otherwise
linked to a temporary name in the same directory, which is renamed in the same submission. A process
that is killed between these two system calls leaves the temporary name, with all of the new
contents.

On other file systems, a file with a temporary name is written; a process that is killed leaves this
file with what was written so far. Temporary names begin with the name of the file, and end in a
random number and `.tmp`.

While the data is being written, only the owner may read it, and only if the owner of the replaced
file may. The permissions of that file are copied after the last write (see permissions.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat as modes
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, AnyStr

from uringloop.files import path_operations
from uringloop.files.binary import RawFile
from uringloop.files.permissions import PRIVATE, copy_permissions

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, StrOrBytesPath

# The end of temporary names, and the number of names that are tried.
SUFFIX = ".tmp"
TRIES = 100
# The longest name that most file systems allow, in bytes.
NAME_BYTES = 255
# An unnamed file can be linked by its path in this directory.
DESCRIPTORS = "/proc/self/fd"
# The mode of a new file before the umask, as for open().
NEW_MODE = 0o666


async def write_atomic(path: StrOrBytesPath, data: ReadableBuffer) -> None:
    """Replace the contents of *path* with *data*, durably, or leave them as they were.

    The data is written to a new file in the same directory and synced; the new file then takes the
    place of *path*, and the directory is synced. If *path* was a file, the new file has the same
    permissions and ACL, and the same owner and group as far as the caller may set them. A symbolic
    link is replaced, not followed. If this raises OSError, nothing is left behind. A process that
    is killed can leave a file whose name begins with that of *path* and ends in `.tmp`. The page
    "Files" of the manual states when.
    """
    name: Any = os.fspath(path)
    folder = os.path.dirname(name) or os.curdir
    before = await _facts(name)
    mode = NEW_MODE if before is None else modes.S_IMODE(before.st_mode) & PRIVATE
    if not await _write_nameless(name, folder, data, mode):
        await _write_named(name, data, mode)
    await _sync_directory(folder)


async def _write_nameless(name: Any, folder: Any, data: ReadableBuffer, mode: int) -> bool:
    """Write *data* through an unnamed file; return False if that is not possible here."""
    fd = await path_operations.open_nameless(folder, mode)
    if fd < 0:
        return False
    async with RawFile(fd, name, mode="wb") as file:
        source = f"{DESCRIPTORS}/{fd}"
        try:
            await path_operations.stat(source)
        except FileNotFoundError:
            # Without /proc the file cannot be linked to a name.
            return False
        await file.write(data)
        exists = await _copy_permissions(file, name)
        await file.fsync()
        if not exists:
            try:
                await path_operations.link(source, name)
            except FileExistsError:
                # *name* is a symbolic link, or was created meanwhile.
                if await _copy_permissions(file, name):
                    await file.fsync()
            except OSError as exc:
                raise OSError(exc.errno, exc.strerror, name) from None
            else:
                return True
        await _replace(source, name)
    return True


async def _replace(source: str, name: Any) -> None:
    """Link the unnamed file to a temporary name, and rename that to *name*."""
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
            # If the rename was done, the temporary name no longer exists.
            await _discard(temporary)
            raise
        return
    raise FileExistsError(errno.EEXIST, "no name for a temporary file is free", name)


async def _write_named(name: Any, data: ReadableBuffer, mode: int) -> None:
    """Write *data* through a file with a temporary name."""
    temporary, fd = await _temporary_beside(name, mode)
    try:
        async with RawFile(fd, temporary, mode="wb") as file:
            await file.write(data)
            await _copy_permissions(file, name)
            await file.fsync()
        await path_operations.rename(temporary, name, os_function=os.replace)
    except BaseException:
        await _discard(temporary)
        raise


async def _temporary_beside(name: Any, mode: int) -> tuple[Any, int]:
    for temporary in _temporary_names(name):
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            sys.audit("open", temporary, None, flags)
            return temporary, await path_operations.open_descriptor(temporary, flags, mode)
        except FileExistsError:
            continue
        except OSError as exc:
            if exc.errno == errno.ENAMETOOLONG:
                continue
            raise OSError(exc.errno, exc.strerror, name) from None
        except BaseException:
            # The file may have been created all the same.
            await _discard(temporary)
            raise
    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), name)


def _temporary_names(name: AnyStr) -> Iterator[AnyStr]:
    """Yield names in the directory of *name* that begin with it, or with as much of it as fits."""
    folder, last = os.path.split(os.fsdecode(name))
    for number in range(TRIES):
        end = f".{os.urandom(6).hex()}{SUFFIX}"
        # Some file systems and long paths leave less room: halve it after every ten names.
        room = (NAME_BYTES - len(end)) >> (number // 10)
        while len(os.fsencode(last)) > room:
            last = last[:-1]
        path = os.path.join(folder, last + end)
        yield os.fsencode(path) if isinstance(name, bytes) else path


async def _facts(name: Any) -> os.stat_result | None:
    """Return the stat result of *name* if it is a regular file, whose permissions are kept."""
    try:
        facts = await path_operations.stat(name, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return facts if modes.S_ISREG(facts.st_mode) else None


async def _copy_permissions(file: RawFile, name: Any) -> bool:
    """Give *file* the permissions of the regular file *name*; return whether that exists."""
    facts = await _facts(name)
    if facts is None:
        return False
    # A cancel waits for the thread: the descriptor must stay open while the thread uses it.
    loop = asyncio.get_running_loop()
    await path_operations.wait_uncancelled(
        loop.run_in_executor(None, copy_permissions, file.fileno(), name, facts)
    )
    return True


async def _discard(path: StrOrBytesPath) -> None:
    with contextlib.suppress(OSError):
        await asyncio.shield(path_operations.unlink(path))


async def _sync_directory(folder: StrOrBytesPath) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    sys.audit("open", folder, None, flags)
    fd = await path_operations.open_descriptor(folder, flags)
    try:
        await path_operations.sync(fd, folder)
    finally:
        os.close(fd)
