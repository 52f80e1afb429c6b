"""asyncio's streams: received bytes, and the end of a connection."""

cdef bint is_fed(object protocol) except -1


cdef bint feed(object protocol, const char *data, Py_ssize_t size) except -1


cpdef object lose(object protocol, object exc)
