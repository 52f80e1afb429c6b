"""Declarations of shared_sockets.h: listening sockets that other processes accept from, too."""


cdef extern from "_net/shared_sockets.h" nogil:
    bint uring_is_crowded(int fd)
    void uring_mark_shared(int fd)
    void uring_unmark_shared(int fd)
    bint uring_is_shared(int fd)
