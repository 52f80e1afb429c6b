"""Reads and writes of an open file: from and to the page cache at once, else on the ring.

A read first copies what is in the page cache, without waiting and without a ring, as long as the
turn has time for files or no other work waits for the next one; the rest goes to the ring. Where
the file system can write without waiting the same holds for small writes.
"""

import asyncio

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport strerror

from uringloop._cpython.pyapi cimport PyBytes_New, take_bytes
from uringloop.files.memory cimport shortened, start_of
from uringloop.files.operation cimport (
    ENDED,
    IDEMPOTENT,
    OUT_OF_TIME,
    PREPARED,
    SLICE_BYTES,
    Descriptor,
    FileOperation,
    new_operation,
    ring_loop,
)
from uringloop.files.scheduling cimport FilesOfLoop, files_of
from uringloop._kernel.errors cimport EAGAIN, ENOSPC, errno
from uringloop._kernel.files cimport (
    SEEK_CUR,
    SEEK_SET,
    io_uring_prep_read,
    io_uring_prep_write,
    lseek,
    uring_leave_to_worker,
    uring_take_cached,
    uring_write_cached,
)
from uringloop._ring.ring cimport PROCESS, RUN_WAITS
from uringloop._turn.turn cimport LoopCore


cpdef enum:
    # The kernel transfers at most 2 GiB less a page at once, and the result is an int.
    REQUEST_MAX = 1 << 30
cdef enum:
    # Reads of at least this size wait for the next turn, or are left to a kernel worker: the ring
    # would copy them in the loop's own thread.
    WORKER_BYTES = 128 * 1024


cdef class FileRequests(Descriptor):

    @property
    @cython.critical_section
    def name(self):
        return self.opened

    @name.setter
    @cython.critical_section
    def name(self, name):
        self.opened = name

    # ── reading and writing ───────────────────────────────────────────────────────────────────────

    cdef FileOperation start_read(
            self, object target, Py_ssize_t skip, Py_ssize_t size, int64_t offset):
        """Read what is cached into *target* after its first *skip* bytes; prepare to read the rest.

        *target* is a view, bytes that are not shared yet, or None for new bytes.
        """
        cdef FileOperation operation = new_operation(self, target)
        cdef char *data
        self.process = PROCESS
        size = min(size, REQUEST_MAX)
        if target is None:
            operation.held = take_bytes(PyBytes_New(NULL, size))
        data = <char*>start_of(operation.held) + skip
        if size == 0:
            operation.stage = ENDED
            return operation
        io_uring_prep_read(
            &operation.request, self.fd, data, <unsigned int>size,
            <uint64_t>-1 if offset < 0 else offset)
        if self._regular:
            operation.op.policy |= RUN_WAITS
        operation.traits |= IDEMPOTENT
        self.take_cached(operation)
        return operation

    cdef int take_cached(self, FileOperation operation) except -1:
        """Read what is in the page cache while the turn has time; the request keeps the rest."""
        cdef LoopCore loop
        cdef FilesOfLoop files
        cdef Py_ssize_t share
        cdef ssize_t count
        cdef int rest = 0
        assert operation.stage <= OUT_OF_TIME
        operation.stage = PREPARED
        loop = ring_loop() if self.reads_cached else None
        if loop is None:
            return 0
        files = files_of(loop)
        if files.reproducible:
            return 0
        while rest == 0 and operation.stage != ENDED and not files.is_turn_spent(loop):
            share = min(<Py_ssize_t>operation.request.len, SLICE_BYTES)
            count = uring_take_cached(&operation.request, share, self.in_memory, &rest)
            operation.filled += count
            if rest == 0 and (count < share or operation.request.len == 0):
                operation.stage = ENDED
            self.reads_cached = rest in (0, -EAGAIN)
        if operation.stage != ENDED and rest == 0 and operation.request.len >= WORKER_BYTES:
            operation.stage = OUT_OF_TIME
        return 0

    async def _complete_read(self, FileOperation operation):
        """Do the rest of a read: in later turns while it is cached, then on the ring."""
        cdef Py_ssize_t before = -1
        while operation.stage == OUT_OF_TIME and operation.filled != before:
            before = operation.filled
            await self._next_turn()
            self.take_cached(operation)
        if operation.stage != ENDED:
            if self.reads_at_offset and operation.request.off == <uint64_t>-1:
                operation.request.off = self.position()
            if operation.stage == OUT_OF_TIME:
                uring_leave_to_worker(&operation.request)
            await operation.run()

    async def _next_turn(self):
        """Wait for the next turn of the loop; until then the descriptor stays open."""
        self.started()
        try:
            await asyncio.sleep(0)
        finally:
            self.ended()

    cdef bint has_to_wait(self, Py_ssize_t size) except -1:
        """Return whether a write that may be cached must wait for a turn that has time for it."""
        cdef LoopCore loop
        if not self.writes_cached or size > SLICE_BYTES:
            return False
        loop = ring_loop()
        return loop is not None and files_of(loop).is_turn_spent(loop)

    cdef FileOperation start_write(self, object data, Py_ssize_t skip, int64_t offset):
        """Write what the file system takes without waiting, or prepare to write all of it."""
        cdef FileOperation operation
        cdef LoopCore loop
        cdef FilesOfLoop files
        cdef Py_ssize_t size = min(len(data) - skip, REQUEST_MAX)
        cdef int res
        if self.writes_cached:
            # Leave larger writes to a worker: other processes would see slices as several writes.
            loop = ring_loop() if size <= SLICE_BYTES else None
            files = None if loop is None else files_of(loop)
            if files is not None and not files.reproducible and not files.is_turn_spent(loop):
                res = uring_write_cached(
                    self.fd, start_of(data) + skip, size, -1 if offset < 0 else offset,
                    self.in_memory)
                if res > 0:
                    self.writes += 1
                    operation = new_operation(self, None)
                    operation.res = res
                    operation.stage = ENDED
                    return operation
                if res != -EAGAIN:
                    self.writes_cached = False
        return self.prepare_write(data, skip, offset)

    cdef FileOperation prepare_write(self, object data, Py_ssize_t skip, int64_t offset):
        cdef FileOperation operation = new_operation(self, data)
        self.writes += 1
        io_uring_prep_write(
            &operation.request, self.fd, start_of(data) + skip,
            <unsigned int>min(len(data) - skip, REQUEST_MAX),
            <uint64_t>-1 if offset < 0 else offset)
        if self._regular:
            operation.op.policy |= RUN_WAITS
        if self._regular and not self._appending and offset >= 0:
            operation.traits |= IDEMPOTENT
        return operation

    # ── the descriptor's position ─────────────────────────────────────────────────────────────────

    cdef int64_t position(self) except? -1:
        cdef int64_t position = lseek(self.fd, 0, SEEK_CUR)
        if position < 0:
            raise self.failure(-errno)
        return position

    cdef int move_to(self, int64_t position) except -1:
        if lseek(self.fd, position, SEEK_SET) < 0:
            raise self.failure(-errno)
        return 0

    cdef bint move_back(self, int64_t size) noexcept:
        """Move the position back by *size* bytes that were read last; return whether it did.

        A forked child that clears away its parent's read must not move the position they share.
        """
        return self.process == PROCESS and lseek(self.fd, -size, SEEK_CUR) >= 0

    cdef int move_past(self, FileOperation operation) except -1:
        """Move the position past the bytes that the operation of a read has returned.

        Bytes that came from the page cache have moved it already.
        """
        if self.reads_at_offset and operation.res > 0:
            self.move_to(operation.request.off + operation.res)
        return 0

    # ── results ───────────────────────────────────────────────────────────────────────────────────

    cdef object failure(self, int res):
        """Build the OSError for *res*, with the file's name if it was opened by one."""
        reason = strerror(-res).decode("utf-8", "replace")
        cdef object name = self.name
        if isinstance(name, int):
            return OSError(-res, reason)
        return OSError(-res, reason, name)

    cdef object result_of(self, FileOperation operation):
        """Return the bytes that a read has returned, without the unused end of its buffer."""
        cdef Py_ssize_t count = self.count_of(operation)
        cdef PyObject *data = <PyObject*>operation.held
        Py_INCREF(operation.held)
        operation.held = None
        return shortened(data, count)

    cdef Py_ssize_t count_of(self, FileOperation operation) except -1:
        """Return the number of bytes transferred; raise the error only if there are none."""
        if operation.res < 0 and not operation.filled:
            raise self.failure(operation.res)
        return operation.filled + max(operation.res, 0)

    cdef Py_ssize_t written_of(self, FileOperation operation, Py_ssize_t before) except -1:
        if operation.res <= 0:
            # Report a write of 0 bytes as ENOSPC: repeating it might never end.
            exc = self.failure(operation.res or -ENOSPC)
            exc.characters_written = before
            raise exc
        return operation.res
