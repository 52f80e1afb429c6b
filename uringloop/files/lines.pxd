"""Fast paths of files: lines out of the bytes or text read ahead, and buffered writes."""

from libc.stdint cimport int64_t

from uringloop.files.open_file cimport OpenFile
from uringloop.files.scheduling cimport CallLock


cdef class LineFile(OpenFile):
    cdef public bytes _ahead        # bytes read ahead; those from _start on are unread
    cdef public Py_ssize_t _start
    cdef public bytearray _pending  # bytes to be written; empty while _ahead is not
    cdef public Py_ssize_t _buffer_size

    cdef bint sought                # a seek dropped the bytes read ahead; nothing was read since

    cdef Py_ssize_t end_of_line(self) noexcept
    cdef bytes next_line(self)
    cdef bint can_read(self) noexcept
    cdef bytes take_until(self, Py_ssize_t end)
    cdef int fill(self, Py_ssize_t size) except -1
    cdef bint reads_at_once(self, Py_ssize_t size) except -1
    cdef ssize_t read_cached(self, char *data, Py_ssize_t size, int *rest) noexcept
    cdef object read_at_once(self, Py_ssize_t size)
    cdef object read_directly(self, Py_ssize_t size)
    cdef object line_at_once(self)
    cdef object seek_at_once(self, int64_t offset, int whence)


cdef class LineText:
    cdef readonly LineFile buffer   # the binary file that is decoded
    cdef public str _chars          # decoded text; that from _used on is unread
    cdef public Py_ssize_t _used
    cdef public CallLock _lock      # the buffer's
    cdef str newline                # as for open(): None, "", or the line end
    cdef public object _decoder     # None until the first read
    cdef public list _chunks        # whose text is in _chars, for tell(); empty if not seekable
    cdef public double _bytes_per_char  # of the last chunk; 0 if it had no text

    cdef Py_ssize_t end_of_line(self, Py_ssize_t start) except -1
    cdef str next_line(self)
    cdef str take_until(self, Py_ssize_t end)
    cdef object line_at_once(self)
    cdef object text_at_once(self, Py_ssize_t size)
    cdef Py_ssize_t bytes_wanted(self, Py_ssize_t least, Py_ssize_t chars) noexcept
    cdef int fetch_at_once(self, Py_ssize_t chars) except -1
    cdef int drop(self, Py_ssize_t chars) except -1
