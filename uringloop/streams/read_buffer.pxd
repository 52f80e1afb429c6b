"""The unread bytes of a stream."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport is_only_reference


cdef class ReadBuffer:
    # The unread bytes are those from `start` on, of `chunk` or, if that is None, of `joined`.
    cdef bytes chunk            # one receive; None if it is read, or bytes were added to it
    cdef bytearray joined       # several receives; None before the first need
    cdef Py_ssize_t start
    cdef bint exposed           # a program has `joined`: then `start` is 0, and `chunk` None

    cdef inline Py_ssize_t size(self) noexcept:
        """Return the number of unread bytes."""
        if self.chunk is not None:
            return PyBytes_GET_SIZE(self.chunk) - self.start
        return 0 if self.joined is None else PyByteArray_GET_SIZE(self.joined) - self.start

    cdef inline const char *data(self) noexcept:
        """Return where the unread bytes are; valid until the next change, if there are any."""
        if self.chunk is not None:
            return PyBytes_AS_STRING(self.chunk) + self.start
        return PyByteArray_AS_STRING(self.joined) + self.start

    cdef inline bint is_kept(self) noexcept:
        """Return whether a program has a reference to `joined`."""
        return self.exposed and not is_only_reference(<PyObject*>self.joined)

    cdef inline int append_object(self, bytes data) except -1:
        """Append *data*, which is kept as it is if nothing is unread."""
        if self.size() or self.exposed:
            return self.join(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        self.chunk = data
        self.joined = None
        self.start = 0
        return 0

    cdef inline bytes take(self, Py_ssize_t count):
        """Remove and return the first *count* unread bytes."""
        cdef bytes data
        if self.chunk is not None and self.start == 0 and PyBytes_GET_SIZE(self.chunk) == count:
            data = self.chunk
            self.chunk = None
            return data
        return self.take_copy(count)

    cdef int join(self, const char *memory, Py_ssize_t size) except -1
    cdef bytes take_copy(self, Py_ssize_t count)
    cdef int drop(self, Py_ssize_t count) except -1
    cdef Py_ssize_t find(self, bytes separator, Py_ssize_t offset) noexcept
    cdef bytearray as_bytearray(self)
    cdef bytearray expose(self)
    cdef int replace(self, bytearray joined) except -1
