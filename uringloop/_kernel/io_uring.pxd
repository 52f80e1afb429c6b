"""Declarations of io_uring.h: the interface of io_uring."""

from libc.stdint cimport uint64_t


cdef extern from "_kernel/io_uring.h" nogil:
    const char *URINGLOOP_LIBURING
    unsigned int URING_FEATURE_MIN_TIMEOUT
    unsigned int URING_FEATURE_NO_IOWAIT
    unsigned int URING_OP_FTRUNCATE
    unsigned int URING_OP_EPOLL_WAIT
    unsigned int IORING_OP_FSYNC
    unsigned int IORING_OP_LINKAT
    unsigned int IORING_OP_READ
    unsigned int IORING_OP_RENAMEAT
    unsigned int IORING_OP_WRITE

    unsigned int IORING_CQE_F_BUFFER
    unsigned int IORING_CQE_F_MORE
    unsigned int IORING_CQE_F_SOCK_NONEMPTY
    unsigned int IOSQE_CQE_SKIP_SUCCESS
    int IORING_CQE_BUFFER_SHIFT

    struct io_uring_sqe:
        unsigned char opcode
        uint64_t off
        unsigned int len
        uint64_t user_data

    struct io_uring_cqe:
        uint64_t user_data
        int res
        unsigned int flags

    struct io_uring_buf_ring:
        pass

    void io_uring_buf_ring_init(io_uring_buf_ring *buffers)
