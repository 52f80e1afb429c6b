"""Bytes objects that nobody holds any more, for the next messages of their size."""


cdef bytes bytes_of(const char *memory, Py_ssize_t size)
cdef void offer(bytes data) noexcept
