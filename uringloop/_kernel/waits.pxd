"""Declarations of waits.h: calls that do not wait, whatever other owners do with O_NONBLOCK."""

from uringloop._kernel.libc cimport iovec


cdef extern from "_kernel/waits.h" nogil:
    bint uring_is_nonblocking(int fd)
    ssize_t uring_read_now(int fd, void *data, size_t size)
    ssize_t uring_write_now(int fd, const iovec *parts, int count)
    bint uring_lacks_nowait(int error)
    ssize_t uring_read_if_ready(int fd, void *data, size_t size)
    ssize_t uring_write_if_ready(int fd, const iovec *parts, int count)
    bint uring_lingers(int fd)
