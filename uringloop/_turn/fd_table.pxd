"""Which transport owns which descriptor."""

cimport cython
from cpython.object cimport PyObject


@cython.final
cdef class FdTable:
    cdef PyObject **table       # by descriptor, borrowed; the array is freed by the destructor
    cdef int size               # entries of the array

    cdef bint has(self, int fd) noexcept
    cdef object get(self, object fd)
    cdef int add(self, int fd, PyObject *transport) except -1
    cdef void forget(self, int fd) noexcept
