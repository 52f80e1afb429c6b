/* Reads, writes and accepts that do not wait, whatever other owners of a file do with O_NONBLOCK.
 *
 * The flag belongs to the open file, which other processes may share: a shell, a child that has the
 * terminal or the pipe. Where the kernel has no call that never waits, a poll precedes the call.
 * The caller then releases the GIL, because the call waits if another owner is faster in between.
 */
#ifndef URINGLOOP_KERNEL_WAITS_H
#define URINGLOOP_KERNEL_WAITS_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "_kernel/compat.h"

static inline bool uring_is_nonblocking(int fd) {
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && flags & O_NONBLOCK;
}

/* Returns whether a call would not wait now; true also for a descriptor that is closed. */
static inline bool uring_is_ready(int fd, short events) {
    struct pollfd one = {.fd = fd, .events = events};

    return poll(&one, 1, 0) != 0;
}

static inline bool uring_is_kind(int fd, mode_t kind) {
    struct stat found;

    return fstat(fd, &found) == 0 && (found.st_mode & S_IFMT) == kind;
}

/* Read and write without waiting, like read(2) and writev(2). Pipes and sockets support that from
 * 6.4 on; FIFOs and terminals do not (seen on 6.18). */
static inline ssize_t uring_read_now(int fd, void *data, size_t size) {
    struct iovec part = {.iov_base = data, .iov_len = size};

    return preadv2(fd, &part, 1, -1, RWF_NOWAIT);
}

static inline ssize_t uring_write_now(int fd, const struct iovec *parts, int count) {
    return pwritev2(fd, parts, count, -1, RWF_NOWAIT);
}

/* Returns whether *error* says that the file, the kernel or a filter does not permit the two calls
 * above. If EPERM has another cause, the calls below report it, too. */
static inline bool uring_lacks_nowait(int error) {
    return error == EOPNOTSUPP || error == ENOSYS || error == EPERM;
}

/* Read and write by other calls, if the descriptor is ready. On a blocking file other than a socket
 * these may still wait, if another owner is faster. */
static inline ssize_t uring_read_if_ready(int fd, void *data, size_t size) {
    if (!uring_is_nonblocking(fd)) {
        if (!uring_is_ready(fd, POLLIN)) {
            errno = EAGAIN;
            return -1;
        }
        if (uring_is_kind(fd, S_IFSOCK))
            return recv(fd, data, size, MSG_DONTWAIT);
    }
    return read(fd, data, size);
}

/* A blocking pipe or terminal gets only as many bytes as it must have room for when it polls as
 * writable, which may be a single byte for a terminal. Other devices get all parts in one write,
 * because the size of a write may matter to them. */
static inline ssize_t uring_write_if_ready(int fd, const struct iovec *parts, int count) {
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    size_t room = 0;

    if (!uring_is_nonblocking(fd)) {
        if (!uring_is_ready(fd, POLLOUT)) {
            errno = EAGAIN;
            return -1;
        }
        if (uring_is_kind(fd, S_IFSOCK))
            return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (isatty(fd))
            room = 1;
        else if (uring_is_kind(fd, S_IFIFO))
            room = PIPE_BUF;
    }
    if (room == 0)
        return writev(fd, parts, count);
    return write(fd, parts->iov_base, parts->iov_len < room ? parts->iov_len : room);
}

/* Returns whether close(2) waits until the peer has all bytes, or a time has passed. */
static inline bool uring_lingers(int fd) {
    struct linger found = {0};
    socklen_t size = sizeof(found);

    return getsockopt(fd, SOL_SOCKET, SO_LINGER, &found, &size) == 0 && found.l_onoff &&
           found.l_linger > 0;
}

#endif
