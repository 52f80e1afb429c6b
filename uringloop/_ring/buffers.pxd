"""The receive buffers that the kernel picks from."""

cimport cython
from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport list_size
from uringloop._kernel.io_uring cimport io_uring_buf_ring
from uringloop._ring.ring cimport Ring


# Buffer group IDs. One pool serves all streams of a loop, the other all its datagram sockets.
cdef enum:
    STREAM_GROUP = 0
    DATAGRAM_GROUP = 1


@cython.final
cdef class BufferPool:
    cdef Ring ring
    cdef io_uring_buf_ring *entries   # shared with the kernel; unmapped by close()
    cdef char *memory                 # `capacity` buffers; unmapped by close()
    cdef int group                    # buffer group ID
    cdef unsigned int size            # bytes per buffer
    cdef int at_start                 # buffers to publish initially, if memory has room for them
    cdef int capacity                 # buffers that memory has room for: BUFFERS_MAX or fewer
    cdef int published                # buffers that the kernel may pick: the first ones of memory
    cdef int generation               # of the ring that the pool is registered with
    cdef readonly int out             # buffers between `take` and `give_back`
    cdef double fill                  # moving average of the bytes received into a buffer
    cdef list starved                 # of TurnUser, whose receives wait for buffers: of datagrams

    cdef inline bint has_starved(self) noexcept:
        return list_size(<PyObject*>self.starved) != 0

    cdef bint prepare(self) except -1
    cdef char *take(self, unsigned int flags, int size) noexcept
    cdef int give_back(self, unsigned int flags) except -1
    cdef void refuse(self, unsigned int flags) noexcept
    cdef void grow(self) noexcept
    cdef void close(self) noexcept
    cdef bint _register(self) except -1
    cdef int _map(self) except -1
    cdef size_t _mapped(self) noexcept
    cdef void _publish(self) noexcept


cdef BufferPool new_stream_pool(Ring ring)


cdef BufferPool new_datagram_pool(Ring ring)
