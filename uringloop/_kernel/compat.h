/* Interfaces of the kernel that the C library at build time may lack: glibc 2.28 with the headers
 * of Linux 4.18, as in the images of manylinux_2_28, and musl before 1.2.5.
 *
 * A wheel for musl does not use the functions of musl 1.2.5 either, since an older musl may load
 * it. Every function sets errno, like those of the C library.
 */
#ifndef URINGLOOP_KERNEL_COMPAT_H
#define URINGLOOP_KERNEL_COMPAT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Either the C library's header or the kernel's, never both: they define the same names. */
#ifndef STATX_TYPE
#include <linux/stat.h>
#endif

#ifndef TCP_INQ
#define TCP_INQ 36 /* 4.18 */
#endif
#ifndef TCP_CM_INQ
#define TCP_CM_INQ TCP_INQ
#endif
#ifndef UDP_GRO
#define UDP_GRO 104 /* 5.0 */
#endif

#define URING_SYS_EPOLL_PWAIT2 441 /* 5.11 */
#define URING_SYS_OPENAT2 437      /* 5.6 */
#define URING_RESOLVE_CACHED 0x20  /* 5.12 */

/* The kernel's struct open_how. */
typedef struct uring_open_how {
    uint64_t flags;
    uint64_t mode;
    uint64_t resolve;
} uring_open_how;

static inline int uring_openat2(int folder, const char *name, const uring_open_how *how) {
    return (int)syscall(URING_SYS_OPENAT2, folder, name, how, sizeof(*how));
}

/* epoll_wait(2) with a timeout in nanoseconds, none if it is negative. Where the kernel lacks
 * epoll_pwait2(2), or a seccomp filter forbids it, the timeout is rounded up to milliseconds, so
 * that no wait for a timer ends too early. */
static inline int uring_epoll_wait(int epoll_fd, struct epoll_event *events, int size,
                                   int64_t timeout_ns) {
    static atomic_bool in_milliseconds;
    /* The kernel's timespec: the C library's may have a smaller time_t. */
    int64_t timeout[2] = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    int64_t rounded = timeout_ns < 0 ? -1 : (timeout_ns + 999999) / 1000000;

    if (timeout_ns > 0 && !atomic_load_explicit(&in_milliseconds, memory_order_relaxed)) {
        int count = (int)syscall(URING_SYS_EPOLL_PWAIT2, epoll_fd, events, size, timeout, NULL, 0);

        if (count >= 0 || errno == EINTR || errno == EBADF)
            return count;
        atomic_store_explicit(&in_milliseconds, true, memory_order_relaxed);
    }
    return epoll_wait(epoll_fd, events, size, rounded > INT_MAX ? INT_MAX : (int)rounded);
}

#ifndef __GLIBC__

static inline int uring_statx(int folder, const char *name, int flags, unsigned mask,
                              struct statx *facts) {
    return (int)syscall(SYS_statx, folder, name, flags, mask, facts);
}

/* The offset is passed in two words; where a word has 64 bits the kernel ignores the second. */
static inline ssize_t uring_preadv2(int fd, const struct iovec *parts, int count, off_t offset,
                                    int flags) {
    return syscall(SYS_preadv2, fd, parts, (long)count, (long)offset, (long)(offset >> 32), flags);
}

static inline ssize_t uring_pwritev2(int fd, const struct iovec *parts, int count, off_t offset,
                                     int flags) {
    return syscall(SYS_pwritev2, fd, parts, (long)count, (long)offset, (long)(offset >> 32), flags);
}

/* Macros with arguments, since `statx` is also the name of the structure. */
#define statx(folder, name, flags, mask, facts) uring_statx(folder, name, flags, mask, facts)
#define preadv2(fd, parts, count, offset, flags) uring_preadv2(fd, parts, count, offset, flags)
#define pwritev2(fd, parts, count, offset, flags) uring_pwritev2(fd, parts, count, offset, flags)

#endif

#endif
