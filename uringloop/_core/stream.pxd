"""A TCP or UNIX stream connection."""

from uringloop._core.ring cimport Operation
from uringloop._core.transport cimport Transport
from uringloop._core.writequeue cimport WriteQueue


cdef class StreamTransport(Transport):
    # reading
    cdef Operation recv_op          # owns nothing: the kernel writes to the pool's buffers
    cdef bint started               # connection_made has been called
    cdef bint buffered              # the protocol is a BufferedProtocol
    cdef bint paused                # by pause_reading
    cdef bint cancelling            # a cancel of recv_op is on its way
    cdef bint single_shot           # receives are armed one by one: AF_UNIX, or paused under load
    cdef bint starving              # waits for receive buffers
    cdef bint read_ended            # the peer's FIN was seen, or reading failed
    cdef bint stash_scheduled       # deliver_stash is in the ready queue
    cdef list stash                 # received while paused; None when there never was anything

    # writing
    cdef Operation send_op          # points into queue, which holds the bytes until it ends
    cdef WriteQueue queue
    cdef bint full                  # the socket is: a send of the ring waits for room
    cdef bint eof_written           # write_eof was called
    cdef bint writing_paused        # the protocol was told to pause
    cdef Py_ssize_t high_water
    cdef Py_ssize_t low_water

    cdef int submit_recv(self, bint poll_first) except -1
    cdef int on_recv(self, int res, unsigned int flags) except -1
    cdef int recv_ended(self, int res) except -1
    cdef int receive(self, int size, unsigned int flags) except -1
    cdef int want_recv(self) except -1
    cdef int deliver(self, bytes data) except -1
    cdef int deliver_buffered(self, const char *data, Py_ssize_t size) except -1
    cdef Py_ssize_t fill_protocol_buffer(self, const char *data, Py_ssize_t size) except -1
    cdef int keep(self, object item) except -1
    cdef int keep_first(self, bytes data) except -1
    cdef int schedule_stash(self) except -1
    cdef int end_reading(self, object item) except -1
    cdef int deliver_end(self, object item) except -1
    cdef int stop_reading(self) except -1

    cdef int submit_send(self) except -1
    cdef int on_send(self, int res, unsigned int flags) except -1
    cdef int check_eof(self) except -1
    cdef int warn_lost(self) except -1
    cdef int queue_write(self, bytes data) except -1
    cdef int queued(self) except -1
    cdef int shutdown_write(self) except -1
    cdef int send_now(self) except -1
    cdef int sent(self, Py_ssize_t size) except -1
    cdef int begin_close(self, object context) except -1
    cdef int pause_protocol(self) except -1
    cdef int resume_protocol(self) except -1


cdef StreamTransport new_stream(
    object loop, object sock, object protocol, object server, object peername)


cdef StreamTransport begin(StreamTransport transport, object waiter)
