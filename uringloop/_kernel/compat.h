/* Interfaces of the kernel that the C library at build time may lack, such as glibc 2.28 with the
 * headers of Linux 4.18 (in the images of manylinux_2_28) or musl before 1.2.5; and the calls that
 * replace those that a seccomp filter refuses (_ring/system_calls.py lists them).
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
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

/* Include the kernel's header only if the C library's lacks these names: both define them. */
#ifndef STATX_TYPE
#include <linux/stat.h>
#endif

#ifndef TCP_INQ
#define TCP_INQ 36 /* 4.18 */
#endif
#ifndef TCP_CM_INQ
#define TCP_CM_INQ TCP_INQ
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103 /* 4.18 */
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

/* Returns whether *res*, a negative errno, says that a security policy refuses the system call, or
 * that the kernel lacks it. The kernel itself returns other errors to the loop's calls. */
static inline bool uring_is_forbidden(int res) {
    return res == -EPERM || res == -EACCES || res == -ENOSYS;
}

/* ── epoll ──────────────────────────────────────────────────────────────────────────────────── */

typedef enum uring_epoll_calls {
    URING_EPOLL_WAIT,
    URING_EPOLL_PWAIT,
    URING_EPOLL_PWAIT2, /* the only one whose timeout has nanoseconds */
    URING_EPOLL_CALLS,
} uring_epoll_calls;

static inline int uring_epoll_wait_by(uring_epoll_calls call, int epoll_fd,
                                      struct epoll_event *events, int size, int64_t timeout_ns) {
    /* The kernel's timespec: the C library's may have a smaller time_t. */
    int64_t timeout[2] = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    /* Rounded up, so that no wait for a timer ends too early. */
    int64_t rounded = timeout_ns < 0 ? -1 : (timeout_ns + 999999) / 1000000;
    int timeout_ms = rounded > INT_MAX ? INT_MAX : (int)rounded;

    switch (call) {
    case URING_EPOLL_WAIT:
        return epoll_wait(epoll_fd, events, size, timeout_ms);
    case URING_EPOLL_PWAIT:
        return epoll_pwait(epoll_fd, events, size, timeout_ms, NULL);
    default:
        return (int)syscall(URING_SYS_EPOLL_PWAIT2, epoll_fd, events, size,
                            timeout_ns < 0 ? NULL : timeout, NULL, 0);
    }
}

/* Waits like epoll_wait(2), with a timeout in nanoseconds; a negative one is no limit. A call that
 * a filter has refused is not tried again, unless it has refused all of them. */
static inline int uring_epoll_wait(int epoll_fd, struct epoll_event *events, int size,
                                   int64_t timeout_ns) {
    static const uring_epoll_calls orders[2][URING_EPOLL_CALLS] = {
        {URING_EPOLL_WAIT, URING_EPOLL_PWAIT, URING_EPOLL_PWAIT2},
        {URING_EPOLL_PWAIT2, URING_EPOLL_WAIT, URING_EPOLL_PWAIT},
    };
    static atomic_uint refused;
    const uring_epoll_calls *order = orders[timeout_ns > 0];
    unsigned skipped = atomic_load_explicit(&refused, memory_order_relaxed);
    int i, count = -1;

    /* All have been refused: try all again. */
    if (skipped == (1U << URING_EPOLL_CALLS) - 1)
        skipped = 0;
    for (i = 0; i < URING_EPOLL_CALLS; i++) {
        if (skipped & 1U << order[i])
            continue;
        count = uring_epoll_wait_by(order[i], epoll_fd, events, size, timeout_ns);
        if (count >= 0 || !uring_is_forbidden(-errno))
            break;
        atomic_fetch_or_explicit(&refused, 1U << order[i], memory_order_relaxed);
    }
    return count;
}

/* ── files ──────────────────────────────────────────────────────────────────────────────────── */

/* Fills *facts* by fstatat(2), which knows neither the time of birth nor the mount. */
static inline int uring_statx_by_stat(int folder, const char *name, int flags,
                                      struct statx *facts) {
    struct stat found;

    if (fstatat(folder, name, &found, flags & (AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW)) < 0)
        return -1;
    memset(facts, 0, sizeof(*facts));
    facts->stx_mask = STATX_BASIC_STATS;
    facts->stx_blksize = (uint32_t)found.st_blksize;
    facts->stx_nlink = (uint32_t)found.st_nlink;
    facts->stx_uid = found.st_uid;
    facts->stx_gid = found.st_gid;
    facts->stx_mode = (uint16_t)found.st_mode;
    facts->stx_ino = found.st_ino;
    facts->stx_size = (uint64_t)found.st_size;
    facts->stx_blocks = (uint64_t)found.st_blocks;
    facts->stx_atime.tv_sec = found.st_atim.tv_sec;
    facts->stx_atime.tv_nsec = (uint32_t)found.st_atim.tv_nsec;
    facts->stx_mtime.tv_sec = found.st_mtim.tv_sec;
    facts->stx_mtime.tv_nsec = (uint32_t)found.st_mtim.tv_nsec;
    facts->stx_ctime.tv_sec = found.st_ctim.tv_sec;
    facts->stx_ctime.tv_nsec = (uint32_t)found.st_ctim.tv_nsec;
    facts->stx_rdev_major = major(found.st_rdev);
    facts->stx_rdev_minor = minor(found.st_rdev);
    facts->stx_dev_major = major(found.st_dev);
    facts->stx_dev_minor = minor(found.st_dev);
    return 0;
}

/* Calls statx(2), or fstatat(2) where a filter refuses statx(2). The C library's statx() will not
 * do: where the kernel lacks the call, it returns EINVAL for flags that it cannot emulate. */
static inline int uring_statx(int folder, const char *name, int flags, unsigned mask,
                              struct statx *facts) {
    int res = (int)syscall(SYS_statx, folder, name, flags, mask, facts);

    /* Not for EACCES, which may come from the path instead of a filter. */
    if (res < 0 && (errno == EPERM || errno == ENOSYS))
        return uring_statx_by_stat(folder, name, flags, facts);
    return res;
}

#ifndef __GLIBC__

/* The offset is passed in two words; where a word has 64 bits the kernel ignores the second. */
static inline ssize_t uring_preadv2(int fd, const struct iovec *parts, int count, off_t offset,
                                    int flags) {
    return syscall(SYS_preadv2, fd, parts, (long)count, (long)offset, (long)(offset >> 32), flags);
}

static inline ssize_t uring_pwritev2(int fd, const struct iovec *parts, int count, off_t offset,
                                     int flags) {
    return syscall(SYS_pwritev2, fd, parts, (long)count, (long)offset, (long)(offset >> 32), flags);
}

#define preadv2(fd, parts, count, offset, flags) uring_preadv2(fd, parts, count, offset, flags)
#define pwritev2(fd, parts, count, offset, flags) uring_pwritev2(fd, parts, count, offset, flags)

#endif

#endif
