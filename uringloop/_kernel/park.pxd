"""Declarations of park.h: how a thread waits until another one wakes it."""


cdef extern from "_kernel/park.h" nogil:
    void uring_park(int *woken)
    void uring_unpark(int *woken)
