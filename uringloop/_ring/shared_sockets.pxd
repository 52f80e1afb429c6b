"""Declarations of shared_sockets.h: listening sockets that several processes share."""

from libc.stdint cimport int64_t

from uringloop._ring.uring cimport uring


cdef extern from "_ring/shared_sockets.h" nogil:
    int64_t URING_SEARCH_NS
    int uring_open_accept_epoll(uring *u)
    void uring_close_accept_epoll(uring *u)
    void uring_move_accept_epoll(uring *fresh, uring *old)
    int uring_add_waker(uring *u, int fd)
    int uring_add_listener(uring *u, int fd)
    void uring_remove_listener(uring *u, int fd)
    int uring_requeue(uring *u, int fd)
    void uring_recover_wakeups(uring *u)
    int uring_reserve(uring *u)
    bint uring_use_reserve(uring *u)
    bint uring_is_crowded(int fd)
    void uring_mark_shared(int fd)
    bint uring_is_shared(int fd)
    int uring_poll_accept_epoll(uring *u, int64_t timeout_ns)
    void uring_sleep_in_ring(uring *u, bint sleeps_in_ring)
    int uring_sleep(uring *u, unsigned int wanted, int64_t least_ns, int64_t timeout_ns)
