/* What the kernel has and the C library at build time may not: glibc 2.28 with the headers of Linux
 * 4.18, as the images of manylinux_2_28 have them, and musl before 1.2.5.
 *
 * A wheel for musl does not use a newer one's functions either, since an older one may load it.
 * Every function sets errno, as the C library's own do.
 */
#ifndef URINGLOOP_MISSING_H
#define URINGLOOP_MISSING_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* From the C library or from the kernel, never from both: they define the same. */
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

#define URING_SYS_OPENAT2 437     /* 5.6 */
#define URING_RESOLVE_CACHED 0x20 /* 5.12 */

/* The kernel's struct open_how. */
typedef struct uring_open_how {
    uint64_t flags;
    uint64_t mode;
    uint64_t resolve;
} uring_open_how;

static inline int uring_openat2(int folder, const char *name, const uring_open_how *how) {
    return (int)syscall(URING_SYS_OPENAT2, folder, name, how, sizeof(*how));
}

#ifndef __GLIBC__

static inline int uring_statx(int folder, const char *name, int flags, unsigned mask,
                              struct statx *facts) {
    return (int)syscall(SYS_statx, folder, name, flags, mask, facts);
}

/* An offset takes two words; where the first one has 64 bits the kernel does without the second. */
static inline ssize_t uring_preadv2(int fd, const struct iovec *parts, int count, off_t offset,
                                    int flags) {
    return syscall(SYS_preadv2, fd, parts, (long)count, (long)offset, (long)(offset >> 32), flags);
}

static inline ssize_t uring_pwritev2(int fd, const struct iovec *parts, int count, off_t offset,
                                     int flags) {
    return syscall(SYS_pwritev2, fd, parts, (long)count, (long)offset, (long)(offset >> 32), flags);
}

/* With arguments: the name alone is also that of the structure. */
#define statx(folder, name, flags, mask, facts) uring_statx(folder, name, flags, mask, facts)
#define preadv2(fd, parts, count, offset, flags) uring_preadv2(fd, parts, count, offset, flags)
#define pwritev2(fd, parts, count, offset, flags) uring_pwritev2(fd, parts, count, offset, flags)

#endif

#endif
