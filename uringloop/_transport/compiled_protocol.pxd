"""The seam for protocols that take received bytes in C, without a call of data_received()."""


cdef class CompiledProtocol:
    cdef bint replaces_data_received(self) except -1
    cdef bint receive(self, const char *memory, Py_ssize_t size) except -1
    cdef bint receive_object(self, bytes data) except -1


cdef bint is_compiled(object protocol) except -1
