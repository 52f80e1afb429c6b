"""Handles that are ready to run: a circular queue. Push and pop are inline, in the .pxd.

Only the loop's thread pushes and pops. Others use the inbox, and may with a GIL push, too, as a
program does that calls call_soon() from a wrong thread.
"""

from uringloop._kernel.atomics cimport store_size


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
        store_size(&self.count, 0)
        # Drop the old handles last: destructors may run code that schedules callbacks.
        del old
        return 0
