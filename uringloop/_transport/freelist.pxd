"""A free list of bytes objects, by size."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.string cimport memcpy

from uringloop._cpython.pyapi cimport PyBytes_New, take_bytes


cdef enum:
    # Python's allocator is as fast for smaller objects; no stream receives larger ones.
    SPARE_SIZE_MIN = 480
    SPARE_SIZE_MAX = 256 * 1024


cdef inline bytes bytes_of(const char *memory, Py_ssize_t size):
    """Return a bytes object with a copy of *size* bytes of *memory*."""
    cdef PyObject *made
    if size < SPARE_SIZE_MIN or size > SPARE_SIZE_MAX:
        return PyBytes_FromStringAndSize(memory, size)
    made = from_shelf(size)
    memcpy(PyBytes_AS_STRING(<bytes>made), memory, size)
    return take_bytes(made)


cdef inline void offer(bytes data) noexcept:
    """Put *data* on the free list if the caller holds the only reference."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    if SPARE_SIZE_MIN <= size <= SPARE_SIZE_MAX:
        to_shelf(data, size)


cdef inline PyObject *bytes_for(Py_ssize_t size) except NULL:
    """Return a new reference to a bytes object of *size* bytes, which the caller fills."""
    if size < SPARE_SIZE_MIN or size > SPARE_SIZE_MAX:
        return PyBytes_New(NULL, size)
    return from_shelf(size)


cdef PyObject *from_shelf(Py_ssize_t size) except NULL
cdef void to_shelf(bytes data, Py_ssize_t size) noexcept
