"""TLS: asyncio's SSLProtocol, with what happens for every message compiled."""

cdef enum Decrypted:
    FAILED = -1         # with the exception set
    GOES_ON = 0
    NOTHING_MORE = 1    # OpenSSL wants more records
    CLOSED = 2          # the peer has said that no more comes


cdef bint is_secure(object protocol) except -1


cdef int receive_records(object protocol, const char *data, Py_ssize_t size) except -1
cdef bint is_open(object protocol) except -1
cdef int read_records(object protocol) except -1
cdef int deliver_records(object protocol) except -1
cdef bint decrypt(object protocol, list pieces) except -1
cdef Decrypted decrypt_piece(
    object incoming, object engine, Py_ssize_t room, list pieces) except FAILED
cdef int write_records(object protocol, bytes data) except -1
cdef int send_records(object protocol) except -1
