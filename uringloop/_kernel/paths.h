/* Opens and stats from the kernel's caches, which wait for no disk, no server and no peer.
 *
 * Every function returns 0, a descriptor or -errno; -EAGAIN means that the ring must be used. Any
 * thread may call.
 */
#ifndef URINGLOOP_KERNEL_PATHS_H
#define URINGLOOP_KERNEL_PATHS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "_kernel/compat.h"
#include "_kernel/io_uring.h"
#include "_kernel/mounts.h"

/* Looks up *name*; *flags* may be O_NOFOLLOW. Returns an O_PATH descriptor and fills *facts* if the
 * kernel has the path in its cache and the file system is local. */
static inline int uring_find_cached(int folder, const char *name, uint64_t flags, unsigned mask,
                                    struct statx *facts) {
    uring_open_how how = {
        .flags = O_PATH | O_CLOEXEC | flags,
        .resolve = URING_RESOLVE_CACHED,
    };
    int fd = uring_openat2(folder, name, &how);

    if (fd < 0)
        /* Any other error may be due to the cached lookup: the ordinary call decides. */
        return errno == ENOENT || errno == ENOTDIR || errno == EACCES ? -errno : -EAGAIN;
    if (uring_statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, mask | URING_STATX_MNT_ID_UNIQUE,
                    facts) == 0 &&
        uring_mount_kind(facts) != URING_MOUNT_OTHER)
        return fd;
    close(fd);
    return -EAGAIN;
}

/* stat() from the kernel's caches; *flags* may be AT_SYMLINK_NOFOLLOW. */
static inline int uring_stat_cached(int folder, const char *name, int flags, struct statx *facts) {
    uint64_t open_flags = flags & AT_SYMLINK_NOFOLLOW ? O_NOFOLLOW : 0;
    int fd = uring_find_cached(folder, name, open_flags, STATX_BASIC_STATS, facts);

    if (fd < 0)
        return fd;
    close(fd);
    return 0;
}

/* Opens an existing regular file whose path is cached, with flags that neither create nor truncate.
 * Returns -EAGAIN for anything else: opening a FIFO may wait for the peer, and opening a device may
 * have side effects. */
static inline int uring_open_cached(const char *name, int flags) {
    struct statx facts;
    char again[32];
    int fd, found;

    if (flags & ~(O_ACCMODE | O_CLOEXEC))
        return -EAGAIN;
    found = uring_find_cached(AT_FDCWD, name, 0, STATX_TYPE, &facts);
    if (found < 0)
        return found;
    fd = -EAGAIN;
    if (S_ISREG(facts.stx_mode)) {
        /* Open it through the descriptor, since the name may refer to another file by now. */
        snprintf(again, sizeof(again), "/proc/self/fd/%d", found);
        fd = open(again, flags);
        if (fd < 0)
            fd = -EAGAIN;
    }
    close(found);
    return fd;
}

#endif
