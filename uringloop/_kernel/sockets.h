/* Submissions of sockets, and the data that comes with their completions.
 *
 * This file has only what liburing's helpers do not do. The operations of files are in files.h and
 * paths.h.
 */
#ifndef URINGLOOP_KERNEL_SOCKETS_H
#define URINGLOOP_KERNEL_SOCKETS_H

#include <liburing.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "_kernel/compat.h"
#include "_kernel/io_uring.h"

/* The room in front of each datagram in its buffer. The room for the address fits IPv4 and IPv6,
 * and is rounded up so that what follows is aligned. The room for ancillary data fits all that IP
 * tells about a datagram, except for the longest headers of options, and 253 descriptors, which are
 * as many as a message may pass on. Together with the header of 16 bytes these are 2048 bytes, so
 * the datagram begins on a cache line of its own, and most end on the same page. */
#define URING_NAME_ROOM 32
#define URING_CONTROL_ROOM 2000

/* Must be called last: the prep helpers do not set user_data, and may reset the flags. */
static inline void uring_set_user_data(struct io_uring_sqe *sqe, uint64_t user_data,
                                       unsigned flags) {
    sqe->flags |= flags;
    sqe->user_data = user_data;
}

/* Makes a receive take a buffer of *group*. Do not combine it with IORING_RECVSEND_POLL_FIRST: a
 * receive that polls before it tries misses a reset that is there already
 * (docs/decisions/0004-receiving.md). */
static inline void uring_select_buffer(struct io_uring_sqe *sqe, int group) {
    sqe->buf_group = (uint16_t)group;
    sqe->flags |= IOSQE_BUFFER_SELECT;
}

/* Waits for events of an epoll instance, and writes up to *size* of them to *events*. */
static inline void uring_prep_epoll_wait(struct io_uring_sqe *sqe, int epoll_fd, void *events,
                                         unsigned size) {
    io_uring_prep_nop(sqe);
    sqe->opcode = URING_OP_EPOLL_WAIT;
    sqe->fd = epoll_fd;
    sqe->addr = (uint64_t)(uintptr_t)events;
    sqe->len = size;
}

static inline void uring_prep_recv_multishot(struct io_uring_sqe *sqe, int fd, int group) {
    io_uring_prep_recv_multishot(sqe, fd, NULL, 0, 0);
    uring_select_buffer(sqe, group);
}

/* The kernel reads *message* during the submission. The message says how much room each buffer has
 * for the address and for ancillary data. In a buffer a header precedes these two, and the
 * datagram follows them. */
static inline void uring_prep_recvmsg_multishot(struct io_uring_sqe *sqe, int fd, int group) {
    static struct msghdr message = {.msg_namelen = URING_NAME_ROOM,
                                    .msg_controllen = URING_CONTROL_ROOM};

    io_uring_prep_recvmsg_multishot(sqe, fd, &message, 0);
    uring_select_buffer(sqe, group);
}

/* The flags of a send. With MSG_WAITALL the kernel continues a short send when the socket has room
 * again. URING_SEND_ONCE sends what there is room for now; MSG_WAITALL then makes a short send a
 * failure, and with CQE_SKIP_SUCCESS only a failure posts a completion. */
enum {
    URING_SEND_WHOLE = MSG_NOSIGNAL | MSG_WAITALL,
    URING_SEND_ONCE = URING_SEND_WHOLE | MSG_DONTWAIT,
};

/* Makes each receive report how much it leaves in the socket; returns false if that is
 * impossible. */
static inline bool uring_enable_inq(int fd) {
    int on = 1;

    return setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof(on)) == 0;
}

/* Calls sendmsg(2). Where a seccomp filter refuses that, sends the first part that is not empty
 * with send(2). */
static inline ssize_t uring_send_message(int fd, const struct msghdr *message, int flags) {
    ssize_t res = sendmsg(fd, message, flags);
    size_t i = 0;

    if (res >= 0 || !uring_is_forbidden(-errno) || message->msg_iovlen == 0)
        return res;
    while (i + 1 < message->msg_iovlen && message->msg_iov[i].iov_len == 0)
        i++;
    return send(fd, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len, flags);
}

/* Receives without waiting. Returns the number of bytes, 0 at EOF, or -errno. It gives the kernel
 * no room for control messages: the kernel would open a descriptor that a UNIX peer has sent, and
 * nothing would close it. */
static inline ssize_t uring_receive(int fd, void *data, size_t size) {
    ssize_t res = recv(fd, data, size, MSG_DONTWAIT);

    return res < 0 ? -errno : res;
}

/* Receives like uring_receive(), but takes 0.2 us longer, from a socket on which uring_enable_inq()
 * has succeeded. Sets *left* to the number of bytes that the socket still has, where a FIN counts
 * as one byte, or to -1 if a seccomp filter refuses recvmsg(2). */
static inline ssize_t uring_receive_counted(int fd, void *data, size_t size, int *left) {
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {.iov_base = data, .iov_len = size};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
        .msg_controllen = sizeof(control)};
    struct cmsghdr *head;
    ssize_t res = recvmsg(fd, &message, MSG_DONTWAIT);

    if (res < 0 && uring_is_forbidden(-errno)) {
        message.msg_controllen = 0;
        res = recv(fd, data, size, MSG_DONTWAIT);
    }
    if (res < 0)
        return -errno;
    *left = -1;
    head = CMSG_FIRSTHDR(&message);
    if (head != NULL && head->cmsg_level == IPPROTO_TCP && head->cmsg_type == TCP_CM_INQ)
        memcpy(left, CMSG_DATA(head), sizeof(*left));
    return res;
}

/* Returns 1 if a socket has bytes to receive, 0 at EOF, or -errno. */
static inline int uring_peek(int fd) {
    char byte;
    ssize_t res = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return res < 0 ? -errno : (int)res;
}

/* Returns whether a connection was in fact reset, although a receive returned 0 bytes. The kernel
 * reports an error only once, perhaps to a send that it retries and gives up. After a FIN, TCP_INQ
 * reports one unread byte; after a reset it reports none, and after shutdown(2) of the program's
 * own, whose state is another. */
static inline bool uring_was_reset(int fd) {
    uint8_t state = 0;
    socklen_t size = sizeof(state);
    char byte;
    int left = -1;

    return uring_enable_inq(fd) && uring_receive_counted(fd, &byte, 1, &left) == 0 && left == 0
        && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &state, &size) == 0 && state == TCP_CLOSE;
}

/* Returns whether a connection, or an error, waits at a listening socket. The poll takes 0.2 us. An
 * accept4(2) that finds none takes 2 us, because it first makes a socket and a file. */
static inline bool uring_may_accept(int fd) {
    struct pollfd one = {.fd = fd, .events = POLLIN};

    return poll(&one, 1, 0) != 0;
}

/* Returns whether a socket has room or an error, or is none. */
static inline bool uring_may_send(int fd) {
    struct pollfd one = {.fd = fd, .events = POLLOUT};

    return poll(&one, 1, 0) != 0;
}

static inline void uring_prep_cancel(struct io_uring_sqe *sqe, uint64_t user_data) {
    io_uring_prep_cancel64(sqe, user_data, 0);
}

/* ── datagrams ───────────────────────────────────────────────────────────────────────────────── */

/* The parts of a datagram in a buffer, which holds them. */
typedef struct uring_datagram {
    const char *name;
    unsigned name_size;
    const char *control;
    size_t control_size;
    const char *data;
    size_t data_size;
    int flags;
} uring_datagram;

/* Finds the parts of a datagram in a buffer that a multishot recvmsg has filled with *size* bytes.
 * Returns false if it holds no datagram. */
static inline bool uring_find_datagram(const char *buffer, int size, uring_datagram *found) {
    const struct io_uring_recvmsg_out *head = (const struct io_uring_recvmsg_out *)buffer;
    size_t before = sizeof(*head) + URING_NAME_ROOM + URING_CONTROL_ROOM;

    if (size < 0 || (size_t)size < before)
        return false;
    found->name = buffer + sizeof(*head);
    found->name_size = head->namelen < URING_NAME_ROOM ? head->namelen : URING_NAME_ROOM;
    found->control = found->name + URING_NAME_ROOM;
    found->control_size = head->controllen < URING_CONTROL_ROOM ? head->controllen
                                                                : URING_CONTROL_ROOM;
    found->data = buffer + before;
    found->data_size = (size_t)size - before;
    found->flags = (int)head->flags;
    return true;
}

#endif
