"""The receive buffers that the kernel picks from (provided-buffer rings), one pool for each kind.

A pool owns the memory. The kernel fills a buffer and names it in the completion; the transport
copies the bytes out and gives the buffer back at once. No reference to a buffer outlives its
completion. The kernel takes buffers first in, first out, so it cycles through the whole pool: a
small pool stays in the cache. A process with little memory gets a smaller pool. Only the thread
that runs the loop may call this module.
"""


from uringloop._kernel.atomics cimport count_int
from uringloop._kernel.errors cimport ENOMEM, os_error
from uringloop._kernel.io_uring cimport (
    IORING_CQE_BUFFER_SHIFT,
    io_uring_buf_ring,
    io_uring_buf_ring_init,
)
from uringloop._kernel.libc cimport munmap
from uringloop._ring.ring cimport Ring
from uringloop._ring.uring cimport (
    uring_give_buffer,
    uring_is_forbidden,
    uring_map,
    uring_map_part,
    uring_register_buffers,
)


cdef enum:
    # The kernel requires a power of two. Each buffer takes 16 bytes in the ring of buffers.
    BUFFERS_MAX = 256
    ENTRIES_BYTES = BUFFERS_MAX * 16
    # 16 buffers of 64 KiB stay in the second-level cache (1 MiB). A pool of 64 MiB costs 30 to 60 %
    # with messages of 10 KiB.
    BUFFERS_AT_START = 16
    # asyncio and uvloop read up to 256 KiB and 64 KiB; below 64 KiB large streams lose up to 60 %.
    BUFFER_SIZE = 64 * 1024
    # The largest IP packet is 65535 bytes, so that none is truncated; 4 KiB more hold the kernel's
    # header and the sender's address in front of it, and keep the buffers on pages of their own.
    DATAGRAM_BUFFER_SIZE = 68 * 1024
    # Most datagrams are small and touch one page of a buffer: 32 of them are 128 KiB in the cache.
    DATAGRAM_BUFFERS_AT_START = 32
    # A pool maps at most an eighth of the memory that the process may still map: with a low
    # RLIMIT_DATA or RLIMIT_AS the program needs the rest for its own objects. When a pool took up
    # to a half, a program that had 4 MB left with asyncio had 0.2 MB.
    MEMORY_PARTS = 8
    # The pool grows only while buffers come back with fewer bytes than this on average: small
    # messages touch one page of each buffer, large ones would move whole buffers through the cache.
    FILL_TO_GROW = 8 * 1024
# Weight of the newest receive in the average.
cdef double FILL_WEIGHT = 1.0 / 64


cdef class BufferPool:

    def __cinit__(self, Ring ring not None, int group, unsigned int size, int at_start):
        self.ring = ring
        self.group = group
        self.size = size
        self.at_start = at_start
        self.generation = -1
        # Assume large messages at first, so that the pool stays small.
        self.fill = size
        self.starved = []

    def __dealloc__(self):
        self.close()

    cdef bint prepare(self) except -1:
        """Register the pool with the ring, once for each ring; the first call maps the memory.

        Return False if that is impossible now: the caller then waits like a starved receive.
        """
        return self.generation == self.ring.generation or self._register()

    cdef bint _register(self) except -1:
        cdef int count = self.published or self.at_start
        cdef int res
        if self.out or not self.ring.old_completions_dispatched:
            # Buffers still hold bytes for a protocol, or for completions of a replaced ring that
            # have not been dispatched: the kernel must not fill them.
            return False
        if self.entries == NULL:
            self._map()
            count = min(count, self.capacity)
        io_uring_buf_ring_init(self.entries)
        res = uring_register_buffers(&self.ring.u, self.entries, BUFFERS_MAX, self.group)
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

    cdef int _map(self) except -1:
        """Map room for BUFFERS_MAX buffers, or for fewer in a process that may map little more."""
        self.capacity = BUFFERS_MAX
        self.entries = <io_uring_buf_ring*>uring_map(ENTRIES_BYTES)
        self.memory = <char*>uring_map_part(self._mapped(), MEMORY_PARTS)
        while self.memory == NULL and self.capacity > 1:
            self.capacity //= 2
            self.memory = <char*>uring_map_part(self._mapped(), MEMORY_PARTS)
        if self.memory == NULL:
            self.memory = <char*>uring_map(self._mapped())
        if self.entries == NULL or self.memory == NULL:
            self.close()
            raise os_error(-ENOMEM, "mmap")
        return 0

    cdef size_t _mapped(self) noexcept:
        """Return the size of the buffers."""
        return <size_t>self.capacity * self.size

    cdef void _publish(self) noexcept:
        uring_give_buffer(
            self.entries, BUFFERS_MAX, self.memory + <size_t>self.published * self.size, self.size,
            self.published)
        self.published += 1

    cdef char *take(self, unsigned int flags, int size) noexcept:
        """Return the memory of the buffer that a completion's *flags* name."""
        count_int(&self.out, 1)
        self.fill += (size - self.fill) * FILL_WEIGHT
        return self.memory + <size_t>(flags >> IORING_CQE_BUFFER_SHIFT) * self.size

    cdef int give_back(self, unsigned int flags) except -1:
        """Let the kernel fill the buffer again that `take` has returned for the same *flags*."""
        assert self.out > 0
        count_int(&self.out, -1)
        self.refuse(flags)
        return 0

    cdef void refuse(self, unsigned int flags) noexcept:
        """Let the kernel fill the buffer again that a completion without bytes names."""
        cdef unsigned int number = flags >> IORING_CQE_BUFFER_SHIFT
        uring_give_buffer(
            self.entries, BUFFERS_MAX, self.memory + <size_t>number * self.size, self.size, number)

    cdef void grow(self) noexcept:
        """Double the published buffers, after the kernel found none, while messages are small."""
        cdef int wanted = min(2 * self.published, self.capacity)
        if self.fill < FILL_TO_GROW:
            while self.published < wanted:
                self._publish()

    cdef void close(self) noexcept:
        """Unmap the memory. The ring must be closed, or every receive must have ended."""
        if self.ring.memory_pinned:
            # The ring's kernel thread may still write to the buffers: leave them mapped.
            self.entries = NULL
            self.memory = NULL
        if self.entries != NULL:
            munmap(self.entries, ENTRIES_BYTES)
            self.entries = NULL
        if self.memory != NULL:
            munmap(self.memory, self._mapped())
            self.memory = NULL


cdef BufferPool new_stream_pool(Ring ring):
    return new_pool(ring, STREAM_GROUP, BUFFER_SIZE, BUFFERS_AT_START)


cdef BufferPool new_datagram_pool(Ring ring):
    return new_pool(ring, DATAGRAM_GROUP, DATAGRAM_BUFFER_SIZE, DATAGRAM_BUFFERS_AT_START)


cdef BufferPool new_pool(Ring ring, int group, unsigned int size, int at_start):
    cdef BufferPool pool = BufferPool(ring, group, size, at_start)
    if ring.u.threaded:
        # Register now: if a policy forbids it later, this ring cannot be replaced, because its
        # kernel thread keeps running.
        pool.prepare()
    return pool
