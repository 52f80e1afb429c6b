"""The unread bytes of a stream: one received object as it is, or several joined.

Most reads take all that one receive has brought: they return that very object. Only bytes that are
added to others are copied. A program that asks for asyncio's private `_buffer` gets the bytearray,
and whatever it changes there changes the stream. The caller sees to it that one thread at a time
uses a buffer.
"""

from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.sequence cimport PySequence_DelSlice
from libc.string cimport memchr, memcpy, memmove

from uringloop._kernel.libc cimport memmem


cdef class ReadBuffer:

    cdef int join(self, const char *memory, Py_ssize_t size) except -1:
        """Append *size* bytes of *memory* to the unread bytes, in one object."""
        cdef Py_ssize_t unread = self.size()
        cdef bytearray joined
        cdef char *to
        if self.chunk is not None or self.joined is None:
            joined = PyByteArray_FromStringAndSize(NULL, unread + size)
            to = PyByteArray_AS_STRING(joined)
            if unread:
                memcpy(to, self.data(), unread)
            self.chunk = None
            self.joined = joined
            self.start = 0
        else:
            if self.start >= unread:
                # Moving the rest costs no more than reading what was before it.
                to = PyByteArray_AS_STRING(self.joined)
                memmove(to, to + self.start, unread)
                self.start = 0
            PyByteArray_Resize(self.joined, self.start + unread + size)
            to = PyByteArray_AS_STRING(self.joined) + self.start
        if size:
            memcpy(to + unread, memory, size)
        return 0

    cdef bytes take_copy(self, Py_ssize_t count):
        cdef bytes data
        if count == 0:
            return b""
        data = PyBytes_FromStringAndSize(self.data(), count)
        self.drop(count)
        return data

    cdef int drop(self, Py_ssize_t count) except -1:
        """Remove the first *count* unread bytes."""
        if count < self.size():
            if self.exposed:
                return PySequence_DelSlice(self.joined, 0, count)
            self.start += count
            return 0
        if self.is_kept():
            return PySequence_DelSlice(self.joined, 0, count)
        self.chunk = None
        self.joined = None
        self.start = 0
        self.exposed = False
        return 0

    cdef Py_ssize_t find(self, bytes separator, Py_ssize_t offset) noexcept:
        """Return the index of *separator* among the unread bytes from *offset* on, or -1."""
        cdef Py_ssize_t size = self.size() - offset
        cdef Py_ssize_t wanted = PyBytes_GET_SIZE(separator)
        cdef const char *first
        cdef const char *found
        if size < wanted:
            return -1
        first = self.data()
        if wanted == 1:
            found = <const char*>memchr(first + offset, PyBytes_AS_STRING(separator)[0], size)
        else:
            found = <const char*>memmem(
                first + offset, size, PyBytes_AS_STRING(separator), wanted)
        return -1 if found == NULL else found - first

    cdef bytearray as_bytearray(self):
        """Return the unread bytes in one bytearray, which has no other bytes."""
        if self.chunk is not None or self.joined is None:
            self.join(NULL, 0)
        elif self.start:
            PySequence_DelSlice(self.joined, 0, self.start)
            self.start = 0
        return self.joined

    cdef bytearray expose(self):
        """Return the bytearray of the unread bytes to a program, which may keep and change it."""
        self.as_bytearray()
        self.exposed = True
        return self.joined

    cdef int replace(self, bytearray joined) except -1:
        """Use a program's bytearray."""
        self.chunk = None
        self.joined = joined
        self.start = 0
        self.exposed = True
        return 0
