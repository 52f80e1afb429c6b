/* Finds out on which kind of file system a file is, without calling that file system: a network
 * server may not answer, and a FUSE server may be this very process. (statfs(2) calls it.)
 *
 * Any thread may call these functions, because a lock protects the table of known mounts.
 */
#ifndef URINGLOOP_MOUNTS_H
#define URINGLOOP_MOUNTS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "_kernel/compat.h"

#define URING_STATX_MNT_ID_UNIQUE 0x4000U /* 6.8 */
#define URING_SYS_STATMOUNT 457           /* 6.8 */
#define URING_STATMOUNT_SB_BASIC 1U

/* The size of the table of known mounts; a program uses few. */
#define URING_MOUNTS_MAX 64

typedef enum uring_mount_kinds {
    URING_MOUNT_OTHER,  /* on a network server, of FUSE, or unknown */
    URING_MOUNT_LOCAL,  /* the kernel alone decides whether its caches are valid */
    URING_MOUNT_MEMORY, /* the same, and there is no disk behind the caches */
} uring_mount_kinds;

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

static inline uring_mount_kinds uring_kind_of_magic(uint64_t magic) {
    switch (magic) {
    case 0x01021994: /* tmpfs */
    case 0x858458F6: /* ramfs */
        return URING_MOUNT_MEMORY;
    case 0xEF53:     /* ext2, ext3, ext4 */
    case 0x58465342: /* xfs */
    case 0x9123683E: /* btrfs */
    case 0xF2F52010: /* f2fs */
    case 0x2FC12FC1: /* zfs */
    case 0x794C7630: /* overlayfs */
    case 0xE0F5E1E2: /* erofs */
    case 0x73717368: /* squashfs */
    case 0x9660:     /* isofs */
        return URING_MOUNT_LOCAL;
    default:
        return URING_MOUNT_OTHER;
    }
}

static inline uint64_t uring_mount_number(const struct statx *facts) {
    uint64_t number;

    /* Older headers have no name for the field, but reserve its space. */
    memcpy(&number, (const char *)facts + 0x90, sizeof(number));
    return number;
}

static inline bool uring_ask_mount(const struct statx *facts, uring_mount_facts *mount) {
    uring_mount_request request = {.size = sizeof(request),
                                   .mount = uring_mount_number(facts),
                                   .wanted = URING_STATMOUNT_SB_BASIC};

    memset(mount, 0, sizeof(*mount));
    return syscall(URING_SYS_STATMOUNT, &request, mount, sizeof(*mount), 0) >= 0;
}

/* Returns the kind of the mount in *facts*, the result of a statx with URING_STATX_MNT_ID_UNIQUE.
 * The kernel does not reuse these IDs, so that an answer stays valid. */
static inline uring_mount_kinds uring_mount_kind(const struct statx *facts) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t numbers[URING_MOUNTS_MAX];
    static uring_mount_kinds kinds[URING_MOUNTS_MAX];
    static unsigned count;
    uring_mount_kinds kind = URING_MOUNT_OTHER;
    uring_mount_facts mount;
    uint64_t number;
    bool known = false;

    if (!(facts->stx_mask & URING_STATX_MNT_ID_UNIQUE))
        return URING_MOUNT_OTHER;
    number = uring_mount_number(facts);
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count && i < URING_MOUNTS_MAX && !known; i++) {
        known = numbers[i] == number;
        if (known)
            kind = kinds[i];
    }
    pthread_mutex_unlock(&lock);
    if (known)
        return kind;
    if (uring_ask_mount(facts, &mount))
        kind = uring_kind_of_magic(mount.magic);
    /* A full table is overwritten from its beginning. Two threads that ask at the same time may
     * both add the mount, which does no harm. */
    pthread_mutex_lock(&lock);
    numbers[count % URING_MOUNTS_MAX] = number;
    kinds[count % URING_MOUNTS_MAX] = kind;
    count = count + 1 < 2 * URING_MOUNTS_MAX ? count + 1 : URING_MOUNTS_MAX;
    pthread_mutex_unlock(&lock);
    return kind;
}

#endif
