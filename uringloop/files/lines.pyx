"""Fast paths of files: lines out of the bytes or text read ahead, and buffered writes.

A line that was read ahead is returned, and a write that fits the buffer is copied there, in one
call. Everything else is done by the Python subclasses in binary.py and text.py. Nothing here waits,
and every fast path ends when the turn has no time left for files.
"""

import asyncio
import inspect

cimport cython
from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongAndOverflow
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t
from libc.string cimport memchr, memcpy

from uringloop._cpython.awaitables cimport (
    PYGEN_RETURN,
    call_no_args,
    forget_result,
    inherit_anext,
    set_send,
    set_step,
    spare_stop,
    stop_with,
)
from uringloop._cpython.pyapi cimport (
    FREE_THREADED,
    PyBytes_New,
    PyUnicode_FindChar,
    PyUnicode_Substring,
)
from uringloop.files.calls cimport LATER, CallKind, new_call, new_kind
from uringloop.files.memory cimport shortened
from uringloop.files.open_file cimport OpenFile
from uringloop.files.operation cimport SLICE_BYTES
from uringloop.files.scheduling cimport CallLock, FilesOfLoop
from uringloop._kernel.errors cimport EAGAIN
from uringloop._kernel.files cimport SEEK_CUR, SEEK_SET, lseek, uring_read_cached
from uringloop._ring.ring cimport PROCESS

from uringloop.files.positions import Chunk


cdef enum:
    # After so many lines or bytes, whichever comes first, the clock is looked at again.
    LINES_MAX = 64
    LINE_BYTES_MAX = 16 * 1024
    # After a seek the program may seek again. So a read of at least SPARSE_READ_BYTES reads nothing
    # ahead, and a smaller one reads at most SOUGHT_READ_BYTES, fewer than later reads.
    SPARSE_READ_BYTES = 2048
    SOUGHT_READ_BYTES = 8192
    # A call that has waited for this turn reads this much even if other files have used up the
    # turn's time. If they have not, it reads at most SLICE_BYTES.
    AT_ONCE_BYTES = 16 * 1024
    # A call that needs more bytes of text than this decodes a part of them in each turn.
    TEXT_BYTES_MAX = 32 * 1024
cpdef enum:
    # The bytes that built-in text files decode at once. Programs that read and write the same file
    # can observe this size.
    CHUNK_BYTES = 8192
# The sum of two such offsets fits an int64.
cdef int64_t OFFSET_MAX = 1 << 61

cdef bytes NOTHING = b""


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
        # Only programs that call this by name get here: the interpreter calls `ready_line_step`.
        raise StopIteration(take_line(self))

    def __dealloc__(self):
        cdef CallLock lock
        forget_result()
        if self.line is None:
            return
        lock = self.text._lock if self.file is None else self.file._lock
        # The line is lost if another thread is using the file.
        if FREE_THREADED and not lock.add_call():
            return
        if self.file is not None and self.file._start == self.end:
            self.file._start -= len(self.line)
        elif self.text is not None and self.text._used == self.end:
            self.text._used -= len(self.line)
        lock.leave()


cdef PyObject *ready_line_step(PyObject *step) noexcept:
    stop_with(take_line(<ReadyLine>step))
    return NULL


cdef int ready_line_send(PyObject *step, PyObject *value, PyObject **result) noexcept:
    line = take_line(<ReadyLine>step)
    Py_INCREF(line)
    result[0] = <PyObject*>line
    return PYGEN_RETURN


cdef object take_line(ReadyLine ready):
    with cython.critical_section(ready):
        line = ready.line
        ready.line = None
    return line


spare_stop = call_no_args(StopIteration)
set_step(ReadyLine, ready_line_step)
set_send(ReadyLine, ready_line_send)


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
            if not self.can_read() or self._lock.locked:
                return None
            end = self.end_of_line()
            return None if end == 0 or self._lock.is_spent() else self.take_until(end)
        finally:
            self._lock.leave()

    cdef bint can_read(self) noexcept:
        """Return whether a read is allowed, and need not write first."""
        return self.fd >= 0 and self._readable and not PyByteArray_GET_SIZE(self._pending)

    cdef bytes take_until(self, Py_ssize_t end):
        """Return the bytes read ahead up to the index *end*."""
        cdef Py_ssize_t start = self._start
        self._start = end
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(self._ahead) + start, end - start)

    def __anext__(self):
        line = self.next_line()
        if line is not None:
            return ready_line(line, self, None, self._start)
        return new_call(self, self._lock, NEXT_LINE, None, None)

    @cython.binding(True)
    def read(self, size=-1):
        return new_call(self, self._lock, READ, size, None)

    @cython.binding(True)
    def readline(self, size=-1):
        return new_call(self, self._lock, READLINE, size, None)

    @cython.binding(True)
    def seek(self, offset, whence=SEEK_SET):
        return new_call(self, self._lock, SEEK, offset, whence)

    @cython.binding(True)
    def tell(self):
        return new_call(self, self._lock, TELL, None, None)

    @cython.binding(True)
    def write(self, data):
        """Buffer *data*, or write it; *data* must not change before the call has ended."""
        return new_call(self, self._lock, WRITE, data, None)

    cdef int fill(self, Py_ssize_t size) except -1:
        """Append up to *size* bytes from the page cache to the unread ones.

        Returns whether it read *size* bytes, or all that the file has.
        """
        cdef Py_ssize_t unread = PyBytes_GET_SIZE(self._ahead) - self._start
        cdef PyObject *data
        cdef ssize_t count
        cdef int rest = 0
        if not self.reads_at_once(size):
            return False
        data = PyBytes_New(NULL, unread + size)
        memcpy(
            PyBytes_AS_STRING(<object>data), PyBytes_AS_STRING(self._ahead) + self._start, unread)
        count = self.read_cached(PyBytes_AS_STRING(<object>data) + unread, size, &rest)
        self._ahead = shortened(data, unread + count)
        self._start = 0
        return rest == 0

    cdef bint reads_at_once(self, Py_ssize_t size) except -1:
        """Return whether *size* bytes may be read here and now, if they are in the page cache."""
        cdef FilesOfLoop files = self._lock.files
        if not self.reads_cached or self.unread_bytes is not None:
            return False
        if files is None or files.reproducible:
            return False
        return size <= AT_ONCE_BYTES or size <= SLICE_BYTES and not self._lock.is_spent()

    cdef ssize_t read_cached(self, char *data, Py_ssize_t size, int *rest) noexcept:
        """Read what is in the page cache at the descriptor's position; see uring_read_cached."""
        cdef ssize_t count = uring_read_cached(self.fd, data, size, -1, self.in_memory, rest)
        self.process = PROCESS
        self.reads_cached = rest[0] in (0, -EAGAIN)
        self.sought = False
        return count

    cdef object read_at_once(self, Py_ssize_t size):
        cdef Py_ssize_t have = PyBytes_GET_SIZE(self._ahead) - self._start
        cdef Py_ssize_t missing = size - have
        cdef Py_ssize_t room = self._buffer_size
        if missing > 0:
            if missing >= room or self.sought and missing >= SPARSE_READ_BYTES:
                return self.read_directly(size)
            if not self.fill(min(room, SOUGHT_READ_BYTES) if self.sought else room):
                return LATER
            size = min(size, PyBytes_GET_SIZE(self._ahead))
        return self.take_until(self._start + size)

    cdef object read_directly(self, Py_ssize_t size):
        """Return *size* bytes, the unread ones first; read nothing beyond them."""
        cdef Py_ssize_t unread = PyBytes_GET_SIZE(self._ahead) - self._start
        cdef PyObject *data
        cdef ssize_t count
        cdef int rest = 0
        if not self.reads_at_once(size):
            return LATER
        data = PyBytes_New(NULL, size)
        memcpy(
            PyBytes_AS_STRING(<object>data), PyBytes_AS_STRING(self._ahead) + self._start, unread)
        count = self.read_cached(
            PyBytes_AS_STRING(<object>data) + unread, size - unread, &rest)
        result = shortened(data, unread + count)
        self._ahead = NOTHING if rest == 0 else result
        self._start = 0
        return result if rest == 0 else LATER

    cdef object line_at_once(self):
        cdef Py_ssize_t end = self.end_of_line()
        cdef Py_ssize_t size = self._buffer_size
        if end == 0:
            if not self.fill(size):
                return LATER
            end = self.end_of_line()
            if end == 0:
                if PyBytes_GET_SIZE(self._ahead) >= size:
                    return LATER
                end = PyBytes_GET_SIZE(self._ahead)
        return self.take_until(end)

    cdef object seek_at_once(self, int64_t offset, int whence):
        cdef Py_ssize_t unread = PyBytes_GET_SIZE(self._ahead) - self._start
        cdef int64_t here, target
        if unread:
            here = lseek(self.fd, 0, SEEK_CUR) - unread
            if here + unread < 0:
                return LATER
            target = offset if whence == SEEK_SET else here + offset
            if -self._start <= target - here <= unread:
                self._start += target - here
                return target
        target = lseek(self.fd, offset - unread if whence == SEEK_CUR else offset, whence)
        if target < 0:
            return LATER
        self._ahead = NOTHING
        self._start = 0
        self.sought = True
        return target

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
            if count >= LINES_MAX or size >= LINE_BYTES_MAX:
                count = size = 0
                if self._lock.is_spent():
                    break
        return length


# ── attempts of calls ─────────────────────────────────────────────────────────────────────────


cdef object attempt_read(object target, object first, object second):
    cdef LineFile file = <LineFile>target
    cdef int overflow = 0
    cdef long size
    if type(first) is not int or not file.can_read():
        return LATER
    size = PyLong_AsLongAndOverflow(first, &overflow)
    return LATER if size < 0 or overflow else file.read_at_once(size)


cdef object attempt_readline(object target, object first, object second):
    cdef LineFile file = <LineFile>target
    return file.line_at_once() if has_no_limit(first) and file.can_read() else LATER


cdef bint has_no_limit(object size) except -1:
    return size is None or type(size) is int and size < 0


cdef object attempt_next_line(object target, object first, object second):
    cdef LineFile file = <LineFile>target
    line = file.line_at_once() if file.can_read() else LATER
    if line is not LATER and not line:
        raise StopAsyncIteration
    return line


cdef object attempt_seek(object target, object first, object second):
    cdef LineFile file = <LineFile>target
    cdef int overflow = 0
    cdef long offset
    if type(first) is not int or type(second) is not int or second not in (SEEK_SET, SEEK_CUR):
        return LATER
    if file.fd < 0 or not file._seekable or PyByteArray_GET_SIZE(file._pending):
        return LATER
    offset = PyLong_AsLongAndOverflow(first, &overflow)
    if overflow or not -OFFSET_MAX <= offset <= OFFSET_MAX:
        return LATER
    return file.seek_at_once(offset, second)


cdef object attempt_tell(object target, object first, object second):
    cdef LineFile file = <LineFile>target
    cdef int64_t position = lseek(file.fd, 0, SEEK_CUR) if file.fd >= 0 else -1
    if position < 0:
        return LATER
    position -= PyBytes_GET_SIZE(file._ahead) - file._start
    return position + PyByteArray_GET_SIZE(file._pending)


cdef object attempt_write(object target, object first, object second):
    if type(first) is bytes and (<LineFile>target)._try_to_buffer(first):
        return PyBytes_GET_SIZE(first)
    return LATER


cdef CallKind READ = new_kind(attempt_read, "BufferedFile.read", "_read_checked", 1)
cdef CallKind READLINE = new_kind(attempt_readline, "BufferedFile.readline", "_readline", 1)
cdef CallKind NEXT_LINE = new_kind(attempt_next_line, "BufferedFile.__anext__", "_next_line", 0)
cdef CallKind SEEK = new_kind(attempt_seek, "BufferedFile.seek", "_seek_buffered", 2)
cdef CallKind TELL = new_kind(attempt_tell, "BufferedFile.tell", "_tell_buffered", 0)
cdef CallKind WRITE = new_kind(attempt_write, "BufferedFile.write", "_write", 1)


cdef class LineText:

    def __init__(self, LineFile buffer, newline):
        self.buffer = buffer
        self.newline = newline
        self._lock = buffer._lock
        self._chars = ""
        self._chunks = []

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
            if self.buffer.fd < 0 or self._lock.locked:
                return None
            end = self.end_of_line(self._used)
            return None if end == 0 or self._lock.is_spent() else self.take_until(end)
        finally:
            self._lock.leave()

    cdef str take_until(self, Py_ssize_t end):
        """Return the unread text up to the index *end*."""
        cdef Py_ssize_t start = self._used
        self._used = end
        return PyUnicode_Substring(self._chars, start, end)

    def __anext__(self):
        line = self.next_line()
        if line is not None:
            return ready_line(line, None, self, self._used)
        return new_call(self, self._lock, NEXT_TEXT_LINE, None, None)

    @cython.binding(True)
    def read(self, size=-1):
        return new_call(self, self._lock, READ_TEXT, size, None)

    @cython.binding(True)
    def readline(self, size=-1):
        return new_call(self, self._lock, READ_TEXT_LINE, size, None)

    cdef object line_at_once(self):
        cdef Py_ssize_t end = self.end_of_line(self._used)
        cdef Py_ssize_t unread = len(self._chars) - self._used
        if end == 0:
            # A last line without a line end is left to the coroutine.
            if not self.fetch_at_once(0):
                return LATER
            end = self.end_of_line(self._used + max(unread - 1, 0))
        return LATER if end == 0 else self.take_until(end)

    cdef object text_at_once(self, Py_ssize_t size):
        cdef Py_ssize_t missing = size - (len(self._chars) - self._used)
        if missing > 0:
            if not self.fetch_at_once(missing) or size > len(self._chars) - self._used:
                return LATER
        return self.take_until(self._used + size)

    # ── decoding ─────────────────────────────────────────────────────────────────────────────

    cdef Py_ssize_t bytes_wanted(self, Py_ssize_t least, Py_ssize_t chars) noexcept:
        # Decode more if much is unread, so that a long line is not copied over and over.
        cdef Py_ssize_t unread = len(self._chars) - self._used
        return max(least, unread, <Py_ssize_t>(max(self._bytes_per_char, 1.0) * chars))

    def _bytes_wanted(self, Py_ssize_t least, Py_ssize_t chars):
        """Return how many bytes to decode next: *least*, or more for *chars* characters."""
        return self.bytes_wanted(least, chars)

    cdef int fetch_at_once(self, Py_ssize_t chars) except -1:
        """Decode the bytes after the unread text if that does not have to wait.

        Returns False if it has to, or if they cannot be decoded; then nothing counts as read.
        """
        cdef LineFile buffer = self.buffer
        cdef Py_ssize_t size = self.bytes_wanted(CHUNK_BYTES, chars)
        if self._decoder is None or size > TEXT_BYTES_MAX or not buffer.can_read():
            return False
        if buffer._start < PyBytes_GET_SIZE(buffer._ahead):
            size = min(size, PyBytes_GET_SIZE(buffer._ahead) - buffer._start)
            data = buffer.take_until(buffer._start + size)
        else:
            data = buffer.read_directly(size)
            if data is LATER:
                return False
        state = self._decoder.getstate()
        try:
            text = self._decoder.decode(data, not data)
        except BaseException as exc:
            self._decoder.setstate(state)
            buffer._ahead = data + buffer._ahead[buffer._start:]
            buffer._start = 0
            if isinstance(exc, Exception):
                return False
            raise
        self._add_chunk(state, data, text)
        return True

    def _add_chunk(self, state, bytes data, str text):
        """Append *text*, which the decoder has made of *data*, beginning in *state*.

        Returns False at the end of the file, where both are empty.
        """
        held, flags = state
        while self._chunks and self._used >= self._chunks[0].chars:
            self.drop(self._chunks.pop(0).chars)
        if not self.buffer._seekable:
            self.drop(self._used)
        elif data or text or not self._chunks:
            self._chunks.append(Chunk(flags, held + data, len(data), len(text)))
        self._chars += text
        self._bytes_per_char = <double>len(data) / len(text) if text else 0.0
        return bool(data or text)

    cdef int drop(self, Py_ssize_t chars) except -1:
        self._chars = self._chars[chars:]
        self._used -= chars
        return 0

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
            if count >= LINES_MAX or size >= LINE_BYTES_MAX:
                count = size = 0
                if self._lock.is_spent():
                    break
        return length


cdef object attempt_text(object target, object first, object second):
    cdef LineText text = <LineText>target
    cdef int overflow = 0
    cdef long size
    if type(first) is not int or not text.buffer.can_read():
        return LATER
    size = PyLong_AsLongAndOverflow(first, &overflow)
    return LATER if size < 0 or overflow else text.text_at_once(size)


cdef object attempt_text_line(object target, object first, object second):
    cdef LineText text = <LineText>target
    return text.line_at_once() if has_no_limit(first) and text.buffer.can_read() else LATER


cdef object attempt_next_text_line(object target, object first, object second):
    cdef LineText text = <LineText>target
    return text.line_at_once() if text.buffer.can_read() else LATER


cdef CallKind READ_TEXT = new_kind(attempt_text, "TextFile.read", "_read_checked", 1)
cdef CallKind READ_TEXT_LINE = new_kind(attempt_text_line, "TextFile.readline", "_readline", 1)
cdef CallKind NEXT_TEXT_LINE = new_kind(
    attempt_next_text_line, "TextFile.__anext__", "_next_line", 0)


def declare_coroutines(*methods):
    """Have `iscoroutinefunction` return True for methods that return a FileCall."""
    for method in methods:
        if hasattr(inspect, "markcoroutinefunction"):
            inspect.markcoroutinefunction(method)
        else:
            # Python 3.11 has such a mark only for asyncio's function.
            method._is_coroutine = asyncio.coroutines._is_coroutine


declare_coroutines(
    LineFile.read, LineFile.readline, LineFile.seek, LineFile.tell, LineFile.write,
    LineText.read, LineText.readline)


def iterated_directly(cls):
    """Have `async for` call the compiled method of *cls*, a class that does not override it."""
    inherit_anext(cls, LineFile if issubclass(cls, LineFile) else LineText)
    return cls
