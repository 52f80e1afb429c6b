"""The receive buffers that the kernel picks from (provided-buffer rings), one pool for each kind.

A pool owns the memory and lends it: the kernel fills a buffer, the completion names it, the
transport copies the bytes out and gives it back in the same breath. Nothing keeps a buffer
beyond its completion. The kernel takes buffers first in, first out, so it walks the whole pool:
few buffers stay in the cache. Only the thread that runs the loop may call.
"""


from uringloop._kernel.errors cimport ENOMEM, os_error
from uringloop._kernel.io_uring cimport (
    io_uring_buf_ring,
    io_uring_buf_ring_init,
    IORING_CQE_BUFFER_SHIFT,
)
from uringloop._kernel.libc cimport munmap
from uringloop._ring.ring cimport Ring
from uringloop._ring.uring cimport (
    uring_give_buffer,
    uring_is_forbidden,
    uring_map,
    uring_register_buffers,
)


# A power of two, as the kernel asks; 16 bytes each.
BUFFERS_MAX = 256
# 16 x 64 KiB stay in the second-level cache (1 MiB); 64 MiB cost 30 to 60 % at 10 KiB a message.
BUFFERS_AT_START = 16
# asyncio and uvloop read up to 256 KiB and 64 KiB; below 64 KiB large streams lose up to 60 %.
BUFFER_SIZE = 64 * 1024
# The largest IP packet is 65535 bytes, so that none is truncated; 4 KiB more hold the kernel's
# header and the sender's address in front of it, and keep the buffers on pages of their own.
DATAGRAM_BUFFER_SIZE = 68 * 1024
# Most datagrams are small and touch one page of a buffer: 32 of them are 128 KiB in the cache.
DATAGRAM_BUFFERS_AT_START = 32
# The pool grows while the average buffer comes back less full than this: many small messages
# touch a page of each buffer, large ones would go through all of it.
FILL_TO_GROW = 8 * 1024
# Weight of the newest receive in the average.
FILL_WEIGHT = 1.0 / 64

cdef unsigned int ENTRIES = BUFFERS_MAX
cdef size_t ENTRIES_BYTES = BUFFERS_MAX * 16
# One more that the kernel never gets.
cdef size_t MAPPED_BUFFERS = BUFFERS_MAX + 1
cdef double WEIGHT = FILL_WEIGHT
cdef double GROW_BELOW = FILL_TO_GROW


cdef class BufferPool:

    def __cinit__(self, Ring ring not None, int group, unsigned int size, int at_start):
        self.ring = ring
        self.group = group
        self.size = size
        self.at_start = at_start
        self.generation = -1
        # Until it is known otherwise, messages are large and the pool stays small.
        self.fill = size
        self.starved = []

    def __dealloc__(self):
        self.close()

    cdef bint prepare(self) except -1:
        """Make the pool known to the ring, once for each ring; the memory comes at first need.

        False if it can not be now: whoever asks waits with those that have found no buffer.
        """
        return self.generation == self.ring.generation or self._register()

    cdef bint _register(self) except -1:
        cdef int count = self.published or self.at_start
        cdef int res
        if self.out or not self.ring.looked:
            # A protocol is being given a buffer's bytes, or is to be: the kernel must not get it.
            return False
        if self.entries == NULL:
            self.entries = <io_uring_buf_ring*>uring_map(ENTRIES_BYTES)
            self.memory = <char*>uring_map(MAPPED_BUFFERS * <size_t>self.size)
            if self.entries == NULL or self.memory == NULL:
                self.close()
                raise os_error(-ENOMEM, "mmap")
        io_uring_buf_ring_init(self.entries)
        res = uring_register_buffers(&self.ring.u, self.entries, ENTRIES, self.group)
        if uring_is_forbidden(res) and self.ring.u.soft == NULL:
            self.ring.forbid(res, "io_uring_register")
            return False
        if res < 0:
            raise os_error(res, "io_uring_register")
        self.generation = self.ring.generation
        self.published = 0
        while self.published < count:
            self._publish()
        return True

    cdef void _publish(self) noexcept:
        uring_give_buffer(
            self.entries, ENTRIES, self.memory + <size_t>self.published * self.size, self.size,
            self.published)
        self.published += 1

    cdef char *take(self, unsigned int flags, int size) noexcept:
        """Return the memory of the buffer that a completion's *flags* name."""
        self.out += 1
        self.fill += (size - self.fill) * WEIGHT
        return self.memory + <size_t>(flags >> IORING_CQE_BUFFER_SHIFT) * self.size

    cdef void give_back(self, unsigned int flags) noexcept:
        cdef unsigned int number = flags >> IORING_CQE_BUFFER_SHIFT
        self.out -= 1
        uring_give_buffer(
            self.entries, ENTRIES, self.memory + <size_t>number * self.size, self.size, number)

    cdef char *spare(self) noexcept:
        """Return memory of a buffer's size for the loop's own calls; `prepare` must have been."""
        return self.memory + ENTRIES * <size_t>self.size

    cdef void grow(self) noexcept:
        """The kernel found no buffer: publish as many again, while messages are small."""
        cdef int wanted = min(2 * self.published, BUFFERS_MAX)
        if self.fill < GROW_BELOW:
            while self.published < wanted:
                self._publish()

    cdef void close(self) noexcept:
        """Unmap. The ring must be closed, or every receive have ended."""
        if self.ring.u.inherited or self.ring.held:
            # Not mapped in a forked child: other memory may live at these addresses. And a kernel
            # thread that could not be ended in time may write to it still.
            self.entries = NULL
            self.memory = NULL
        if self.entries != NULL:
            munmap(self.entries, ENTRIES_BYTES)
            self.entries = NULL
        if self.memory != NULL:
            munmap(self.memory, MAPPED_BUFFERS * <size_t>self.size)
            self.memory = NULL


cdef BufferPool new_stream_pool(Ring ring):
    return new_pool(ring, STREAM_GROUP, BUFFER_SIZE, BUFFERS_AT_START)


cdef BufferPool new_datagram_pool(Ring ring):
    return new_pool(ring, DATAGRAM_GROUP, DATAGRAM_BUFFER_SIZE, DATAGRAM_BUFFERS_AT_START)


cdef BufferPool new_pool(Ring ring, int group, unsigned int size, int at_start):
    cdef BufferPool pool = BufferPool(ring, group, size, at_start)
    if ring.u.threaded:
        # Now: such a ring can not be replaced while it runs, for the kernel's thread works on.
        pool.prepare()
    return pool
