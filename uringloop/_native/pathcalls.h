/* What takes a path: looked up in the kernel's cache without waiting, or asked for.
 *
 * Every function returns 0, a descriptor or -errno. Those that look need the GIL, for what they
 * remember of mounts; none waits for a disk, a server or a peer.
 */
#ifndef URINGLOOP_PATHCALLS_H
#define URINGLOOP_PATHCALLS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "uring.h"

#define URING_STATX_MNT_ID_UNIQUE 0x4000U /* 6.8 */
#define URING_SYS_STATMOUNT 457           /* 6.8 */
#define URING_STATMOUNT_SB_BASIC 1U

/* Mounts that are remembered; a program has few. */
#define URING_MOUNTS_MAX 64

typedef struct uring_mount_request {
    uint32_t size;
    uint32_t spare;
    uint64_t mount;
    uint64_t wanted;
} uring_mount_request;

/* The beginning of the kernel's struct statmount, and room for the rest of it. */
typedef struct uring_mount_facts {
    uint32_t size;
    uint32_t options;
    uint64_t known;
    uint32_t major;
    uint32_t minor;
    uint64_t magic;
    char rest[512 - 32];
} uring_mount_facts;

/* Whether the file systems of that kind answer for what is in the cache by themselves: no server, no
 * process that may be this one. */
static inline bool uring_is_local_kind(uint64_t magic) {
    static const uint64_t kinds[] = {
        0xEF53,     /* ext2, ext3, ext4 */
        0x58465342, /* xfs */
        0x9123683E, /* btrfs */
        0xF2F52010, /* f2fs */
        0x2FC12FC1, /* zfs */
        0x01021994, /* tmpfs */
        0x858458F6, /* ramfs */
        0x794C7630, /* overlayfs */
        0xE0F5E1E2, /* erofs */
        0x73717368, /* squashfs */
        0x9660,     /* isofs */
    };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        if (kinds[i] == magic)
            return true;
    return false;
}

/* Whether a mount is one of those. The kernel gives the number of a mount only once, so that an answer
 * stays right; before 6.8 it is no. */
static inline bool uring_is_local(const struct statx *facts) {
    static uint64_t numbers[URING_MOUNTS_MAX];
    static bool local[URING_MOUNTS_MAX];
    static unsigned count;
    uring_mount_request request = {.size = sizeof(request), .wanted = URING_STATMOUNT_SB_BASIC};
    uring_mount_facts mount;
    uint64_t number;

    if (!(facts->stx_mask & URING_STATX_MNT_ID_UNIQUE))
        return false;
    /* Older headers have no name for it, but the place. */
    memcpy(&number, (const char *)facts + 0x90, sizeof(number));
    for (unsigned i = 0; i < count && i < URING_MOUNTS_MAX; i++)
        if (numbers[i] == number)
            return local[i];
    request.mount = number;
    memset(&mount, 0, sizeof(mount));
    if (syscall(URING_SYS_STATMOUNT, &request, &mount, sizeof(mount), 0) < 0)
        mount.magic = 0;
    numbers[count % URING_MOUNTS_MAX] = number;
    local[count % URING_MOUNTS_MAX] = uring_is_local_kind(mount.magic);
    count = count + 1 < 2 * URING_MOUNTS_MAX ? count + 1 : URING_MOUNTS_MAX;
    return local[(count - 1) % URING_MOUNTS_MAX];
}

/* Finds what *name* means, if the kernel has that in its cache and the file system is a local one: a
 * descriptor of the place (O_PATH), with *facts* about it. EAGAIN: it must be asked for. */
static inline int uring_find_cached(int folder, const char *name, bool follow, unsigned mask,
                                    struct statx *facts) {
    struct open_how how = {
        .flags = O_PATH | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW),
        .resolve = RESOLVE_CACHED,
    };
    int fd = (int)syscall(SYS_openat2, folder, name, &how, sizeof(how));

    if (fd < 0)
        /* Whatever else it says, a real answer is the kernel's to give in the ordinary way. */
        return errno == ENOENT || errno == ENOTDIR || errno == EACCES ? -errno : -EAGAIN;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, mask | URING_STATX_MNT_ID_UNIQUE,
              facts) == 0 &&
        uring_is_local(facts))
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
