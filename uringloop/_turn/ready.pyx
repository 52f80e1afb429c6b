"""Handles that are ready to run: a circular queue, whose hot half is in the declaration.

Its own thread pushes and pops; other threads may push under the GIL.
"""

# It starts with room for this many handles; a power of two, and grows by doubling.
READY_AT_START = 64

# What is needed at the interpreter's end is C's: the names of modules are gone then.
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
        # The old handles go last: dropping them may run code that schedules.
        del old
        return 0
