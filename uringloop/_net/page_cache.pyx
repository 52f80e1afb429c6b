"""Reading a file into the page cache, before sendfile(2) sends it from there.

sendfile(2) of bytes that are not in the page cache waits for the disk, and the loop would wait with
it. So a worker thread of the ring reads such bytes first. Only the cache matters: what the worker
has read is dropped, and so are errors, which sendfile(2) meets again. If the ring ends the read
early, as it does when it changes its thread, sendfile(2) waits for the disk.
"""

import contextlib
import os

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from uringloop._kernel.files cimport io_uring_prep_read, uring_is_cached, uring_leave_to_worker
from uringloop._kernel.io_uring cimport IORING_OP_READ, io_uring_sqe
from uringloop._ring.ring cimport (
    RUN_WAITS,
    WORKER_OWNS_MEMORY,
    Operation,
    is_used_elsewhere,
    operation_init,
)
from uringloop._turn.turn cimport LoopCore


@cython.final
@cython.no_gc_clear
cdef class ReadAhead:

    cdef int submit_read(self, int fd, unsigned long long offset) except -1:
        cdef io_uring_sqe *sqe
        if not self.loop.ring.workers_limited:
            self.loop.ring.limit_workers()
        sqe = self.loop.ring.submission()
        io_uring_prep_read(
            sqe, fd, PyBytes_AS_STRING(self.memory),
            <unsigned int>PyBytes_GET_SIZE(self.memory), offset)
        uring_leave_to_worker(sqe)
        return self.loop.ring.start(sqe, &self.read_op)

    cdef int on_read(self) except -1:
        if self.loop.closed:
            # A worker may keep the operation alive, but must not keep the future alive.
            self.future = None
        elif not self.future.done():
            self.future.set_result(None)
        return 0

    cdef int finish(self) except -1:
        """Cancel the read if the call that waits for it ends first; do not wait for the cancel."""
        if not self.read_op.in_flight:
            return 0
        if is_used_elsewhere(self.loop.ring):
            # The garbage collector, which may run in any thread, destroys the call.
            self.loop.call_soon_threadsafe(self._finish)
            return 0
        return self.loop.ring.cancel(&self.read_op)

    def _finish(self):
        self.finish()


def has(int fd, int64_t offset, int64_t size):
    """Return whether *size* bytes at *offset* can be read without waiting for the disk."""
    return uring_is_cached(fd, offset, size)


async def read_ahead(LoopCore loop not None, int fd, int64_t offset, Py_ssize_t size):
    """Read *size* bytes at *offset* into the page cache, ignoring errors."""
    cdef ReadAhead reading
    if not loop.ring.does(IORING_OP_READ):
        await loop.run_in_executor(None, read_now, fd, offset, size)
        return
    reading = ReadAhead.__new__(ReadAhead)
    reading.loop = loop
    reading.memory = PyBytes_FromStringAndSize(NULL, size)
    reading.future = loop.new_future()
    operation_init(&reading.read_op, read_ahead_on_read, <PyObject*>reading)
    reading.read_op.policy = RUN_WAITS | WORKER_OWNS_MEMORY
    reading.submit_read(fd, offset)
    try:
        await reading.future
    finally:
        reading.finish()


def read_now(int fd, int64_t offset, Py_ssize_t size):
    """Do what `read_ahead` does, in a thread."""
    with contextlib.suppress(OSError):
        os.pread(fd, size, offset)


cdef int read_ahead_on_read(Operation *op, int res, unsigned int flags) except -1:
    return (<ReadAhead>op.owner).on_read()
