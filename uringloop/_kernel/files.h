/* System calls for files that bypass the ring: reads and writes that never wait, and the ring's
 * requests executed as plain system calls, by a thread of an executor where there is no ring.
 *
 * A function that can fail returns a count or 0, or -errno.
 */
#ifndef URINGLOOP_KERNEL_FILES_H
#define URINGLOOP_KERNEL_FILES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "_kernel/compat.h"
#include "_kernel/io_uring.h"
#include "_kernel/mounts.h"
#include "_kernel/sanitizer.h"

/* The distance between two samples of the page cache. When the kernel reads a file into the cache,
 * it reads at least this much at once. */
#define URING_SAMPLE_BYTES (64 * 1024)

/* Facts about an open file that are known without asking a server. */
typedef struct uring_file_status {
    int64_t size;
    unsigned mode;
    unsigned block_size;
    bool local;     /* neither a network server nor a FUSE process serves it */
    bool in_memory; /* there is no disk behind its page cache: tmpfs, ramfs */
} uring_file_status;

static inline int uring_get_facts(int fd, unsigned mask, struct statx *found,
                                  uring_file_status *facts) {
    *facts = (uring_file_status){0};
    if (uring_statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_SIZE | mask,
                    found) < 0)
        return -errno;
    facts->mode = found->stx_mode;
    facts->size = (int64_t)found->stx_size;
    facts->block_size = found->stx_blksize;
    return 0;
}

/* Fills *facts*, but for `local` and `in_memory`, which stay false. */
static inline int uring_get_status(int fd, uring_file_status *facts) {
    struct statx found;

    return uring_get_facts(fd, 0, &found, facts);
}

/* Fills *facts*; see mounts.h. */
static inline int uring_get_status_and_mount(int fd, uring_file_status *facts) {
    struct statx found;
    uring_mount_kinds kind;
    int res = uring_get_facts(fd, URING_STATX_MNT_ID_UNIQUE, &found, facts);

    if (res == 0 && S_ISREG(found.stx_mode)) {
        kind = uring_mount_kind(&found);
        facts->local = kind != URING_MOUNT_OTHER;
        facts->in_memory = kind == URING_MOUNT_MEMORY;
    }
    return res;
}

/* Return whether reads, or writes, at an offset are possible. On an eventfd neither is, and on a
 * file of /proc writes are not, although both files accept lseek(). With no iovec the kernel only
 * checks this. */
static inline bool uring_reads_at_offset(int fd) {
    return preadv(fd, NULL, 0, 0) == 0 || errno != ESPIPE;
}

static inline bool uring_writes_at_offset(int fd) {
    return pwritev(fd, NULL, 0, 0) == 0 || errno != ESPIPE;
}

/* Reads what the page cache has at *offset* (-1: at the descriptor's position), without waiting.
 * Returns the number of bytes. *rest* is 0 after *size* bytes or at the end of the file, otherwise
 * the -errno that stopped the read: EAGAIN if a page is not in the cache, EOPNOTSUPP if the file
 * system does not support RWF_NOWAIT. Files in memory do not support it, and need not. */
static inline ssize_t uring_read_cached(int fd, char *data, size_t size, int64_t offset,
                                        bool in_memory, int *rest) {
    size_t filled = 0;
    struct iovec part;
    ssize_t res;

    *rest = 0;
    while (filled < size) {
        part.iov_base = data + filled;
        part.iov_len = size - filled;
        res = preadv2(fd, &part, 1, offset < 0 ? -1 : offset + (int64_t)filled,
                      in_memory ? 0 : RWF_NOWAIT);
        if (res < 0)
            *rest = -errno;
        if (res <= 0)
            break;
        filled += (size_t)res;
    }
    return (ssize_t)filled;
}

/* Calls uring_read_cached() for at most *share* bytes of a prepared read, and reduces the read to
 * the bytes that are left. */
static inline ssize_t uring_take_cached(struct io_uring_sqe *sqe, size_t share, bool in_memory,
                                        int *rest) {
    bool here = sqe->off == (uint64_t)-1;
    ssize_t count = uring_read_cached(sqe->fd, (char *)(uintptr_t)sqe->addr, share,
                                      here ? -1 : (int64_t)sqe->off, in_memory, rest);

    sqe->addr += (uint64_t)count;
    sqe->len -= (uint32_t)count;
    if (!here)
        sqe->off += (uint64_t)count;
    return count;
}

/* Writes what the file system takes without waiting; returns a count or -errno. ext4 does not
 * support this. */
static inline ssize_t uring_write_cached(int fd, const char *data, size_t size, int64_t offset,
                                         bool in_memory) {
    struct iovec part = {.iov_base = (char *)(uintptr_t)data, .iov_len = size};
    ssize_t res = pwritev2(fd, &part, 1, offset, in_memory ? 0 : RWF_NOWAIT);

    return res < 0 ? -errno : res;
}

/* Returns whether *size* bytes from *offset* on are in the page cache, as far as samples show. If
 * the file system does not support RWF_NOWAIT, returns true. */
static inline bool uring_is_cached(int fd, int64_t offset, int64_t size) {
    char byte;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};

    for (int64_t at = 0; at < size; at += URING_SAMPLE_BYTES)
        if (preadv2(fd, &part, 1, offset + at, RWF_NOWAIT) < 0)
            return errno != EAGAIN;
    return true;
}

/* Prepares to get the size of an open file; *facts* has room for sizeof(struct statx). */
static inline void uring_prep_size(struct io_uring_sqe *sqe, int fd, void *facts) {
    io_uring_prep_statx(sqe, fd, "", AT_EMPTY_PATH, STATX_SIZE, facts);
}

static inline int64_t uring_size_in(const void *facts) {
    return (int64_t)((const struct statx *)facts)->stx_size;
}

static inline void uring_prep_ftruncate(struct io_uring_sqe *sqe, int fd, int64_t size) {
    io_uring_prep_nop(sqe);
    sqe->opcode = URING_OP_FTRUNCATE;
    sqe->fd = fd;
    sqe->off = (uint64_t)size;
}

static inline void uring_copy_submission(struct io_uring_sqe *sqe,
                                         const struct io_uring_sqe *source) {
    *sqe = *source;
}

/* Makes the next submission start only after this one has been done in full. */
static inline void uring_link(struct io_uring_sqe *sqe) { sqe->flags |= IOSQE_IO_LINK; }

static inline void uring_unlink(struct io_uring_sqe *sqe) {
    sqe->flags &= (uint8_t)~IOSQE_IO_LINK;
}

/* Leaves the request to a kernel worker at once, since it would wait or copy for long. */
static inline void uring_leave_to_worker(struct io_uring_sqe *sqe) { sqe->flags |= IOSQE_ASYNC; }

/* Performs a submission as a system call in the calling thread, which blocks. */
static inline int uring_perform(const struct io_uring_sqe *sqe) {
    void *address = (void *)(uintptr_t)sqe->addr;
    bool here = sqe->off == (uint64_t)-1;
    off_t offset = (off_t)sqe->off;
    ssize_t res;

    switch (sqe->opcode) {
    case IORING_OP_READ:
        res = here ? read(sqe->fd, address, sqe->len) : pread(sqe->fd, address, sqe->len, offset);
        break;
    case IORING_OP_WRITE:
        res = here ? write(sqe->fd, address, sqe->len) : pwrite(sqe->fd, address, sqe->len, offset);
        break;
    case IORING_OP_READV:
        res = preadv2(sqe->fd, address, (int)sqe->len, offset, 0);
        break;
    case IORING_OP_WRITEV:
        res = pwritev2(sqe->fd, address, (int)sqe->len, offset, 0);
        break;
    case IORING_OP_FSYNC:
        res = sqe->fsync_flags & IORING_FSYNC_DATASYNC ? fdatasync(sqe->fd) : fsync(sqe->fd);
        break;
    case IORING_OP_FALLOCATE:
        res = fallocate(sqe->fd, (int)sqe->len, offset, (off_t)sqe->addr);
        break;
    case IORING_OP_OPENAT:
        res = openat(sqe->fd, address, (int)sqe->open_flags, sqe->len);
        break;
    case IORING_OP_CLOSE:
        res = close(sqe->fd);
        break;
    case IORING_OP_STATX:
        res = uring_statx(sqe->fd, address, (int)sqe->statx_flags, sqe->len,
                          (struct statx *)(uintptr_t)sqe->off);
        break;
    case IORING_OP_MKDIRAT:
        res = mkdirat(sqe->fd, address, sqe->len);
        break;
    case IORING_OP_UNLINKAT:
        res = unlinkat(sqe->fd, address, (int)sqe->unlink_flags);
        break;
    case IORING_OP_RENAMEAT:
        res = renameat(sqe->fd, address, (int)sqe->len, (char *)(uintptr_t)sqe->addr2);
        break;
    case IORING_OP_SYMLINKAT:
        res = symlinkat(address, sqe->fd, (char *)(uintptr_t)sqe->addr2);
        break;
    case IORING_OP_LINKAT:
        res = linkat(sqe->fd, address, (int)sqe->len, (char *)(uintptr_t)sqe->addr2,
                     (int)sqe->hardlink_flags);
        break;
    case URING_OP_FTRUNCATE:
        res = ftruncate(sqe->fd, offset);
        break;
    default:
        return -EINVAL;
    }
    return res < 0 ? -errno : (int)res;
}

/* Performs a submission in the loop's thread, if no worker could be started. Returns -EAGAIN for an
 * open that would wait for the peer of a FIFO, since the peer may never come. */
static inline int uring_perform_here(const struct io_uring_sqe *sqe) {
    const int ready = O_NONBLOCK | O_PATH | O_RDWR;
    struct stat facts;

    if (sqe->opcode == IORING_OP_OPENAT && !((int)sqe->open_flags & ready) &&
        fstatat(sqe->fd, (const char *)(uintptr_t)sqe->addr, &facts, 0) == 0 &&
        S_ISFIFO(facts.st_mode))
        return -EAGAIN;
    return uring_perform(sqe);
}

#endif
