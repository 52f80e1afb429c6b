"""An open file: its descriptor, with calls at an offset and at the descriptor's position."""

from libc.stdint cimport int64_t

from uringloop.files.requests cimport FileRequests
from uringloop.files.scheduling cimport CallLock


cdef class OpenFile(FileRequests):
    cdef public CallLock _lock      # without which no call begins
    cdef readonly bint closefd
    cdef readonly bint _readable
    cdef readonly bint _writable
    cdef readonly unsigned int _block_size
    cdef bint local                 # neither a network server nor a FUSE process serves it
    cdef unsigned int synced        # the count of `writes` that the last sync covers
    cdef readonly Py_ssize_t _written  # bytes that the last _write_all has written
    cdef object unread_bytes        # a view of bytes that cannot be unread by a seek, or None

    cdef int go_to_end(self, int fd, int64_t size) except -1
    cdef int check_writable(self) except -1
    cdef int64_t start_of_read(self, object offset) except -1
    cdef int64_t start_of_write(self, object offset) except -1
    cdef unsigned int writes_done(self) noexcept
    cdef int note_written(self, Py_ssize_t count, Py_ssize_t size, int64_t position) except -1
