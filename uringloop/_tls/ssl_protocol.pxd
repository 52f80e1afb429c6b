"""TLS: the protocol of a transport, with a transport of its own for the program."""

cimport cython

from uringloop._tls.records cimport Records, Scratch
from uringloop._transport.write_transport cimport WriteSource, WriteTransport
from uringloop._turn.turn cimport LoopCore


# The drawing is in ssl_protocol.pyx.
cdef enum TLSState:
    UNCONNECTED         # connection_made() has not been called
    HANDSHAKE
    TELLING             # the handshake is complete, and connection_made() is called
    FIRST_READ          # a callback delivers what came with the handshake
    OPEN
    FLUSHING            # closed, or at EOF, when unread bytes may wait for resume_reading()
    SHUTDOWN            # close_notify is sent, if the peer may read it, and the peer's is awaited
    ENDED               # lost, or about to be


# What the program's protocol has been told.
cdef enum Told:
    NOTHING
    CONNECTED           # connection_made(), here or by another transport before start_tls()
    AT_EOF              # eof_received()
    LOST                # connection_lost() is scheduled


@cython.final
cdef class SSLProtocol(WriteSource):
    cdef dict __dict__                      # programs replace methods of the object
    cdef object __weakref__
    cdef LoopCore loop
    cdef TLSState state
    cdef Told told
    cdef Records records                    # encrypts and decrypts
    cdef bint awaits_session                # the next bytes from the peer may bring a session
    cdef object app_protocol                # the program's; None after the connection
    cdef SSLTransport app_transport     # the program's; None after the end
    cdef object transport                   # of the records; None before and after the connection
    cdef WriteTransport writer              # `transport` if it is uringloop's, else None
    cdef object context                     # the connection's; None before the connection
    cdef object waiter                      # a future that the handshake's end resolves, or None
    cdef dict extra                         # for get_extra_info()
    cdef object timer                       # of the handshake, then of the shutdown; or None
    cdef object handshake_timeout           # seconds
    cdef object shutdown_timeout            # seconds
    cdef double handshake_began
    cdef bytearray buffer                   # for get_buffer(); None until it is called
    # What the program has written.
    cdef object backlog                     # a deque of bytes that OpenSSL has not encrypted
    cdef Py_ssize_t backlog_size
    cdef Py_ssize_t backlog_done            # bytes of the first that OpenSSL has encrypted
    # Small writes of this turn share a record: the first, and those after it. Mostly there is one,
    # and a list would be allocated for it: 470 instructions of the 55,400 of an echo of 1 KB.
    cdef bytes first_held
    cdef list more_held
    cdef Py_ssize_t held_size               # bytes in both
    cdef int writes_lost
    # Flow control. Marks are in bytes, numbers of any type.
    cdef object read_high_water
    cdef object read_low_water
    cdef object write_high_water
    cdef object write_low_water
    cdef double reading_stops               # read_high_water, at most sys.maxsize
    cdef double writing_stops               # write_high_water, at most sys.maxsize
    cdef int app_reading_paused             # other threads ask is_reading()
    cdef int app_writing_paused             # other threads may read it
    cdef bint app_is_buffered               # the program's protocol has get_buffer()
    cdef bint reading_paused                # of the transport below
    cdef bint writing_paused                # by the transport below
    cdef bint at_eof                        # the transport below has received its end

    cdef int enter_state(self, TLSState state) except -1
    cdef int use_protocol(self, object protocol) except -1
    cdef int use_transport(self, object transport) except -1
    cdef int begin_handshake(self) except -1
    cdef int do_handshake(self) except -1
    cdef int complete_handshake(self) except -1
    cdef int tell_connected(self) except -1
    cdef int fail_handshake(self, object exc) except -1
    cdef int wake_waiter(self, object exc) except -1
    cdef int stop_timer(self) except -1
    cdef int fail(self, object exc, str message=*) except -1
    cdef int report(self, str message, object exc, object transport) except -1
    cdef int abort(self, object exc) except -1
    cdef bint is_closed(self) noexcept
    cdef int begin_shutdown(self) except -1
    cdef int start_shutdown_timer(self) except -1
    cdef int begin_flush(self) except -1
    cdef int take_over_inner(self) except -1
    cdef bytes last_records(self)
    cdef int flush(self) except -1
    cdef bint has_unread_end(self) except -1
    cdef int do_shutdown(self) except -1
    cdef bint drop_unread(self) except -1
    cdef int tell_eof(self) except -1
    cdef bint end_received(self) except -1
    cdef int receive(self, const char *data, Py_ssize_t size) except -1
    cdef int go_on_received(self) except -1
    cdef bint keeps_records(self) noexcept
    cdef int go_on_soon(self) except -1
    cdef int fail_callback(self, object exc) except -1
    cdef int read_first(self) except -1
    cdef int receive_open(self, const char *data, Py_ssize_t size) except -1
    cdef int read(self) except -1
    cdef int read_pending(self) except -1
    cdef int resume_reading(self) except -1
    cdef int fail_reading(self, object exc) except -1
    cdef int deliver(self, bytes data) except -1
    cdef bint deliver_to_known(self, bytes data) except -1
    cdef int fill_app_buffer(self) except -1
    cdef int end_delivery(self) except -1
    cdef int close_received(self) except -1
    cdef int control_reading(self) except -1
    cdef int write(self, bytes data) except -1
    cdef int count_lost_write(self) except -1
    cdef int write_open(self, bytes data) except -1
    cdef int add_held(self, bytes data) except -1
    cdef bytes take_held(self)
    cdef int drop_writes(self) except -1
    cdef int release(self) except -1
    cdef int keep_held(self) except -1
    cdef int write_now(self, bytes data) except -1
    cdef int add_backlog(self, bytes data) except -1
    cdef int write_backlog(self) except -1
    cdef bint write_some(self) except -1
    cdef Py_ssize_t first_waiting(self) except -1
    cdef Py_ssize_t encrypt_first(self, Scratch scratch) except -1
    cdef int fail_writing(self, object exc) except -1
    cdef int send_lent(self, Scratch scratch) except -1
    cdef int pass_on(self, list pieces) except -1
    cdef int send_pending(self) except -1
    cdef int send_records(self) except -1
    cdef int pass_records(self) except -1
    cdef int control_writing(self) except -1
    cdef int tell_writing(self) except -1
    cdef int call_flow_control(self, str name) except -1
    cdef object call_app(self, str name)
    cdef Py_ssize_t unsent(self) except -1
    cdef int set_write_limits(self, object high, object low) except -1
    cdef int set_read_limits(self, object high, object low) except -1


@cython.final
cdef class SSLTransport:
    cdef dict __dict__                      # programs set attributes on transports
    cdef object __weakref__
    cdef SSLProtocol protocol
    cdef int closed                         # other threads ask is_closing()
