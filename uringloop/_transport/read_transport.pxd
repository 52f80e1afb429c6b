"""Receiving: when the next receive is armed, and the stash of a paused transport."""

from libc.stdint cimport uint64_t

from uringloop._kernel.io_uring cimport io_uring_sqe
from uringloop._ring.ring cimport Operation
from uringloop._transport.transport cimport Transport


# What recv_op is, or what receiving waits for; the drawing is in read_transport.pyx.
cdef enum Receiving:
    IDLE            # recv_op is not in flight
    POLL_ONCE       # it is a poll that reports once; a system call receives
    POLL            # it is a poll that reports each arrival, for large messages
    MULTISHOT       # it is a receive by the ring into buffers of the pool, until it is cancelled
    PAUSING         # it is such a receive, and a pause, or detach(), has prepared its cancel
    STOPPING        # it is such a receive, and something else has prepared its cancel
    DELAYED         # a timer calls _recv_later()
    STARVED         # of datagrams: the pool has no free buffer; the loop calls rearm() when it has
    ENDED           # by EOF, or an error that stays; also a transport that only writes


# How a protocol gets bytes. The kinds from BUFFERED on have get_buffer().
cdef enum ProtocolKind:
    PLAIN           # data_received()
    STREAM_READER   # asyncio's StreamReaderProtocol: see asyncio_reader.pyx
    COMPILED        # CompiledProtocol: takes bytes by a call in C
    BUFFERED        # get_buffer() and buffer_updated()
    TLS             # SSLProtocol: records without get_buffer()


cdef enum:
    # How many receives use a poll at the beginning and after a pause. A poll takes no bytes, and
    # programs hand a connection to other code after its first messages, or while it is paused.
    POLLS_FIRST = 4


cdef class ReadTransport(Transport):
    cdef ProtocolKind kind          # of the protocol; PLAIN for datagrams and pipes
    cdef Operation recv_op          # a receive into the pool's buffers, or a poll; owns nothing
    cdef Receiving receiving
    cdef bint was_armed             # for the statistics only: the next receive is a re-arm
    # These decide whether the next receive is a poll. They change in any state of `receiving`.
    cdef bint may_multishot         # the ring can receive, and would miss no end; never for pipes
    cdef int polls_left             # receives by POLL_ONCE before MULTISHOT
    # The values of `paused` and `readable` do not follow from `receiving`: the protocol may pause
    # in any state, and a poll that has reported input may have ended or still be in flight.
    cdef int paused                 # by pause_reading; other threads ask is_reading()
    cdef bint readable              # a poll has reported input that is not received yet
    cdef uint64_t served_turn       # the turn in which something was last armed or delivered
    # Items that a later turn delivers, the end of the input among them: they arrived while paused,
    # behind other items, or in a turn that had been served. None before the first one.
    cdef list stash

    cdef int want_recv(self) except -1
    cdef int submit_recv(self) except -1
    cdef str describe_reading(self)
    cdef int on_recv(self, int res, unsigned int flags) except -1
    cdef int on_received(self, int res, unsigned int flags) except -1
    cdef int on_recv_end(self, int res) except -1
    cdef int delay_recv(self) except -1
    cdef int arm(self, io_uring_sqe *sqe, Receiving state) except -1
    cdef int disarmed(self) except -1
    cdef bint is_multishot(self) noexcept
    cdef int cancel_multishot(self) except -1
    cdef bint undo_cancel(self) noexcept
    cdef int cancel_recv(self) except -1
    cdef int starve(self) except -1
    cdef int end_input(self) except -1
    cdef int stop_reading(self) except -1
    cdef int return_to_polls(self) except -1
    cdef bint may_receive(self) noexcept
    cdef int on_readable(self) except -1
    cdef int recv_ready(self) except -1
    cdef bint served_this_turn(self) noexcept
    cdef int wait_for_stash(self) except -1
    cdef object refusal(self, object buffer)
    cdef int deliver_or_stash(self, object item) except -1
    cdef int stash_item(self, object item) except -1
    cdef int stash_first(self, object item) except -1
    cdef Py_ssize_t stash_rest(self, const char *rest, Py_ssize_t size) except -1
    cdef int deliver_item(self, object item) except -1
    cdef int deliver_end(self, object item) except -1
    cdef int deliver_last(self, object item) except -1
