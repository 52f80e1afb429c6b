"""Declarations of uring.h: the only way to a ring."""

from libc.stdint cimport int64_t, uint64_t


cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

    ssize_t writev(int fd, const iovec *vector, int count)


cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen

    struct sockaddr:
        pass

    int AF_INET
    int AF_INET6
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    int MSG_PEEK
    int MSG_TRUNC
    int SHUT_WR
    int getsockname(int fd, sockaddr *name, unsigned int *size)
    int getpeername(int fd, sockaddr *name, unsigned int *size)
    int setsockopt(int fd, int level, int option, const void *value, unsigned int size)
    int shutdown(int fd, int how)
    ssize_t recv(int fd, void *data, size_t size, int flags)
    ssize_t send(int fd, const void *data, size_t size, int flags)
    ssize_t sendto(
        int fd, const void *data, size_t size, int flags, const sockaddr *name,
        unsigned int name_size)
    ssize_t sendmsg(int fd, const msghdr *message, int flags)


cdef extern from "<netinet/in.h>" nogil:
    struct in_addr:
        pass

    struct in6_addr:
        pass

    struct sockaddr_in:
        unsigned short sin_family
        unsigned short sin_port
        in_addr sin_addr

    struct sockaddr_in6:
        unsigned short sin6_family
        unsigned short sin6_port
        unsigned int sin6_flowinfo
        in6_addr sin6_addr
        unsigned int sin6_scope_id

    unsigned short ntohs(unsigned short number)
    unsigned int ntohl(unsigned int number)


cdef extern from "<netinet/tcp.h>" nogil:
    int IPPROTO_TCP
    int TCP_NODELAY


cdef extern from "<arpa/inet.h>" nogil:
    const char *inet_ntop(int family, const void *address, char *text, unsigned int size)


cdef extern from "_kernel/uring.h" nogil:
    int64_t URING_FOREVER
    const char *URINGLOOP_LIBURING
    unsigned int URING_FEATURE_MIN_TIMEOUT
    unsigned int URING_FEATURE_NO_IOWAIT

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

    struct softring:
        pass

    struct uring:
        softring *soft
        uint64_t enters
        bint open
        bint enabled
        bint threaded
        bint inherited
        int doors_fd
        int knocked_fd
        bint away
        unsigned int naps
        bint rested
        uring *next

    int uring_open(uring *u, unsigned int sq_entries, unsigned int cq_entries)
    int uring_open_threaded(
        uring *u, unsigned int sq_entries, unsigned int cq_entries, unsigned int idle_ms, int cpu)
    int uring_open_soft(uring *u, unsigned int sq_entries, unsigned int cq_entries)
    int uring_open_successor(uring *u, const uring *old, bint soft)
    bint uring_is_forbidden(int res)
    int uring_enable(uring *u)
    void uring_leave_out(uring *u, bint no_iowait, bint min_wait)
    void uring_close(uring *u)

    unsigned int uring_pending(const uring *u)
    bint uring_has_task_work(const uring *u)
    bint uring_needs_enter(const uring *u)
    bint uring_has_overflow(const uring *u)
    int uring_submit_only(uring *u)
    unsigned int uring_room(const uring *u)
    int uring_submit(uring *u)
    bint uring_spin(uring *u, int64_t spin_ns)
    int uring_wait_batch(uring *u, unsigned int wanted, int64_t least_ns, int64_t timeout_ns)
    int uring_wait_more(uring *u, unsigned int more, int64_t timeout_ns)
    int uring_submit_and_look(uring *u, unsigned int expected)

    unsigned int uring_head(const uring *u)
    unsigned int uring_tail(const uring *u)
    io_uring_cqe *uring_completion(const uring *u, unsigned int index)
    void uring_consume(uring *u, unsigned int head)
    void uring_post(uring *u, uint64_t user_data, int res, unsigned int flags)

    unsigned int uring_sequence(const uring *u)
    bint uring_submitted(const uring *u, unsigned int sequence)
    io_uring_sqe *uring_get_submission(uring *u)
    io_uring_sqe *uring_move_submission(uring *to, const uring *source, unsigned int index)

    int uring_register_buffers(
        uring *u, io_uring_buf_ring *buffers, unsigned int entries, int group)
    void uring_give_buffer(
        io_uring_buf_ring *buffers, unsigned int entries, char *address, unsigned int size,
        unsigned int id)
    void io_uring_buf_ring_init(io_uring_buf_ring *buffers)
    void *uring_map(size_t size)

    int uring_limit_workers(uring *u, unsigned int bounded, unsigned int unbounded)
    int64_t uring_clock_ns()


cdef extern from "<sys/mman.h>" nogil:
    int munmap(void *address, size_t size)


cdef extern from "<sys/eventfd.h>" nogil:
    int EFD_CLOEXEC
    int EFD_NONBLOCK
    int eventfd(unsigned int value, int flags)
    int eventfd_write(int fd, unsigned long long value)


cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    ssize_t read(int fd, void *data, size_t size)
    ssize_t write(int fd, const void *data, size_t size)


cdef extern from "<poll.h>" nogil:
    unsigned int POLLIN
    unsigned int POLLOUT
    unsigned int POLLERR
    unsigned int POLLHUP
    unsigned int POLLNVAL
    unsigned int POLLRDHUP

    struct pollfd:
        int fd
        short events
        short revents

    int poll(pollfd *fds, unsigned long count, int timeout_ms)
