"""Declarations of files.h: files, with and without a ring."""

from libc.stdint cimport int64_t, uint64_t

from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._kernel.libc cimport iovec


cdef extern from "_kernel/files.h" nogil:
    unsigned int IORING_FSYNC_DATASYNC
    bint URING_CLOSES_BY_LIBC

    void io_uring_prep_read(
        io_uring_sqe *sqe, int fd, void *data, unsigned int size, uint64_t offset)
    void io_uring_prep_write(
        io_uring_sqe *sqe, int fd, const void *data, unsigned int size, uint64_t offset)
    void io_uring_prep_readv(
        io_uring_sqe *sqe, int fd, const iovec *vectors, unsigned int count, uint64_t offset)
    void io_uring_prep_writev(
        io_uring_sqe *sqe, int fd, const iovec *vectors, unsigned int count, uint64_t offset)
    void io_uring_prep_fsync(io_uring_sqe *sqe, int fd, unsigned int flags)
    void io_uring_prep_fallocate(
        io_uring_sqe *sqe, int fd, int mode, int64_t offset, int64_t size)
    void io_uring_prep_close(io_uring_sqe *sqe, int fd)
    void uring_prep_size(io_uring_sqe *sqe, int fd, void *facts)
    int64_t uring_size_in(const void *facts)
    void uring_prep_ftruncate(io_uring_sqe *sqe, int fd, int64_t size)
    void uring_copy_submission(io_uring_sqe *sqe, const io_uring_sqe *source)
    void uring_link(io_uring_sqe *sqe)
    void uring_unlink(io_uring_sqe *sqe)
    void uring_leave_to_worker(io_uring_sqe *sqe)

    struct uring_file_status:
        int64_t size
        unsigned int mode
        unsigned int block_size
        bint local
        bint in_memory

    int uring_get_status(int fd, uring_file_status *facts)
    int uring_get_status_and_mount(int fd, uring_file_status *facts)
    bint uring_reads_at_offset(int fd)
    bint uring_writes_at_offset(int fd)
    ssize_t uring_read_cached(
        int fd, char *data, size_t size, int64_t offset, bint in_memory, int *rest)
    ssize_t uring_take_cached(io_uring_sqe *sqe, size_t share, bint in_memory, int *rest)
    ssize_t uring_write_cached(
        int fd, const char *data, size_t size, int64_t offset, bint in_memory)
    bint uring_is_cached(int fd, int64_t offset, int64_t size)
    int uring_perform(const io_uring_sqe *sqe)
    int uring_perform_here(const io_uring_sqe *sqe)


cdef extern from "<sys/stat.h>" nogil:
    bint S_ISREG(unsigned int mode)
    bint S_ISDIR(unsigned int mode)

    struct statx:
        pass


cdef extern from "<unistd.h>" nogil:
    int SEEK_SET
    int SEEK_CUR
    int SEEK_END
    int64_t lseek(int fd, int64_t offset, int whence)
