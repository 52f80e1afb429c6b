/* What takes a path: looked up in the kernel's cache without waiting, or asked for.
 *
 * Every function returns 0, a descriptor or -errno. Those that look need the GIL, see mounts.h; none
 * waits for a disk, a server or a peer.
 */
#ifndef URINGLOOP_PATHCALLS_H
#define URINGLOOP_PATHCALLS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "_kernel/compat.h"
#include "_kernel/io_uring.h"
#include "_kernel/mounts.h"

/* Finds what *name* means, if the kernel has that in its cache and the file system is a local one: a
 * descriptor of the place (O_PATH), with *facts* about it. EAGAIN: it must be asked for. */
static inline int uring_find_cached(int folder, const char *name, bool follow, unsigned mask,
                                    struct statx *facts) {
    uring_open_how how = {
        .flags = O_PATH | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW),
        .resolve = URING_RESOLVE_CACHED,
    };
    int fd = uring_openat2(folder, name, &how);

    if (fd < 0)
        /* Whatever else it says, a real answer is the kernel's to give in the ordinary way. */
        return errno == ENOENT || errno == ENOTDIR || errno == EACCES ? -errno : -EAGAIN;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, mask | URING_STATX_MNT_ID_UNIQUE,
              facts) == 0 &&
        uring_mount_kind(facts) != URING_MOUNT_OTHER)
        return fd;
    close(fd);
    return -EAGAIN;
}

/* stat() of what is in the cache. EAGAIN: ask. */
static inline int uring_stat_cached(int folder, const char *name, bool follow,
                                    struct statx *facts) {
    int fd = uring_find_cached(folder, name, follow, STATX_BASIC_STATS, facts);

    if (fd < 0)
        return fd;
    close(fd);
    return 0;
}

/* Opens an existing regular file that is in the cache, neither creating nor emptying it. Anything else
 * may wait, as a FIFO does for its peer, or have effects, as a device: EAGAIN. */
static inline int uring_open_cached(const char *name, int flags) {
    struct statx facts;
    char again[32];
    int fd, found;

    if (flags & ~(O_ACCMODE | O_CLOEXEC))
        return -EAGAIN;
    found = uring_find_cached(AT_FDCWD, name, true, STATX_TYPE, &facts);
    if (found < 0)
        return found;
    fd = -EAGAIN;
    if (S_ISREG(facts.stx_mode)) {
        /* The same file, whatever has the name by now. */
        snprintf(again, sizeof(again), "/proc/self/fd/%d", found);
        fd = open(again, flags);
        if (fd < 0)
            fd = -EAGAIN;
    }
    close(found);
    return fd;
}

#endif
