"""Bytes that wait to be sent."""

from cpython.object cimport PyObject

from uringloop._cpython.freelist cimport FreeList
from uringloop._kernel.libc cimport iovec, msghdr


cdef enum:
    # Buffers of one sendmsg(2). The kernel's limit is 1024; more than 64 gain nothing.
    VECTOR_MAX = 64


cdef struct Gathered:
    # Several items, for sendmsg(2).
    msghdr message              # points to vector
    iovec vector[VECTOR_MAX]


cdef class WriteQueue:
    cdef PyObject **items       # circular; owns a reference to each bytes object
    cdef PyObject *only[1]      # what `items` points to until two items are queued at a time
    cdef Py_ssize_t capacity    # a power of two
    cdef Py_ssize_t first
    cdef Py_ssize_t count
    cdef Py_ssize_t offset      # bytes of the first item that are sent already
    cdef Py_ssize_t size        # bytes to send, all items together
    cdef Gathered *gathered     # allocated at first need; the kernel copies it on submission
    cdef bint single            # one item is prepared: `data`, not `gathered`
    cdef const void *data       # the bytes of a send of one item, or of the caller's memory
    cdef size_t data_size       # bytes that are prepared, of all items together

    cdef int push(self, bytes data) except -1
    cdef int prepare(self) except -1
    cdef void show(self, const void *data, Py_ssize_t size) noexcept
    cdef void consume(self, Py_ssize_t sent, FreeList kept) noexcept
    cdef void clear(self) noexcept
    cdef int _grow(self) except -1


cdef bytes as_bytes(object data)
