"""Handles that are ready to run: a circular queue. Push and pop are inline, in the .pxd.

The loop's thread pushes and pops; other threads may push under the GIL.
"""

# Initial capacity, a power of two; the queue grows by doubling.
READY_AT_START = 64

# A C global: module dictionaries may be cleared at shutdown.
cdef Py_ssize_t FIRST = READY_AT_START


cdef class ReadyQueue:

    def __cinit__(self):
        self.items = [None] * FIRST

    cdef int grow(self) except -1:
        cdef list old = self.items
        self.items = old[self.head:] + old[:self.head] + [None] * len(old)
        self.head = 0
        return 0

    cdef int clear(self) except -1:
        cdef list old = self.items
        self.items = [None] * FIRST
        self.head = 0
        self.count = 0
        # Drop the old handles last: destructors may run code that schedules callbacks.
        del old
        return 0
