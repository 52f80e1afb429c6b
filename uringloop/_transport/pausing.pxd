"""Pausing: what a transport that reads does with what comes meanwhile."""

from uringloop._transport.transport cimport Transport


cdef class ReadTransport(Transport):
    cdef bint started               # connection_made has been called
    cdef bint paused                # by pause_reading
    cdef bint stash_scheduled       # _deliver_stash is in the ready queue
    cdef list stash                 # came while paused; None when there never was anything

    cdef int want_recv(self) except -1
    cdef int stop_reading(self) except -1
    cdef object refusal(self, object buffer)
    cdef int take_item(self, object item) except -1
    cdef int keep(self, object item) except -1
    cdef int keep_first(self, object item) except -1
    cdef Py_ssize_t keep_rest(self, const char *rest, Py_ssize_t size) except -1
    cdef int schedule_stash(self) except -1
    cdef int deliver_item(self, object item) except -1
    cdef int deliver_end(self, object item) except -1
    cdef int deliver_last(self, object item) except -1
