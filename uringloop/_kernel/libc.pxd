"""Declarations of the C library that Cython does not have."""


cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t    # a pointer on musl
    pthread_t pthread_self()
    int pthread_getcpuclockid(pthread_t thread, int *clock)


cdef extern from "<sched.h>" nogil:
    int sched_yield()


cdef extern from "<string.h>" nogil:
    void *memmem(const void *data, size_t size, const void *wanted, size_t wanted_size)


cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len


cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        void *msg_name
        unsigned int msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen

    struct cmsghdr:
        size_t cmsg_len
        int cmsg_level
        int cmsg_type

    struct sockaddr:
        pass

    int AF_INET
    int AF_INET6
    int AF_UNIX
    int AF_UNSPEC
    int MSG_CMSG_CLOEXEC
    int MSG_CTRUNC
    int MSG_DONTWAIT
    int MSG_ERRQUEUE
    int MSG_NOSIGNAL
    int MSG_PEEK
    int MSG_TRUNC
    int SHUT_WR
    int SOCK_DGRAM
    unsigned char *CMSG_DATA(cmsghdr *head)
    size_t CMSG_LEN(size_t size)
    size_t CMSG_SPACE(size_t size)
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
    unsigned int htonl(unsigned int number)


cdef extern from "_kernel/compat.h" nogil:
    int IPPROTO_UDP
    int UDP_GRO
    int UDP_SEGMENT


cdef extern from "<netinet/tcp.h>" nogil:
    int IPPROTO_TCP
    int TCP_NODELAY


cdef extern from "<arpa/inet.h>" nogil:
    int inet_pton(int family, const char *text, void *address)
    const char *inet_ntop(int family, const void *address, char *text, unsigned int size)


cdef extern from "<sys/mman.h>" nogil:
    int MADV_DONTNEED
    int madvise(void *address, size_t size, int advice)
    int munmap(void *address, size_t size)


cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    int getpagesize()


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
