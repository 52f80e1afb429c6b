"""Bytes that wait to be sent."""

from cpython.object cimport PyObject

from uringloop._native.uring cimport iovec, msghdr


cdef class WriteQueue:
    cdef PyObject **items       # circular; owns a reference to each bytes object
    cdef Py_ssize_t capacity    # a power of two, or 0 before the first push
    cdef Py_ssize_t first
    cdef Py_ssize_t count
    cdef Py_ssize_t offset      # bytes of the first item that are sent already
    cdef Py_ssize_t size        # bytes to send, all items together
    cdef iovec *vector          # made at first need; the kernel copies it while submitting
    cdef msghdr message         # points to vector
    cdef bint single            # one item is prepared: `data`, not `message`
    cdef const void *data       # what a send of one item sends
    cdef size_t data_size       # bytes that are prepared, of one item or of several

    cdef int push(self, bytes data) except -1
    cdef int prepare(self) except -1
    cdef void consume(self, Py_ssize_t sent) noexcept
    cdef void clear(self) noexcept
    cdef int _grow(self) except -1


cdef bytes as_bytes(object data)
cdef object not_contiguous()
