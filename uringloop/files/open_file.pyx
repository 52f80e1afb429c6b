"""An open file: its descriptor, with calls at an offset and at the descriptor's position.

Calls with an offset may run concurrently; those without must be made one at a time, which the
Python subclasses ensure. As with built-in files the kernel alone keeps the position, which child
processes and duplicates of the descriptor share. A cancelled read leaves it where it was.
"""

import io

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t
from libc.string cimport memcpy, strerror

from uringloop._cpython.pyapi cimport PyBytes_New, take_bytes
from uringloop.files.memory cimport shortened, vectors_of
from uringloop.files.operation cimport (
    DETACHABLE,
    ENDED,
    IDEMPOTENT,
    NEEDS_THREAD,
    FileOperation,
    begin_linked,
    can_link,
    new_operation,
    ring_loop,
)
from uringloop.files.requests cimport FileRequests
from uringloop.files.scheduling cimport CallLock
from uringloop._kernel.atomics cimport load_int, store_int
from uringloop._kernel.errors cimport ECANCELED, EISDIR, ESPIPE, errno
from uringloop._kernel.files cimport (
    IORING_FSYNC_DATASYNC,
    SEEK_CUR,
    SEEK_END,
    SEEK_SET,
    S_ISDIR,
    S_ISREG,
    URING_CLOSES_BY_LIBC,
    io_uring_prep_close,
    io_uring_prep_fallocate,
    io_uring_prep_fsync,
    io_uring_prep_readv,
    io_uring_prep_writev,
    lseek,
    statx,
    uring_file_status,
    uring_get_status,
    uring_get_status_and_mount,
    uring_leave_to_worker,
    uring_prep_ftruncate,
    uring_prep_size,
    uring_reads_at_offset,
    uring_size_in,
    uring_writes_at_offset,
)
from uringloop._kernel.io_uring cimport IORING_OP_FSYNC, IORING_OP_WRITE
from uringloop._kernel.libc cimport close, iovec
from uringloop._ring.features cimport CACHED_FILES, CACHED_PATHS, TRUNCATE, kernel_uses
from uringloop._ring.ring cimport NEVER_CANCELLED, RUN_WAITS
from uringloop._turn.turn cimport LoopCore

from uringloop.files.memory import bytes_of, room_in


cdef object UnsupportedOperation = io.UnsupportedOperation


cdef class OpenFile(FileRequests):

    def __cinit__(self, *args, **options):
        self._lock = CallLock()

    def __init__(self, int fd, name, *, closefd=True, readable=False, writable=False,
                 appending=False):
        """Take over the descriptor *fd*; without *closefd* only borrow it."""
        cdef uring_file_status facts
        cdef int res
        if kernel_uses(CACHED_PATHS):
            res = uring_get_status_and_mount(fd, &facts)
        else:
            res = uring_get_status(fd, &facts)
        if res < 0:
            raise OSError(-res, strerror(-res).decode())
        if S_ISDIR(facts.mode):
            raise IsADirectoryError(EISDIR, strerror(EISDIR).decode(), name)
        self._regular = S_ISREG(facts.mode)
        self._block_size = facts.block_size
        self.local, self.in_memory = facts.local, facts.in_memory
        self._seekable = lseek(fd, 0, SEEK_CUR) >= 0
        self.reads_at_offset = self._seekable and (self._regular or uring_reads_at_offset(fd))
        self.writes_at_offset = self._seekable and writable and uring_writes_at_offset(fd)
        if appending:
            self.go_to_end(fd, facts.size)
        self.reads_cached = self.writes_cached = self._regular and kernel_uses(CACHED_FILES)
        self.fd, self.opened, self.closefd = fd, name, closefd
        self._readable = readable
        self._writable = writable
        self._appending = appending

    cdef int go_to_end(self, int fd, int64_t size) except -1:
        """Seek to the end, as built-in files do, although writes go there from any position."""
        cdef int error
        if self._regular and self.writes_at_offset:
            # Use the size that is known locally: SEEK_END could wait for a server.
            lseek(fd, size, SEEK_SET)
            return 0
        error = errno if lseek(fd, 0, SEEK_END) < 0 else 0
        if error not in (0, ESPIPE):
            raise OSError(error, strerror(error).decode())
        return 0

    @property
    def closed(self):
        return load_int(&self.fd) < 0

    def fileno(self):
        self.check_open()
        return load_int(&self.fd)

    cdef int check_writable(self) except -1:
        self.check_open()
        if not self._writable:
            raise UnsupportedOperation("not writable")
        return 0

    # ── at an offset ─────────────────────────────────────────────────────────────────────────

    async def pread(self, Py_ssize_t n, offset):
        """Read *n* bytes at *offset*; return fewer only at the end of the file."""
        cdef FileOperation operation
        cdef int64_t start
        self._lock.enter()
        try:
            start = self.start_of_read(offset)
            if n < 0:
                raise ValueError("negative size")
            operation = self.start_read(None, 0, n, start)
            if self._regular:
                operation.traits |= DETACHABLE
            if operation.stage != ENDED:
                await self._complete_read(operation)
            return self.result_of(operation)
        finally:
            self._lock.leave()

    async def pread_into(self, buffer, offset):
        """Read at *offset* into *buffer*; return the number of bytes.

        The buffer must not be used before the call has ended. A cancelled call ends only after the
        kernel has finished with the buffer.
        """
        cdef FileOperation operation
        cdef int64_t start
        self._lock.enter()
        try:
            start = self.start_of_read(offset)
            view = room_in(buffer)
            operation = self.start_read(view, 0, len(view), start)
            if operation.stage != ENDED:
                await self._complete_read(operation)
            return self.count_of(operation)
        finally:
            self._lock.leave()

    async def pwrite(self, data, offset):
        """Write all of *data* at *offset*; return its size in bytes.

        An OSError has `characters_written`, the number of bytes written. If the file was opened for
        appending, *data* is appended, as with os.pwrite.
        """
        cdef Py_ssize_t written = 0
        cdef FileOperation operation
        cdef int64_t start
        self._lock.enter()
        try:
            start = self.start_of_write(offset)
            view = bytes_of(data)
            size = len(view)
            if self.has_to_wait(size):
                await self._next_turn()
            while written < size:
                operation = self.start_write(view, written, start + written)
                if operation.stage != ENDED:
                    await operation.run()
                written += self.written_of(operation, written)
            return written
        finally:
            self._lock.leave()

    async def preadv(self, buffers, offset):
        """Read at *offset* into *buffers*, one after the other; return the number of bytes."""
        cdef FileOperation operation
        cdef int64_t start
        self._lock.enter()
        try:
            start = self.start_of_read(offset)
            views = [room_in(buffer) for buffer in buffers]
            vectors = vectors_of(views, 0)
            operation = new_operation(self, (views, vectors))
            operation.op.policy |= RUN_WAITS
            operation.traits |= IDEMPOTENT
            io_uring_prep_readv(
                &operation.request, self.fd, <iovec*>PyBytes_AS_STRING(vectors), len(views), start)
            await operation.run()
            return self.count_of(operation)
        finally:
            self._lock.leave()

    async def pwritev(self, buffers, offset):
        """Write all of *buffers* at *offset*; return their size in bytes. See `pwrite`."""
        cdef Py_ssize_t written = 0
        cdef FileOperation operation
        cdef int64_t start
        self._lock.enter()
        try:
            start = self.start_of_write(offset)
            views = [bytes_of(buffer) for buffer in buffers]
            size = sum(map(len, views))
            while written < size:
                vectors = vectors_of(views, written)
                operation = new_operation(self, (views, vectors))
                operation.op.policy |= RUN_WAITS
                if not self._appending:
                    operation.traits |= IDEMPOTENT
                self.writes += 1
                io_uring_prep_writev(
                    &operation.request, self.fd, <iovec*>PyBytes_AS_STRING(vectors),
                    PyBytes_GET_SIZE(vectors) // sizeof(iovec), start + written)
                await operation.run()
                written += self.written_of(operation, written)
            return written
        finally:
            self._lock.leave()

    cdef int64_t start_of_read(self, object offset) except -1:
        """Return *offset* as an int64; raise unless the file can be read there."""
        cdef int64_t start
        self.check_open()
        if not self._readable:
            raise UnsupportedOperation("not readable")
        start = checked_offset(offset)
        if not self.reads_at_offset:
            raise self.failure(-ESPIPE)
        return start

    cdef int64_t start_of_write(self, object offset) except -1:
        """Return *offset* as an int64; raise unless the file can be written there."""
        cdef int64_t start
        self.check_writable()
        start = checked_offset(offset)
        if not self.writes_at_offset:
            raise self.failure(-ESPIPE)
        return start

    # ── at the descriptor's position ─────────────────────────────────────────────────────────

    async def _read_some(self, Py_ssize_t n, buffer=None):
        """Read up to *n* bytes and return them; with *buffer* read into it and return their number.

        A regular file returns fewer only at its end; a pipe or terminal returns what it has.
        """
        cdef FileOperation operation
        self.check_open()
        if self.unread_bytes is not None:
            data = self.unread_bytes[:n]
            self.unread_bytes = self.unread_bytes[n:] if len(self.unread_bytes) > n else None
            if buffer is None:
                return bytes(data)
            buffer[:len(data)] = data
            return len(data)
        operation = self.start_read(buffer, 0, n, -1)
        if self._regular and buffer is None:
            operation.traits |= DETACHABLE
        if operation.stage != ENDED:
            try:
                await self._complete_read(operation)
            except BaseException:
                if operation.filled and self.fd >= 0:
                    self.move_back(operation.filled)
                if not self.reads_at_offset and operation.stage == ENDED and operation.res > 0:
                    taken = operation.held if buffer is None else bytes(buffer)
                    self.unread_bytes = memoryview(taken)[:operation.res]
                raise
        if buffer is None:
            data = self.result_of(operation)
            count = len(data)
        else:
            data = count = self.count_of(operation)
        self.move_past(operation)
        return data

    async def _read_after(self, bytes ahead, Py_ssize_t n):
        """Return *ahead* plus the next *n* bytes of a regular file, fewer only at its end."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(ahead)
        cdef Py_ssize_t before = size
        cdef Py_ssize_t count
        cdef FileOperation operation = None
        cdef PyObject *data
        self.check_open()
        n += size
        held = take_bytes(PyBytes_New(NULL, n))
        memcpy(PyBytes_AS_STRING(held), PyBytes_AS_STRING(ahead), size)
        try:
            while size < n:
                operation = self.start_read(held, size, n - size, -1)
                operation.traits |= DETACHABLE
                if operation.stage != ENDED:
                    await self._complete_read(operation)
                count = self.count_of(operation)
                self.move_past(operation)
                operation.held = operation = None
                if count == 0:
                    break
                size += count
        except BaseException:
            if operation is not None:
                before -= operation.filled
            if before != size and self.fd >= 0:
                self.move_back(size - before)
            raise
        data = <PyObject*>held
        Py_INCREF(held)
        held = None
        return shortened(data, size)

    def _unread(self, list parts):
        """Unread the bytes in *parts*, which were read last."""
        cdef Py_ssize_t size = sum(map(len, parts))
        if size == 0 or self.fd < 0:
            return
        if self.unread_bytes is not None:
            parts = [*parts, self.unread_bytes]
        elif self._seekable and self.move_back(size):
            return
        self.unread_bytes = memoryview(b"".join(parts))

    async def _write_all(self, view):
        """Write all of *view*, bytes or a memoryview; `_written` is exact even after errors."""
        cdef FileOperation operation
        cdef int64_t position = -1
        self.check_open()
        self._written = 0
        size = len(view)
        if self.has_to_wait(size):
            await self._next_turn()
        while self._written < size:
            if self.writes_at_offset and not self._appending:
                position = self.position()
            operation = self.start_write(view, self._written, position)
            if operation.stage != ENDED:
                try:
                    await operation.run()
                except BaseException:
                    if operation.stage == ENDED and operation.res > 0:
                        self.note_written(operation.res, size, position)
                    raise
            self.note_written(self.written_of(operation, self._written), size, position)

    async def _write_all_and_sync(self, data, unsigned int flags):
        """Write *data* and sync the file, in one submission; return whether both were done.

        If not, the caller writes what is left after `_written` bytes, and syncs. `_written` is
        exact even after errors.
        """
        cdef FileOperation writing, syncing
        cdef unsigned int done
        cdef int64_t position = -1
        self.check_open()
        self._written = 0
        if not can_link(IORING_OP_WRITE, IORING_OP_FSYNC) or not self._regular or self.in_memory:
            return False
        if self.writes_at_offset and not self._appending:
            position = self.position()
        writing = self.prepare_write(data, 0, position)
        done = self.writes_done()
        writing.traits &= ~<unsigned int>IDEMPOTENT
        syncing = new_operation(self, None)
        io_uring_prep_fsync(&syncing.request, self.fd, flags)
        begin_linked(writing, syncing)
        try:
            await syncing.end()
        finally:
            if writing.stage == ENDED and writing.res > 0:
                self.note_written(writing.res, len(data), position)
        if syncing.res == -ECANCELED and (writing.res > 0 or writing.res == -ECANCELED):
            # The write was short, or the ring was lost.
            return False
        self.written_of(writing, 0)
        self.count_of(syncing)
        self.synced = done
        return True

    cdef int note_written(self, Py_ssize_t count, Py_ssize_t size, int64_t position) except -1:
        """Note that *count* more of *size* bytes were written, at *position* unless it is -1."""
        self._written += count
        # If the writing coroutine was destroyed, the file may be closed by now.
        if self.fd < 0:
            return 0
        if position >= 0:
            self.move_to(position + count)
        elif self._written < size and self._regular and self.writes_at_offset:
            # On the ring an append that an error cuts short does not move the position.
            self.move_to(self._size())
        return 0

    async def _seek(self, int64_t offset, int whence):
        """Move the descriptor's position; return the new one."""
        cdef FileOperation operation
        cdef int64_t position
        self.check_open()
        if whence == SEEK_END and self._regular:
            # lseek would block the loop if a server has to report the size.
            operation = new_operation(self, take_bytes(PyBytes_New(NULL, sizeof(statx))))
            uring_prep_size(&operation.request, self.fd, PyBytes_AS_STRING(operation.held))
            operation.op.policy |= RUN_WAITS
            operation.traits |= IDEMPOTENT
            await operation.run()
            self.count_of(operation)
            offset += uring_size_in(PyBytes_AS_STRING(operation.held))
            whence = SEEK_SET
        position = lseek(self.fd, offset, whence)
        if position < 0:
            raise self.failure(-errno)
        return position

    def _tell(self):
        self.check_open()
        return self.position()

    def _size(self):
        """Return the size of the file as it is known without asking a server; 0 if that fails."""
        cdef uring_file_status facts
        return facts.size if uring_get_status(self.fd, &facts) == 0 else 0

    # ── the file as a whole ──────────────────────────────────────────────────────────────────

    async def fsync(self):
        """Write buffered data, and have the kernel write the file to its disk (fsync(2))."""
        await self._write_and_sync(0)

    async def fdatasync(self):
        """Like `fsync`, but write only the metadata that is needed to read the data."""
        await self._write_and_sync(IORING_FSYNC_DATASYNC)

    async def _write_and_sync(self, unsigned int flags):
        self._lock.enter()
        try:
            await self._sync(flags)
        finally:
            self._lock.leave()

    async def _sync(self, unsigned int flags):
        cdef FileOperation operation
        cdef unsigned int done = self.writes_done()
        self.check_open()
        if self.in_memory:
            # No disk backs the file.
            return
        operation = new_operation(self, None)
        operation.traits |= IDEMPOTENT
        io_uring_prep_fsync(&operation.request, self.fd, flags)
        await operation.run()
        self.count_of(operation)
        self.synced = done

    cdef unsigned int writes_done(self) noexcept:
        """Return how many of the started writes a sync that starts now is certain to cover."""
        return self.synced if load_int(&self.in_flight) else self.writes

    async def fallocate(self, offset, size, *, mode=0):
        """Reserve *size* bytes from *offset* on; *mode* is that of fallocate(2)."""
        cdef FileOperation operation
        self._lock.enter()
        try:
            self.check_writable()
            operation = new_operation(self, None)
            operation.traits |= IDEMPOTENT
            io_uring_prep_fallocate(
                &operation.request, self.fd, PyNumber_Index(mode), PyNumber_Index(offset),
                PyNumber_Index(size))
            self.writes += 1
            await operation.run()
            self.count_of(operation)
        finally:
            self._lock.leave()

    async def _resize(self, int64_t size):
        cdef FileOperation operation
        cdef LoopCore loop = ring_loop()
        self.check_open()
        self.writes += 1
        operation = new_operation(self, None)
        operation.traits |= IDEMPOTENT
        if loop is not None and not loop.ring.uses(TRUNCATE):
            operation.traits |= NEEDS_THREAD
        uring_prep_ftruncate(&operation.request, self.fd, size)
        await operation.run()
        self.count_of(operation)

    async def _close_descriptor(self):
        """Close the descriptor once no operation uses it. It is closed even if close(2) fails."""
        cdef FileOperation operation
        cdef int fd = self.fd
        if fd < 0:
            return
        if load_int(&self.in_flight):
            await self._become_idle()
        store_int(&self.fd, -1)
        self._lock.forget_loop()
        if not self.closefd:
            return
        if self.local and (self.in_memory or self.writes == self.synced):
            # Without data to write back close(2) does not block.
            if close(fd) < 0:
                raise self.failure(-errno)
            return
        operation = new_operation(None, self)
        if URING_CLOSES_BY_LIBC:
            operation.traits |= NEEDS_THREAD
        io_uring_prep_close(&operation.request, fd)
        operation.op.policy |= NEVER_CANCELLED | RUN_WAITS
        if self._writable:
            uring_leave_to_worker(&operation.request)
        try:
            operation.begin()
        except BaseException:
            close(fd)
            raise
        await operation.end()
        self.count_of(operation)

    def _close_now(self):
        """Close the descriptor of a file that is finalized."""
        cdef int fd = self.fd
        store_int(&self.fd, -1)
        if fd >= 0 and self.closefd:
            close(fd)

    def _give_up_descriptor(self):
        """Return the descriptor, which the caller owns from now on."""
        cdef int fd = self.fd
        self.check_open()
        store_int(&self.fd, -1)
        return fd


cdef int64_t checked_offset(object offset) except -1:
    cdef int64_t start = PyNumber_Index(offset)
    if start < 0:
        raise ValueError("negative offset")
    return start
