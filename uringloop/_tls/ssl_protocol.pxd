"""TLS: asyncio's SSLProtocol on this loop's transports."""

cdef bint is_secure(object protocol) except -1
cdef int receive_records(object protocol, const char *data, Py_ssize_t size) except -1
