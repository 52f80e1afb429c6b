"""The writing half of a connection."""

from uringloop._ring.ring cimport Operation
from uringloop._transport.flow_control cimport FlowControl
from uringloop._transport.write_queue cimport WriteQueue


cdef class WriteSource:

    cdef bytes take_records(self)


# The output of a transport; the drawing is in write_transport.pyx.
cdef enum Output:
    WRITABLE
    EOF_WRITTEN     # write_eof() was called; queued bytes are sent first
    EOF_SENT        # the descriptor's output is shut down


cdef class WriteTransport(FlowControl):
    cdef WriteSource source         # gives bytes to the next send; mostly None
    cdef Operation send_op          # points into queue, which owns the bytes until it ends
    cdef WriteQueue queue
    cdef Output output
    cdef bint socket_full           # the descriptor had no room: the next send waits until it has
    cdef object send_error          # the exception that made the transport BROKEN; else None
    cdef object sendfile_waiter        # sendfile() awaits it for an empty queue, then room; or None

    cdef int submit_send(self) except -1
    cdef Py_ssize_t send_directly(self) noexcept
    cdef int on_send(self, int res, unsigned int flags) except -1
    cdef int put(self, object data) except -1
    cdef int put_all(self, list items) except -1
    cdef int set_source(self, WriteSource source, Py_ssize_t size) except -1
    cdef int pull_source(self) except -1
    cdef bint is_awaited(self) noexcept
    cdef bint must_finish(self) noexcept
    cdef bint loses_writes(self) noexcept
    cdef int check_writable(self, str method) except -1
    cdef int queue_grew(self, Py_ssize_t size) except -1
    cdef int pause_sending(self) except -1
    cdef int send_now(self) except -1
    cdef Py_ssize_t send_memory(self, const char *data, Py_ssize_t size) except -1
    cdef int send_last(self) except -1
    cdef void consume(self, Py_ssize_t size) noexcept
    cdef int queue_sent(self, Py_ssize_t size) except -1
    cdef int finish_writing(self) except -1
    cdef int send_eof(self) except -1
    cdef int send_failed(self, object exc) except -1
    cdef object kept_error(self, object exc)
    cdef bint is_receiving(self) noexcept
    cdef bint recv_rest(self) except -1
    cdef int write_failed(self, object exc) except -1
    cdef int end_output(self) except -1
    cdef int stop_reading(self) except -1
    cdef int begin_close(self) except -1
