"""Lends memory to MemoryBIOs of the `ssl` module (membio.h)."""


cdef extern from "_cpython/membio.h":
    ctypedef struct membio_memory:
        size_t length
        char *data
        size_t max
        unsigned long flags

    bint membio_find(object type, const char *path)
    Py_ssize_t membio_pending(object bio)
    Py_ssize_t membio_unread(object bio, char **start)
    membio_memory *membio_memory_of(object bio)
    void membio_show(membio_memory *lent, const char *data, Py_ssize_t size)
    membio_memory *membio_borrow(object bio)
    void membio_give_back(object bio)
    void membio_lend(object bio, membio_memory *lent)
    void membio_return(object bio, membio_memory *own)
