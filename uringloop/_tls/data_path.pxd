"""The data path of TLS."""

from uringloop._tls.records cimport Records, Scratch
from uringloop._transport.write_transport cimport WriteSource, WriteTransport
from uringloop._turn.turn cimport LoopCore


# Whose methods deliver and write; the drawing is in data_path.pyx.
cdef enum DataPath:
    STANDARD            # SSLProtocol's
    FIRST_READ          # WRAPPED: the first bytes will be delivered by a callback, _go_on()
    FIRST_SCHEDULED     # that callback is scheduled
    COMPILED            # TLSCore's


cdef class TLSCore(WriteSource):
    # Fields that SSLProtocol's methods read and set, under the names that they use. Those without
    # an underscore are set by a property, which updates the derived fields below.
    cdef object sslobj                      # SSLObject
    cdef object state                       # SSLProtocolState
    cdef object app_protocol                # the program's
    cdef object transport                   # of the records; None before and after the connection
    cdef object context                     # the connection's; None before the connection
    cdef object incoming_high_water         # bytes, a number of any type
    cdef object outgoing_high_water         # bytes, a number of any type
    cdef int app_reading_paused             # other threads ask is_reading()
    cdef public object _app_protocol_get_buffer
    cdef public object _app_protocol_buffer_updated
    cdef public object _write_backlog       # deque of data that OpenSSL has not encrypted
    cdef public Py_ssize_t _write_buffer_size
    cdef public bint _app_protocol_is_buffer
    cdef public bint _ssl_reading_paused
    cdef public bint _ssl_writing_paused
    cdef public bint _app_writing_paused
    # Derived fields, and this class's own.
    cdef Records records                    # owns _incoming and _outgoing; encrypts, decrypts
    cdef WriteTransport writer              # `transport` if it is uringloop's, else None
    cdef DataPath path
    cdef double reading_stops               # incoming_high_water, at most sys.maxsize
    cdef double writing_stops               # outgoing_high_water, at most sys.maxsize
    cdef LoopCore core_loop                 # None if the loop is not uringloop's; never changes
    # Small writes of this turn, which share a record.
    cdef bytes first_held                   # None if there are none
    cdef list more_held                     # those after the first
    cdef Py_ssize_t held_size               # bytes in both

    cdef int enter_state(self, object state) except -1
    cdef int choose_path(self) except -1
    cdef bint awaits_first_read(self) noexcept
    cdef int receive(self, const char *data, Py_ssize_t size) except -1
    cdef int fail_reading(self, object exc) except -1
    cdef object call_in_context(self, method)
    cdef int schedule_first_read(self) except -1
    cdef int end_first_read(self) except -1
    cdef bint is_closed_by_program(self) except -1
    cdef int reschedule_delivery(self) except -1
    cdef int receive_unopened(self, const char *data, Py_ssize_t size) except -1
    cdef int receive_open(self, const char *data, Py_ssize_t size) except -1
    cdef int read_pending(self) except -1
    cdef int deliver(self, bytes data) except -1
    cdef int fill_app_buffer(self) except -1
    cdef bint fill_until_paused(self) except -1
    cdef int close_received(self) except -1
    cdef int send_pending(self) except -1
    cdef int control_reading(self) except -1
    cdef int write(self, bytes data) except -1
    cdef int hold(self, bytes data) except -1
    cdef int add_held(self, bytes data) except -1
    cdef bytes take_held(self)
    cdef int release(self) except -1
    cdef int release_before(self, bytes data) except -1
    cdef int write_now(self, bytes data) except -1
    cdef int write_rest(self, bytes data, Py_ssize_t done) except -1
    cdef Py_ssize_t encrypt_each(self, bytes data, Py_ssize_t done, list pieces) except -1
    cdef Py_ssize_t encrypt_lent(
        self, Scratch scratch, bytes data, Py_ssize_t done, list pieces) except -1
    cdef int send_records(self) except -1
    cdef int control_writing(self) except -1
