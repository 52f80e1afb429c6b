"""What is kept for which descriptor: a transport, or the callbacks that watch it."""

cimport cython
from cpython.object cimport PyObject


@cython.final
cdef class FdTable:
    cdef PyObject **table       # by descriptor, borrowed; the array is freed by the destructor
    cdef int size               # entries of the array

    cdef inline PyObject *at(self, int fd) noexcept:
        """Return what is kept for *fd*, borrowed, or NULL."""
        return self.table[fd] if 0 <= fd < self.size else NULL

    cdef bint has(self, int fd) noexcept
    cdef object get(self, object fd)
    cdef int add(self, int fd, PyObject *kept) except -1
    cdef void forget(self, int fd) noexcept
