"""Declarations of paths.h: operations on paths."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from uringloop._kernel.io_uring cimport io_uring_sqe


cdef extern from "_kernel/paths.h" nogil:
    int AT_FDCWD
    int AT_EMPTY_PATH
    int AT_REMOVEDIR
    int AT_SYMLINK_FOLLOW
    int AT_SYMLINK_NOFOLLOW
    int O_CLOEXEC
    int O_EXCL
    int O_DIRECTORY
    int O_RDONLY
    unsigned int STATX_BASIC_STATS

    struct statx_timestamp:
        int64_t tv_sec
        uint32_t tv_nsec

    struct statx:
        uint32_t stx_blksize
        uint32_t stx_nlink
        uint32_t stx_uid
        uint32_t stx_gid
        uint32_t stx_mode
        uint64_t stx_ino
        uint64_t stx_size
        uint64_t stx_blocks
        statx_timestamp stx_atime
        statx_timestamp stx_ctime
        statx_timestamp stx_mtime
        uint32_t stx_rdev_major
        uint32_t stx_rdev_minor
        uint32_t stx_dev_major
        uint32_t stx_dev_minor

    void io_uring_prep_openat(
        io_uring_sqe *sqe, int folder, const char *path, int flags, unsigned int mode)
    void io_uring_prep_statx(
        io_uring_sqe *sqe, int folder, const char *path, int flags, unsigned int mask,
        statx *facts)
    void io_uring_prep_mkdirat(
        io_uring_sqe *sqe, int folder, const char *path, unsigned int mode)
    void io_uring_prep_unlinkat(io_uring_sqe *sqe, int folder, const char *path, int flags)
    void io_uring_prep_renameat(
        io_uring_sqe *sqe, int old_folder, const char *old, int new_folder, const char *path,
        unsigned int flags)
    void io_uring_prep_symlinkat(
        io_uring_sqe *sqe, const char *target, int folder, const char *path)
    void io_uring_prep_linkat(
        io_uring_sqe *sqe, int old_folder, const char *old, int new_folder, const char *path,
        int flags)

    int uring_stat_cached(int folder, const char *name, int flags, statx *facts)
    int uring_open_cached(const char *name, int flags)


cdef extern from "<sys/sysmacros.h>" nogil:
    uint64_t makedev(unsigned int major, unsigned int minor)
