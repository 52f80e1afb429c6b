"""Declarations of at_epoll.h: how a ring ends a sleep in epoll_wait(2)."""

from libc.stdint cimport int64_t, uint64_t

from uringloop._kernel.epoll cimport epoll_event
from uringloop._ring.uring cimport uring


cdef extern from "_ring/at_epoll.h" nogil:
    int uring_join_epoll(uring *u, int epoll_fd, uint64_t data)
    void uring_leave_epoll(uring *u, int epoll_fd)
    int uring_sleep_at_epoll(
        uring *u, int epoll_fd, epoll_event *events, int size, int64_t timeout_ns)
