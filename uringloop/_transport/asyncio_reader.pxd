"""asyncio's streams: received bytes, and the end of a connection."""

cdef bint appends_to_reader(object protocol) except -1


cdef bint append_to_reader(object protocol, const char *data, Py_ssize_t size) except -1


cpdef object call_connection_lost(object protocol, object exc)
