"""TLS records, to and from OpenSSL by the `ssl` module's objects."""

cimport cython
from cpython.object cimport PyObject

from uringloop._cpython.membio cimport membio_memory
from uringloop._turn.turn cimport LoopCore


@cython.final
cdef class RecordFramer:
    cdef unsigned char header[5]
    cdef Py_ssize_t tail        # bytes seen of the incomplete record
    cdef bint blind             # the ends of records are unknown: a header was invalid, for example

    cdef Py_ssize_t end_of_record(self, const char *data, Py_ssize_t size) noexcept


@cython.final
cdef class Window:
    cdef char *start            # borrowed; set before each call, invalid after it
    cdef Py_ssize_t size
    cdef bint readonly

    cdef void show(self, const char *start, Py_ssize_t size) noexcept
    cdef void lend(self, char *start, Py_ssize_t size) noexcept


@cython.final
@cython.no_gc
cdef class BIOMemory:
    cdef object bio             # MemoryBIO
    cdef membio_memory *own     # its own memory; other memory may be lent to it

    cdef void lend(self, membio_memory *memory) noexcept
    cdef void take_back(self) noexcept


@cython.final
cdef class Scratch:
    cdef object bio             # MemoryBIO, there only to own `memory`
    # The memory of `bio`, lent to one connection's BIO at a time. After a call of OpenSSL it has
    # the records that the call has written.
    cdef membio_memory *memory

    cdef bytes rest(self, Py_ssize_t offset)


@cython.final
cdef class Records:
    cdef object incoming        # MemoryBIO: records from the peer
    cdef object outgoing        # MemoryBIO: records for the peer
    cdef object sslobj          # SSLObject, or what another context's wrap_bio() returns
    cdef object engine          # what `sslobj` calls, an _SSLSocket; `sslobj` if that is not known
    cdef bint resumes           # `sslobj` keeps sessions for later connections
    cdef bint is_stock          # `engine` is called by its C functions, see records.pyx
    cdef RecordFramer framer    # of the bytes that went into `incoming`
    cdef Window window          # borrowed memory of one call
    cdef bint may_have_more     # whole records, or plaintext, may be unread
    cdef bint peer_closed       # a read has found close_notify
    cdef object failure         # of a read, until the plaintext before it is delivered; or None
    cdef tuple read_arguments   # of the last `decrypt_one`
    cdef Py_ssize_t read_room   # what `read_arguments` ask for
    cdef tuple fill_arguments   # of `decrypt_into`
    cdef Py_ssize_t overhead    # how many bytes of a record, at least, are not plaintext
    cdef BIOMemory memory_in    # incoming's; None before its first exchange
    cdef BIOMemory memory_out   # outgoing's; None before its first exchange
    cdef membio_memory lent     # read by `incoming` in place of its own memory
    cdef bint is_lent           # `lent` is in use

    cdef int learn_overhead(self) except -1
    cdef int take_in(self, const char *data, Py_ssize_t size) except -1
    cdef int take_in_all(self, const char *data, Py_ssize_t size) except -1
    cdef Py_ssize_t unread(self) except -1
    cdef Py_ssize_t left(self) except -1
    cdef bint has_more(self) except -1
    cdef bint is_at_end(self) noexcept
    cdef int end_read(self) except -1
    cdef int keep_failure(self, object exc) except -1
    cdef int raise_failure(self) except -1
    cdef bytes decrypt(self, const char *data, Py_ssize_t size)
    cdef bytes decrypt_one(self, Py_ssize_t room)
    cdef bytes decrypt_several(
        self, const char *data, Py_ssize_t size, Py_ssize_t end, Py_ssize_t room)
    cdef Py_ssize_t last_end(self, const char *data, Py_ssize_t size, Py_ssize_t end) noexcept
    cdef Py_ssize_t decrypt_lent(
        self, const char *data, Py_ssize_t size, char *start, Py_ssize_t room) except -1
    cdef int lend(self, const char *data, Py_ssize_t size) except -1
    cdef int take_back(self) except -1
    cdef int check_not_lent(self) except -1
    cdef bytes decrypt_pending(self)
    cdef Py_ssize_t decrypt_into(self, char *start, Py_ssize_t room) except -1
    cdef bytes read_other(self, Py_ssize_t room)
    cdef Py_ssize_t read_other_into(self, char *start, Py_ssize_t room) except -1
    cdef Py_ssize_t write_other(self, bytes data) except -1
    cdef Py_ssize_t fill(self, char *start, Py_ssize_t room) except -1
    cdef Py_ssize_t encrypt(self, object data) except -1
    cdef Py_ssize_t encrypt_from(self, const char *data, Py_ssize_t size) except -1
    cdef Py_ssize_t encrypt_to(self, Scratch scratch, object data) except -1
    cdef bytes encrypt_out(self, LoopCore loop, bytes data, Py_ssize_t *done)
    cdef Scratch take_scratch(self, LoopCore loop)
    cdef Py_ssize_t unsent(self) except -1
    cdef bytes take_out(self)


cdef int give_scratch(LoopCore loop, Scratch scratch) except -1
cdef Py_ssize_t pending(object bio) except -1
cdef int clear_want_read() except -1
