"""Bytes that wait to be sent."""

from cpython.object cimport PyObject

from uringloop._kernel.libc cimport iovec, msghdr


cdef enum:
    # Buffers in one sendmsg: the gain over the next one is gone long before the kernel's 1024.
    VECTOR_MAX = 64


cdef struct Gathered:
    # Several items, as sendmsg takes them.
    msghdr message              # points to vector
    iovec vector[VECTOR_MAX]


cdef class WriteQueue:
    cdef PyObject **items       # circular; owns a reference to each bytes object
    cdef PyObject *only[1]      # items, as long as there was never more than one at a time
    cdef Py_ssize_t capacity    # a power of two
    cdef Py_ssize_t first
    cdef Py_ssize_t count
    cdef Py_ssize_t offset      # bytes of the first item that are sent already
    cdef Py_ssize_t size        # bytes to send, all items together
    cdef Gathered *gathered     # made at first need; the kernel copies it while submitting
    cdef bint single            # one item is prepared: `data`, not `gathered`
    cdef const void *data       # what a send of one item, or of foreign memory, sends
    cdef size_t data_size       # bytes that are prepared, of one item or of several

    cdef int push(self, bytes data) except -1
    cdef int prepare(self) except -1
    cdef void show(self, const void *data, Py_ssize_t size) noexcept
    cdef void consume(self, Py_ssize_t sent) noexcept
    cdef void clear(self) noexcept
    cdef int _grow(self) except -1


cdef bytes as_bytes(object data)
cdef object not_contiguous()
