"""The two ends of a pipe, FIFO, terminal or socket that the program has opened itself."""

cimport cython
from uringloop._ring.ring cimport Operation
from uringloop._transport.read_transport cimport ReadTransport
from uringloop._transport.write_transport cimport WriteTransport


@cython.final
cdef class ReadPipeTransport(ReadTransport):
    cdef int deliver(self, bytes data) except -1
    cdef int end_of_file(self) except -1


# How a writing transport watches its reader; the drawing is in pipe.pyx.
cdef enum Watching:
    UNWATCHED       # watch_op is not in flight
    UNWATCHABLE     # a character device: its poll would report nothing
    WATCHED         # watch_op is in flight


@cython.final
cdef class WritePipeTransport(WriteTransport):
    cdef Operation watch_op         # a one-shot poll, which completes when the reader closes
    cdef Watching watching
    cdef unsigned int watch_mask    # POLLIN for a socket, else 0: POLLERR and POLLHUP are implied

    cdef int submit_watch(self) except -1
    cdef int on_watch(self, int res, unsigned int flags) except -1
    cdef int stop_watching(self) except -1
