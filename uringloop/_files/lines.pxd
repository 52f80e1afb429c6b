"""Fast paths of files: lines out of the bytes or text read ahead, and buffered writes."""

from uringloop._files.open_file cimport OpenFile
from uringloop._files.scheduling cimport CallLock


cdef class LineFile(OpenFile):
    cdef public bytes _ahead        # bytes read ahead; those from _start on are unread
    cdef public Py_ssize_t _start
    cdef public bytearray _pending  # bytes to be written; empty while _ahead is not
    cdef public Py_ssize_t _buffer_size

    cdef Py_ssize_t end_of_line(self) noexcept
    cdef bytes next_line(self)
    cdef bytes cut_line(self)
    cdef bint buffered_at_once(self, bytes data) except -1


cdef class LineText:
    cdef readonly LineFile buffer   # the binary file that is decoded
    cdef public str _chars          # decoded text; that from _used on is unread
    cdef public Py_ssize_t _used
    cdef public CallLock _lock      # the buffer's
    cdef str newline                # as for open(): None, "", or the line end

    cdef Py_ssize_t end_of_line(self, Py_ssize_t start) except -1
    cdef str next_line(self)
    cdef str cut_line(self)
