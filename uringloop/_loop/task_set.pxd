"""asyncio's set of all tasks, with compiled methods."""

cimport cython


@cython.final
cdef class TaskSet:
    cdef object tasks           # asyncio's WeakSet, for ever
    # The set's own fields, which it never replaces.
    cdef set references         # weak references to the tasks
    cdef set iterating          # those who iterate over the set; meanwhile nothing is removed
    cdef list pending           # references that are removed afterwards
    cdef object stock_remove    # the callback of the WeakSet's own references
    # Bound methods of this object: `add` of the set, and the callback of its references.
    cdef object add_method
    cdef object remove_method

    cdef int install(self) except -1
    cdef int uninstall(self) except -1
