"""Fast paths of files: lines out of the bytes or text read ahead, and buffered writes.

A line that was read ahead is returned, and a write that fits the buffer is copied there, in one
call. Everything else is done by the Python subclasses in binary.py and text.py. Nothing here waits,
and every fast path ends when the turn has no time left for files.
"""

cimport cython
from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.string cimport memchr, memcpy

from uringloop._cpython.pyapi cimport (
    FREE_THREADED,
    PyUnicode_FindChar,
    PyUnicode_Substring,
    set_step,
    stop_with,
)
from uringloop._files.open_file cimport OpenFile
from uringloop._files.scheduling cimport CallLock


# Lines or bytes, whichever comes first, that are cut between two looks at the clock.
LINES_MAX = 64
LINE_BYTES_MAX = 16 * 1024

cdef Py_ssize_t LINES = LINES_MAX
cdef Py_ssize_t LINE_BYTES = LINE_BYTES_MAX


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class ReadyLine:
    # The result of __anext__ for a line that was read ahead: awaiting it does not suspend. If it is
    # dropped before it is awaited, the line becomes unread again.
    cdef object line
    cdef LineFile file              # the source of the line: either `file` or `text`
    cdef LineText text
    cdef Py_ssize_t end             # the source's _start or _used after the line

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        # Makes the type an iterator; `set_step` replaces it by `ready_line_step`.
        raise StopIteration

    def __dealloc__(self):
        cdef CallLock lock
        if self.line is None:
            return
        lock = self.text._lock if self.file is None else self.file._lock
        # Dropped while another thread uses the file, the line is lost.
        if FREE_THREADED and not lock.add_call():
            return
        if self.file is not None and self.file._start == self.end:
            self.file._start -= len(self.line)
        elif self.text is not None and self.text._used == self.end:
            self.text._used -= len(self.line)
        lock.leave()


cdef PyObject *ready_line_step(PyObject *step) noexcept:
    cdef ReadyLine ready = <ReadyLine>step
    with cython.critical_section(ready):
        line = ready.line
        ready.line = None
    stop_with(StopIteration, line)
    return NULL


set_step(ReadyLine, ready_line_step)


cdef ReadyLine ready_line(object line, LineFile file, LineText text, Py_ssize_t end):
    cdef ReadyLine ready = ReadyLine.__new__(ReadyLine)
    ready.line = line
    ready.file = file
    ready.text = text
    ready.end = end
    return ready


cdef class LineFile(OpenFile):

    def __cinit__(self, *args, **options):
        self._ahead = b""
        self._pending = bytearray()

    cdef Py_ssize_t end_of_line(self) noexcept:
        """Return the index after the next line end that was read ahead, 0 if there is none."""
        cdef const char *data = PyBytes_AS_STRING(self._ahead)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self._ahead) - self._start
        cdef const char *end
        if size <= 0:
            return 0
        end = <const char*>memchr(data + self._start, c"\n", size)
        return 0 if end == NULL else end - data + 1

    cdef bytes next_line(self):
        """Return the next line if it was read ahead and the turn has time for it, else None."""
        self._lock.enter()
        try:
            return self.cut_line()
        finally:
            self._lock.leave()

    cdef bytes cut_line(self):
        cdef Py_ssize_t start = self._start
        cdef Py_ssize_t end
        if self.fd < 0 or not self._readable or self._pending or self._lock.locked:
            return None
        end = self.end_of_line()
        if end == 0 or self._lock.is_spent():
            return None
        self._start = end
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(self._ahead) + start, end - start)

    def __anext__(self):
        line = self.next_line()
        return self._next_line() if line is None else ready_line(line, self, None, self._start)

    async def readline(self, size=-1):
        line = self.next_line() if type(size) is int and size < 0 else None
        return await self._readline(size) if line is None else line

    async def write(self, data):
        """Buffer *data* or write it; it must not change before this returns."""
        if type(data) is bytes and self.buffered_at_once(data):
            return PyBytes_GET_SIZE(data)
        return await self._write_now(data)

    cdef bint buffered_at_once(self, bytes data) except -1:
        """Buffer *data* if no call is in progress, and the turn has time for it."""
        self._lock.enter()
        try:
            return (not self._lock.locked and not self._lock.is_spent()
                    and self._try_to_buffer(data))
        finally:
            self._lock.leave()

    async def _write_now(self, data):
        """Write *data* that `_try_to_buffer` refuses; the Python subclass implements this."""
        raise NotImplementedError

    def _try_to_buffer(self, bytes data):
        """Buffer *data*; return False if the file's state or a lack of room does not allow it."""
        cdef Py_ssize_t kept = PyByteArray_GET_SIZE(self._pending)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if self.fd < 0 or not self._writable or self._ahead or kept + size > self._buffer_size:
            return False
        PyByteArray_Resize(self._pending, kept + size)
        memcpy(PyByteArray_AS_STRING(self._pending) + kept, PyBytes_AS_STRING(data), size)
        return True

    def _cut_lines(self, list lines, Py_ssize_t length, Py_ssize_t limit):
        """Append whole lines that were read ahead, until *length* exceeds *limit* or time is up.

        Returns *length* plus the length of these lines. A *limit* of 0 or less means no limit.
        """
        cdef const char *data = PyBytes_AS_STRING(self._ahead)
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t end
        while not 0 < limit < length:
            end = self.end_of_line()
            if end == 0:
                break
            lines.append(PyBytes_FromStringAndSize(data + self._start, end - self._start))
            length += end - self._start
            size += end - self._start
            count += 1
            self._start = end
            if count >= LINES or size >= LINE_BYTES:
                count = size = 0
                if self._lock.is_spent():
                    break
        return length


cdef class LineText:

    def __init__(self, LineFile buffer, newline):
        self.buffer = buffer
        self.newline = newline
        self._lock = buffer._lock
        self._chars = ""

    cdef Py_ssize_t end_of_line(self, Py_ssize_t start) except -1:
        """Return the index after the first line end from *start* on, 0 if there is none."""
        cdef Py_ssize_t size = len(self._chars)
        cdef Py_ssize_t lf, cr
        if start >= size:
            return 0
        if self.newline is None:
            return PyUnicode_FindChar(self._chars, c"\n", start, size, 1) + 1
        if self.newline:
            lf = self._chars.find(self.newline, start)
            return lf + len(self.newline) if lf >= 0 else 0
        lf = PyUnicode_FindChar(self._chars, c"\n", start, size, 1)
        cr = PyUnicode_FindChar(self._chars, c"\r", start, lf if lf >= 0 else size, 1)
        if cr >= 0:
            return cr + (2 if cr + 1 == lf else 1)
        return lf + 1

    def _end_of_line(self, Py_ssize_t start):
        return self.end_of_line(start)

    cdef str next_line(self):
        """Return the next line if it was read ahead and the turn has time for it, else None."""
        self._lock.enter()
        try:
            return self.cut_line()
        finally:
            self._lock.leave()

    cdef str cut_line(self):
        cdef Py_ssize_t start = self._used
        cdef Py_ssize_t end
        if self.buffer.fd < 0 or self._lock.locked:
            return None
        end = self.end_of_line(start)
        if end == 0 or self._lock.is_spent():
            return None
        self._used = end
        return PyUnicode_Substring(self._chars, start, end)

    def __anext__(self):
        line = self.next_line()
        return self._next_line() if line is None else ready_line(line, None, self, self._used)

    async def readline(self, size=-1):
        line = self.next_line() if type(size) is int and size < 0 else None
        return await self._readline(size) if line is None else line

    def _cut_lines(self, list lines, Py_ssize_t length, Py_ssize_t limit):
        """Append whole lines that were read ahead, until *length* exceeds *limit* or time is up.

        Returns *length* plus the length of these lines. A *limit* of 0 or less means no limit.
        """
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t end
        while not 0 < limit < length:
            end = self.end_of_line(self._used)
            if end == 0:
                break
            lines.append(PyUnicode_Substring(self._chars, self._used, end))
            length += end - self._used
            size += end - self._used
            count += 1
            self._used = end
            if count >= LINES or size >= LINE_BYTES:
                count = size = 0
                if self._lock.is_spent():
                    break
        return length
