"""Parts of the standard library that code of ours stands in for, and their switches."""

cdef enum:
    COMPILED_TLS = 1        # the data path of TLS, in place of SSLProtocol's methods
    BIO_MEMORY = 2          # memory that is lent to MemoryBIOs, in place of copies
    STREAM_READER = 4       # bytes put into a StreamReader's buffer, in place of feed_data
    SOCKET_SLOTS = 8        # a socket's fields by their offset, in place of attributes
    KEPT_BYTES = 16         # bytes objects that are written again, in place of new ones


cdef bint uses(unsigned int part) noexcept
cdef int count_file(object sock, Py_ssize_t change) except -1
cdef bint is_closed(object sock) except -1
