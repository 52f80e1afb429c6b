"""Bytes objects that nobody holds any more, for the next messages of their size."""

from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE


cdef enum:
    # Smaller ones come from Python's allocator; of larger ones there are few at a time.
    SPARE_SIZE_MIN = 480
    SPARE_SIZE_MAX = 4096


cdef inline bytes bytes_of(const char *memory, Py_ssize_t size):
    """Return *size* bytes of *memory* as an object."""
    if size < SPARE_SIZE_MIN or size > SPARE_SIZE_MAX:
        return PyBytes_FromStringAndSize(memory, size)
    return from_shelf(memory, size)


cdef inline void offer(bytes data) noexcept:
    """Keep *data* for the next message of its size, if only the caller holds it."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    if SPARE_SIZE_MIN <= size <= SPARE_SIZE_MAX:
        to_shelf(data, size)


cdef bytes from_shelf(const char *memory, Py_ssize_t size)
cdef void to_shelf(bytes data, Py_ssize_t size) noexcept
