"""A free list of bytes objects, by size."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.string cimport memcpy

from uringloop._cpython.pyapi cimport PyBytes_New, take_bytes


cdef enum:
    # Python's allocator is as fast for smaller objects; no stream receives larger ones.
    SPARE_SIZE_MIN = 480
    SPARE_SIZE_MAX = 256 * 1024
    # 16 sizes; for each as many objects as a batch of completions needs, but at most 256 KiB.
    SHELVES = 16
    SHELF_ROOM = 24
    SHELF_BYTES = 256 * 1024


cdef struct Shelf:
    Py_ssize_t size              # of each object on the shelf
    int count
    PyObject *items[SHELF_ROOM]  # owned


@cython.final
cdef class FreeList:
    cdef Shelf shelves[SHELVES]

    cdef inline bytes copy(self, const char *memory, Py_ssize_t size):
        """Return a bytes object with a copy of *size* bytes of *memory*."""
        cdef PyObject *made
        if size < SPARE_SIZE_MIN or size > SPARE_SIZE_MAX:
            return PyBytes_FromStringAndSize(memory, size)
        made = self._take(size)
        memcpy(PyBytes_AS_STRING(<bytes>made), memory, size)
        return take_bytes(made)

    cdef inline PyObject *make(self, Py_ssize_t size) except NULL:
        """Return a new reference to a bytes object of *size* bytes, which the caller fills."""
        if size < SPARE_SIZE_MIN or size > SPARE_SIZE_MAX:
            return PyBytes_New(NULL, size)
        return self._take(size)

    cdef inline void offer(self, bytes data) noexcept:
        """Keep *data* if the caller holds the only reference."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if SPARE_SIZE_MIN <= size <= SPARE_SIZE_MAX:
            self._keep(data, size)

    cdef void clear(self) noexcept
    cdef PyObject *_take(self, Py_ssize_t size) except NULL
    cdef void _keep(self, bytes data, Py_ssize_t size) noexcept
    cdef inline Shelf *_shelf_of(self, Py_ssize_t size) noexcept:
        return &self.shelves[(size ^ size >> 4) & (SHELVES - 1)]
