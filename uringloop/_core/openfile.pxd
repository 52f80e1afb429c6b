"""An open file: its descriptor, and what is done with it at an offset or where it stands."""

from libc.stdint cimport int64_t

from uringloop._core.fileops cimport FileOperation, InFlight
from uringloop._core.loop cimport LoopCore


cdef class OpenFile(InFlight):
    cdef int fd                     # -1 once it is closed
    cdef public object name         # what was opened: a path or a descriptor
    cdef readonly bint closefd
    cdef readonly bint _readable
    cdef readonly bint _writable
    cdef readonly bint _appending
    cdef readonly bint _seekable
    cdef readonly bint _regular     # a file of a file system, whose reads end by themselves
    cdef readonly unsigned int _block_size
    cdef bint reads_cached          # the file system reads its page cache without waiting
    cdef bint writes_cached         # the same for writes
    cdef bint local                 # no server and no process is asked about it
    cdef bint in_memory             # and there is no disk to wait for
    cdef unsigned int writes        # that have been begun, and how many of them
    cdef unsigned int synced        # were known to be done when it was last synced
    cdef readonly Py_ssize_t _moved  # bytes that the last _fill or _drain has moved
    cdef bytes stray                # what a cancelled read has taken from a stream

    cdef int check_open(self) except -1
    cdef int check(self, bint able, str message) except -1
    cdef int check_at(self, bint able, str message, int64_t offset) except -1
    cdef object failure(self, int res)
    cdef FileOperation reading(self, object target, Py_ssize_t size, int64_t offset)
    cdef unsigned int writes_done(self) noexcept
    cdef bint has_to_wait(self, Py_ssize_t size) except -1
    cdef int take_cached(self, FileOperation operation) except -1
    cdef FileOperation writing(self, object data, Py_ssize_t skip, int64_t offset)
    cdef FileOperation request_to_write(self, object data, Py_ssize_t skip, int64_t offset)
    cdef int64_t position(self) except? -1
    cdef int move_to(self, int64_t position) except -1
    cdef int note_written(self, Py_ssize_t count, int64_t position) except -1
    cdef object result_of(self, FileOperation operation)
    cdef Py_ssize_t count_of(self, FileOperation operation) except -1
    cdef Py_ssize_t written_of(self, FileOperation operation, Py_ssize_t before) except -1
