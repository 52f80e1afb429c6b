"""Bytes straight into the buffer of asyncio's StreamReader."""

cdef bint is_fed(object protocol) except -1


cdef bint feed(object protocol, const char *data, Py_ssize_t size) except -1
