"""The two ends of a pipe, FIFO, terminal or socket that the program has opened itself."""

cimport cython
from uringloop._ring.ring cimport Operation
from uringloop._transport.pausing cimport ReadTransport
from uringloop._transport.writer cimport WriteTransport


@cython.final
cdef class ReadPipeTransport(ReadTransport):
    cdef int on_read(self, int res, unsigned int flags) except -1
    cdef int read_some(self) except -1
    cdef int deliver(self, bytes data) except -1
    cdef int end_of_file(self) except -1


@cython.final
cdef class WritePipeTransport(WriteTransport):
    cdef Operation watch_op         # a one-shot poll for the end of the reader
    cdef bint watchable             # a character device is not watched
    cdef unsigned int watch_mask    # what else than errors means that the reader has gone
    cdef bint cancelling            # a cancel of watch_op is on its way

    cdef int submit_watch(self) except -1
    cdef int on_watch(self, int res, unsigned int flags) except -1
    cdef int stop_watching(self) except -1
