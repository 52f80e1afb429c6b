"""Work for the end of a turn: the base of what the loop has on its flush list."""


cdef class Flushable:

    cdef int flush(self) except -1:
        raise NotImplementedError

    cdef int flush_alone(self) except -1:
        """Flush the only item of the list."""
        return self.flush()

    cdef int rearm(self) except -1:
        raise NotImplementedError

    cdef int deliver_more(self) except -1:
        """Deliver what was left in an earlier turn."""
        raise NotImplementedError
