"""Reads and writes of an open file: from and to the page cache at once, else on the ring."""

from libc.stdint cimport int64_t

from uringloop.files.operation cimport Descriptor, FileOperation


cdef class FileRequests(Descriptor):
    cdef object opened              # what was opened: a path or a descriptor
    cdef readonly bint _appending
    cdef readonly bint _seekable
    cdef bint reads_at_offset       # reads take an offset, and then do not move the position
    cdef bint writes_at_offset      # the same for writes
    cdef readonly bint _regular     # a regular file: its reads and writes wait for no peer
    cdef bint reads_cached          # the file system can read its page cache without waiting
    cdef bint writes_cached         # the same for writes
    cdef bint in_memory             # there is no disk to wait for
    cdef unsigned int writes        # the number of writes that were started
    cdef unsigned int process       # the process that has started the newest read

    cdef FileOperation start_read(
        self, object target, Py_ssize_t skip, Py_ssize_t size, int64_t offset)
    cdef int take_cached(self, FileOperation operation) except -1
    cdef bint has_to_wait(self, Py_ssize_t size) except -1
    cdef FileOperation start_write(self, object data, Py_ssize_t skip, int64_t offset)
    cdef FileOperation prepare_write(self, object data, Py_ssize_t skip, int64_t offset)
    cdef int64_t position(self) except? -1
    cdef int move_to(self, int64_t position) except -1
    cdef bint move_back(self, int64_t size) noexcept
    cdef int move_past(self, FileOperation operation) except -1
    cdef object failure(self, int res)
    cdef object result_of(self, FileOperation operation)
    cdef Py_ssize_t count_of(self, FileOperation operation) except -1
    cdef Py_ssize_t written_of(self, FileOperation operation, Py_ssize_t before) except -1
