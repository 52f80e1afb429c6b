"""Parts of the standard library that compiled code replaces, and their switches."""

cimport cython


cdef enum:
    BIO_MEMORY = 1          # memory lent to MemoryBIOs, in place of copies
    STREAM_READER = 2       # direct writes to a StreamReader's buffer, in place of feed_data()
    SOCKET_SLOTS = 4        # a socket's fields at their offsets, in place of attributes
    KEPT_BYTES = 8          # bytes objects that are written again, in place of new ones
    TASK_SET = 16           # compiled methods of the set of all tasks, in place of WeakSet's
    JOB_QUEUE = 32          # a compiled queue of the default executor, in place of SimpleQueue


@cython.final
cdef class Original:
    cdef object places      # the names of the owner
    cdef str name
    cdef object function
    cdef object code        # of a function in Python, else None
    cdef bint was_own       # the standard library had defined it

    cpdef bint is_in_place(self) except -1

cdef bint uses(unsigned int part) noexcept
cdef int add_io_refs(object sock, Py_ssize_t change) except -1
cdef bint is_closed(object sock) except -1
