"""A table from descriptors to objects: an array indexed by descriptor.

The loop's table has the transports, the watchers' table has what add_reader() and add_writer()
registered. The references are borrowed: whatever is in a table removes itself before it goes. Only
the thread that runs the loop changes the loop's table; the watchers' table is changed in their
critical section.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from libc.string cimport memset

from uringloop._kernel.errors cimport EBADF, os_error


# A table that grows has room for at least this many entries beyond the new descriptor.
ROOM = 64


@cython.final
cdef class FdTable:

    def __dealloc__(self):
        PyMem_Free(self.table)

    cdef bint has(self, int fd) noexcept:
        return self.at(fd) != NULL

    cdef object get(self, object fd):
        """Return what is kept for *fd*, or None."""
        # *fd* is any integer; one that does not fit into a C int has no entry.
        return <object>self.table[<int>fd] if 0 <= fd < self.size and self.has(fd) else None

    cdef int add(self, int fd, PyObject *kept) except -1:
        cdef int size
        cdef PyObject **grown
        if fd < 0:
            raise os_error(-EBADF, "")
        if fd >= self.size:
            size = max(2 * self.size, fd + ROOM)
            grown = <PyObject**>PyMem_Realloc(self.table, size * sizeof(PyObject*))
            if grown == NULL:
                raise MemoryError
            memset(grown + self.size, 0, (size - self.size) * sizeof(PyObject*))
            self.table = grown
            self.size = size
        self.table[fd] = kept
        return 0

    cdef void forget(self, int fd) noexcept:
        if 0 <= fd < self.size:
            self.table[fd] = NULL
