"""Declarations of wakeup.h: how another thread ends a loop's sleep."""


cdef extern from "_kernel/wakeup.h" nogil:
    int uring_new_wake_fd()
    void uring_wake(int fd)
