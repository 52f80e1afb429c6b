"""Operations on paths, on the ring: open, stat, mkdir, rename, unlink, link.

Arguments and errors, with the paths in them, are those of `os`. Opens and stats that the kernel can
serve from its caches of a local file system are done without the ring, while the turn has time for
files.
"""

import os
import sys
from asyncio import CancelledError, get_running_loop, wait

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.string cimport strerror

from uringloop._cpython.pyapi cimport PyBytes_New, take_bytes
from uringloop.files.memory cimport shortened
from uringloop.files.operation cimport (
    IDEMPOTENT,
    NEEDS_THREAD,
    SLICE_BYTES,
    FileOperation,
    begin_linked,
    can_link,
    new_operation,
    ring_loop,
)
from uringloop.files.scheduling cimport FilesOfLoop, files_of
from uringloop._kernel.errors cimport EAGAIN, ECANCELED
from uringloop._kernel.files cimport (
    io_uring_prep_fsync,
    uring_file_status,
    uring_get_status_and_mount,
    uring_leave_to_worker,
    uring_read_cached,
)
from uringloop._kernel.io_uring cimport IORING_OP_LINKAT, IORING_OP_RENAMEAT
from uringloop._kernel.libc cimport close
from uringloop._kernel.paths cimport (
    AT_EMPTY_PATH,
    AT_FDCWD,
    AT_REMOVEDIR,
    AT_SYMLINK_FOLLOW,
    AT_SYMLINK_NOFOLLOW,
    O_CLOEXEC,
    O_EXCL,
    O_RDONLY,
    STATX_BASIC_STATS,
    io_uring_prep_linkat,
    io_uring_prep_mkdirat,
    io_uring_prep_openat,
    io_uring_prep_renameat,
    io_uring_prep_statx,
    io_uring_prep_symlinkat,
    io_uring_prep_unlinkat,
    makedev,
    statx,
    statx_timestamp,
    uring_open_cached,
    uring_stat_cached,
)
from uringloop._ring.features cimport CACHED_FILES, CACHED_PATHS, NAMELESS_FILES, kernel_uses
from uringloop._ring.ring cimport HOLDS_DESCRIPTOR, RUN_WAITS
from uringloop._turn.turn cimport LoopCore

# Errors of unsuitable arguments: the function of `os` is then called, to raise its own error.
cdef tuple BAD_ARGUMENT = (TypeError, ValueError, OverflowError)


async def open_descriptor(path, int flags, int mode=0o666):
    """Open *path* and return the descriptor. Raises OSError with *path* as it was given.

    A new file gets *mode*, reduced by the umask. The caller raises the audit event.
    """
    cdef bytes name = name_of(path)
    cdef FileOperation operation
    cdef LoopCore loop = ring_loop()
    cdef int fd
    if may_use_caches(loop):
        fd = uring_open_cached(name, flags)
        if fd != -EAGAIN:
            return checked(fd, path)
    operation = new_call(name)
    io_uring_prep_openat(&operation.request, AT_FDCWD, name, flags, mode)
    # The open of a FIFO must wait for its peer; without a worker the ring's open would not.
    uring_leave_to_worker(&operation.request)
    operation.op.policy |= HOLDS_DESCRIPTOR
    operation.res = -1
    # With O_EXCL a second open would find the file that the first one has created.
    if not flags & O_EXCL:
        operation.traits |= IDEMPOTENT
    await operation.run()
    fd = checked(operation.res, path)
    operation.op.policy &= ~HOLDS_DESCRIPTOR
    return fd


async def open_nameless(folder, int mode):
    """Open a new unnamed file in *folder* for writing; return -1 if that is not possible."""
    if not kernel_uses(NAMELESS_FILES):
        return -1
    try:
        return await open_descriptor(
            folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, mode)
    except OSError:
        # No O_TMPFILE here, or no file can be created: then opening a named one raises the error.
        return -1


async def stat(path, *, dir_fd=None, bint follow_symlinks=True, os_function=os.stat):
    """os.stat, on the ring or from the kernel's caches; *os_function* checks the arguments."""
    cdef int folder, flags
    cdef bytes name
    cdef FileOperation operation
    if isinstance(path, int) and (path < 0 or dir_fd is not None or not follow_symlinks):
        # To the kernel -100 is AT_FDCWD, the current directory.
        return os_function(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
    try:
        if isinstance(path, int):
            name = b""
            folder = path
            flags = AT_EMPTY_PATH
        else:
            name = name_of(path)
            folder = dir_fd_of(dir_fd)
            flags = 0 if follow_symlinks else AT_SYMLINK_NOFOLLOW
    except BAD_ARGUMENT:
        return os_function(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
    if name:
        result = stat_cached(folder, name, flags)
        if result is not None:
            return result
    facts = take_bytes(PyBytes_New(NULL, sizeof(statx)))
    operation = new_call((name, facts))
    io_uring_prep_statx(
        &operation.request, folder, name, flags, STATX_BASIC_STATS,
        <statx*>PyBytes_AS_STRING(facts))
    operation.traits |= IDEMPOTENT
    await operation.run()
    checked(operation.res, path)
    return stat_result(<statx*>PyBytes_AS_STRING(facts))


def read_cached(path):
    """Return the contents of a small regular file if all is in the page cache, else None."""
    cdef LoopCore loop = ring_loop()
    cdef uring_file_status facts
    cdef Py_ssize_t count
    cdef int rest = 0
    cdef int fd
    cdef PyObject *data
    cdef bytes name = name_of(path)
    if not kernel_uses(CACHED_FILES) or not may_use_caches(loop):
        return None
    fd = uring_open_cached(name, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return None
    try:
        if uring_get_status_and_mount(fd, &facts) < 0 or facts.size >= SLICE_BYTES:
            return None
        # One byte more than the size says, to see the end of the file.
        held = take_bytes(PyBytes_New(NULL, facts.size + 1))
        count = uring_read_cached(
            fd, PyBytes_AS_STRING(held), facts.size + 1, 0, facts.in_memory, &rest)
    finally:
        close(fd)
    if rest != 0 or count > facts.size:
        return None
    # The audit event of open(). Without cached contents the caller calls open(), which raises it.
    sys.audit("open", path, "rb", O_RDONLY | O_CLOEXEC)
    data = <PyObject*>held
    Py_INCREF(held)
    held = None
    return shortened(data, count)


async def mkdir(path, mode=0o777, dir_fd=None):
    """os.mkdir, on the ring."""
    cdef FileOperation operation
    try:
        operation = new_call(name_of(path))
        io_uring_prep_mkdirat(
            &operation.request, dir_fd_of(dir_fd), operation.held, PyNumber_Index(mode))
    except BAD_ARGUMENT:
        return os.mkdir(path, mode, dir_fd=dir_fd)
    sys.audit("os.mkdir", path, mode, audited(dir_fd))
    await operation.run()
    checked(operation.res, path)


async def unlink(path, dir_fd=None, *, os_function=os.unlink):
    """os.unlink or os.remove, on the ring; *os_function* is the one that raises argument errors."""
    cdef FileOperation operation
    try:
        operation = new_call(name_of(path))
        io_uring_prep_unlinkat(&operation.request, dir_fd_of(dir_fd), operation.held, 0)
    except BAD_ARGUMENT:
        return os_function(path, dir_fd=dir_fd)
    sys.audit("os.remove", path, audited(dir_fd))
    await operation.run()
    checked(operation.res, path)


async def rmdir(path, dir_fd=None):
    """os.rmdir, on the ring."""
    cdef FileOperation operation
    try:
        operation = new_call(name_of(path))
        io_uring_prep_unlinkat(
            &operation.request, dir_fd_of(dir_fd), operation.held, AT_REMOVEDIR)
    except BAD_ARGUMENT:
        return os.rmdir(path, dir_fd=dir_fd)
    sys.audit("os.rmdir", path, audited(dir_fd))
    await operation.run()
    checked(operation.res, path)


async def rename(src, dst, src_dir_fd=None, dst_dir_fd=None, *, os_function=os.rename):
    """os.rename or os.replace, on the ring; *os_function* checks the arguments."""
    cdef FileOperation operation
    cdef bytes old, new
    try:
        old = name_of(src)
        new = name_of(dst)
        operation = new_call((old, new))
        io_uring_prep_renameat(
            &operation.request, dir_fd_of(src_dir_fd), old, dir_fd_of(dst_dir_fd), new, 0)
    except BAD_ARGUMENT:
        return os_function(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    sys.audit("os.rename", src, dst, audited(src_dir_fd), audited(dst_dir_fd))
    await operation.run()
    checked(operation.res, src, dst)


async def link(src, dst, *, src_dir_fd=None, dst_dir_fd=None, bint follow_symlinks=True):
    """os.link, on the ring; *follow_symlinks* sets AT_SYMLINK_FOLLOW."""
    cdef FileOperation operation
    cdef bytes old, new
    try:
        old = name_of(src)
        new = name_of(dst)
        operation = new_call((old, new))
        io_uring_prep_linkat(
            &operation.request, dir_fd_of(src_dir_fd), old, dir_fd_of(dst_dir_fd), new,
            AT_SYMLINK_FOLLOW if follow_symlinks else 0)
    except BAD_ARGUMENT:
        return os.link(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    sys.audit("os.link", src, dst, audited(src_dir_fd), audited(dst_dir_fd))
    await operation.run()
    checked(operation.res, src, dst)


async def link_and_rename(src, temporary, dst):
    """Link *src* to *temporary*, then rename that to *dst*, in one submission.

    The second path of an OSError is *temporary* if the link has failed, *dst* if the rename has.
    """
    cdef FileOperation linking, renaming
    cdef bytes source = name_of(src)
    cdef bytes between = name_of(temporary)
    cdef bytes target = name_of(dst)
    sys.audit("os.link", src, temporary, -1, -1)
    sys.audit("os.rename", temporary, dst, -1, -1)
    linking = new_call((source, between))
    io_uring_prep_linkat(
        &linking.request, AT_FDCWD, source, AT_FDCWD, between, AT_SYMLINK_FOLLOW)
    renaming = new_call((between, target))
    io_uring_prep_renameat(&renaming.request, AT_FDCWD, between, AT_FDCWD, target, 0)
    if linking.traits & NEEDS_THREAD or not can_link(IORING_OP_LINKAT, IORING_OP_RENAMEAT):
        await wait_uncancelled(
            get_running_loop().run_in_executor(None, perform_both, linking, renaming))
    else:
        begin_linked(linking, renaming)
        await renaming.end()
    checked(linking.res, src, temporary)
    if renaming.res == -ECANCELED:
        # The ring was lost between link and rename.
        return await rename(temporary, dst, os_function=os.replace)
    checked(renaming.res, temporary, dst)


def perform_both(FileOperation first, FileOperation second):
    """Perform *first* and, if that succeeds, *second*; runs in a thread of the executor."""
    if first._perform() >= 0:
        second._perform()


async def wait_uncancelled(future):
    """Wait for *future* without cancelling it; raise CancelledError only after it is done."""
    cancelled = None
    while not future.done():
        try:
            await wait([future])
        except CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        raise cancelled
    future.result()


async def symlink(src, dst, dir_fd=None):
    """os.symlink, on the ring."""
    cdef FileOperation operation
    cdef bytes target, name
    try:
        target = name_of(src)
        name = name_of(dst)
        operation = new_call((target, name))
        io_uring_prep_symlinkat(&operation.request, target, dir_fd_of(dir_fd), name)
    except BAD_ARGUMENT:
        return os.symlink(src, dst, dir_fd=dir_fd)
    sys.audit("os.symlink", src, dst, audited(dir_fd))
    await operation.run()
    checked(operation.res, src, dst)


async def sync(int fd, path):
    """fsync the descriptor *fd*, on the ring; an OSError has *path* as its filename."""
    cdef FileOperation operation = new_call(None)
    operation.traits |= IDEMPOTENT
    io_uring_prep_fsync(&operation.request, fd, 0)
    await operation.run()
    checked(operation.res, path)


# ── arguments and results ────────────────────────────────────────────────────────────────────


cdef FileOperation new_call(object held):
    """Make an operation for whose end a run of the loop waits.

    Another thread, in which the loop may run next, would not get its result.
    """
    cdef FileOperation operation = new_operation(None, held)
    cdef LoopCore loop = ring_loop()
    operation.op.policy |= RUN_WAITS
    # A kernel thread (SQPOLL) would look paths up with the rights of the user who created the ring,
    # even after this process has changed its user.
    if loop is not None and loop.ring.has_kernel_thread():
        operation.traits |= NEEDS_THREAD
    return operation


cdef bytes name_of(object path):
    cdef bytes name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    return name


cdef int dir_fd_of(object dir_fd) except? -1:
    return AT_FDCWD if dir_fd is None else PyNumber_Index(dir_fd)


cdef object audited(object dir_fd):
    """Return *dir_fd* as `os` passes it to audit hooks (sys.addaudithook)."""
    return -1 if dir_fd is None else dir_fd


cdef bint may_use_caches(LoopCore loop) except -1:
    """Return whether this turn may still look into the kernel's caches."""
    cdef FilesOfLoop files
    if loop is None or not kernel_uses(CACHED_PATHS):
        return False
    files = files_of(loop)
    return not files.reproducible and not files.is_turn_spent(loop)


cdef int checked(int res, object path, object second=None) except -1:
    """Return *res*, or raise the OSError that it stands for, as `os` would."""
    if res >= 0:
        return res
    reason = strerror(-res).decode("utf-8", "replace")
    if not isinstance(path, int):
        path = os.fspath(path)
    if second is None:
        raise OSError(-res, reason, path)
    raise OSError(-res, reason, path, None, os.fspath(second))


cdef object stat_cached(int folder, bytes name, int flags):
    """Return the result if the kernel's caches have it, else None."""
    cdef statx facts
    if not may_use_caches(ring_loop()) or uring_stat_cached(folder, name, flags, &facts) < 0:
        return None
    return stat_result(&facts)


cdef object stat_result(const statx *facts):
    return os.stat_result((
        facts.stx_mode,
        facts.stx_ino,
        makedev(facts.stx_dev_major, facts.stx_dev_minor),
        facts.stx_nlink,
        facts.stx_uid,
        facts.stx_gid,
        facts.stx_size,
        facts.stx_atime.tv_sec,
        facts.stx_mtime.tv_sec,
        facts.stx_ctime.tv_sec,
        seconds(facts.stx_atime),
        seconds(facts.stx_mtime),
        seconds(facts.stx_ctime),
        nanoseconds(facts.stx_atime),
        nanoseconds(facts.stx_mtime),
        nanoseconds(facts.stx_ctime),
        facts.stx_blksize,
        facts.stx_blocks,
        makedev(facts.stx_rdev_major, facts.stx_rdev_minor),
    ))


cdef double seconds(statx_timestamp at) noexcept:
    return at.tv_sec + 1e-9 * at.tv_nsec


cdef object nanoseconds(statx_timestamp at):
    # A Python int, as an int64 would overflow in 2262.
    return <object>at.tv_sec * 1_000_000_000 + at.tv_nsec
