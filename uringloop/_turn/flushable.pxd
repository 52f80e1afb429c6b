"""Work for the end of a turn."""


cdef class Flushable:
    # An object with work for the end of a turn: a transport's writes, Watchers to be armed again.
    cdef bint flush_queued      # on the loop's flush list
    cdef bint delivery_queued   # on the loop's list of deliveries
    cdef int flush(self) except -1
    cdef int flush_alone(self) except -1
    cdef int rearm(self) except -1
    cdef int deliver_more(self) except -1
