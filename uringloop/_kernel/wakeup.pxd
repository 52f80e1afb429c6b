"""Declarations of wakeup.h: the write that ends a loop's sleep from another thread."""


cdef extern from "_kernel/wakeup.h" nogil:
    void uring_wake(int fd)
