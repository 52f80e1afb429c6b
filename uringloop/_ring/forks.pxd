"""Declarations of forks.h: the rings that a forked child must not touch."""

from uringloop._ring.uring cimport uring


cdef extern from "_ring/forks.h" nogil:
    unsigned int uring_forks
    int uring_watch_forks()
    void uring_remember(uring *u)
    void uring_forget(uring *u)
    void uring_take_place(uring *u, const uring *fresh)
