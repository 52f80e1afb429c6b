"""An open file: its descriptor, and what is done with it at an offset or where it stands."""

from libc.stdint cimport int64_t

from uringloop._files.requests cimport FileRequests


cdef class OpenFile(FileRequests):
    cdef readonly bint closefd
    cdef readonly bint _readable
    cdef readonly bint _writable
    cdef readonly unsigned int _block_size
    cdef bint local                 # no server and no process is asked about it
    cdef unsigned int synced        # how many of its writes were done when it was last synced
    cdef readonly Py_ssize_t _moved  # bytes that the last _fill or _drain has moved
    cdef object stray               # a view of what cancelled reads have taken from a stream

    cdef int go_to_end(self, int fd, int64_t size) except -1
    cdef int check(self, bint able, str message) except -1
    cdef int64_t start_at(self, object offset, bint able) except -1
    cdef unsigned int writes_done(self) noexcept
    cdef int note_written(self, Py_ssize_t count, Py_ssize_t size, int64_t position) except -1
