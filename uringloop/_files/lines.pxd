"""Lines: cut out of what a file has read ahead, bytes or text."""

from uringloop._files.open_file cimport OpenFile
from uringloop._files.scheduling cimport Turns


cdef class LineFile(OpenFile):
    cdef public bytes _ahead        # read, and from _start on not yet given to anybody
    cdef public Py_ssize_t _start
    cdef public bytearray _pending  # still to be written; empty while there is something ahead
    cdef public Py_ssize_t _buffer_size
    cdef public Turns _turns

    cdef Py_ssize_t end_of_line(self) noexcept
    cdef bytes next_line(self)


cdef class LineText:
    cdef public LineFile buffer     # whose bytes are decoded
    cdef public str _chars          # decoded, and from _used on not yet given to anybody
    cdef public Py_ssize_t _used
    cdef public Turns _turns        # those of the buffer
    cdef str newline                # as of open(): None, "", or how lines end

    cdef Py_ssize_t end_of_line(self, Py_ssize_t start) except -1
    cdef str next_line(self)
