"""Declarations of epoll, from the C library."""

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
        EPOLL_CTL_MOD
        EPOLLET
        EPOLLEXCLUSIVE
        EPOLLIN
        EPOLLOUT

    ctypedef union epoll_data_t:
        uint64_t u64

    struct epoll_event:
        uint32_t events
        epoll_data_t data

    int epoll_create1(int flags)
    int epoll_ctl(int epoll_fd, int operation, int fd, epoll_event *event)


cdef extern from "_kernel/compat.h" nogil:
    int uring_epoll_wait(int epoll_fd, epoll_event *events, int size, int64_t timeout_ns)
