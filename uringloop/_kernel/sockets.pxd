"""Declarations of sockets.h: submissions of sockets, and the data of their completions."""

from libc.stdint cimport uint64_t

from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._kernel.libc cimport msghdr


cdef extern from "_kernel/sockets.h" nogil:
    void uring_set_user_data(io_uring_sqe *sqe, uint64_t user_data, unsigned int flags)
    void uring_prep_recv_multishot(io_uring_sqe *sqe, int fd, int group)
    bint uring_enable_inq(int fd)
    ssize_t uring_receive(int fd, void *data, size_t size)
    ssize_t uring_receive_counted(int fd, void *data, size_t size, int *left)
    int uring_peek(int fd)
    bint uring_was_reset(int fd)
    void uring_prep_recvmsg_multishot(io_uring_sqe *sqe, int fd, int group)
    enum:
        URING_CONTROL_ROOM
        URING_SEND_WHOLE
        URING_SEND_ONCE
    void io_uring_prep_send(
        io_uring_sqe *sqe, int fd, const void *data, size_t size, int flags)
    void io_uring_prep_sendmsg(
        io_uring_sqe *sqe, int fd, const msghdr *message, unsigned int flags)
    ssize_t uring_send_message(int fd, const msghdr *message, int flags)
    bint uring_may_accept(int fd)
    bint uring_may_send(int fd)
    void io_uring_prep_poll_add(io_uring_sqe *sqe, int fd, unsigned int mask)
    void io_uring_prep_poll_multishot(io_uring_sqe *sqe, int fd, unsigned int mask)
    void uring_prep_epoll_wait(io_uring_sqe *sqe, int epoll_fd, void *events, unsigned int size)
    void uring_prep_cancel(io_uring_sqe *sqe, uint64_t user_data)

    ctypedef struct uring_datagram:
        const char *name
        unsigned int name_size
        const char *control
        size_t control_size
        const char *data
        size_t data_size
        int flags

    bint uring_find_datagram(const char *buffer, int size, uring_datagram *found)
