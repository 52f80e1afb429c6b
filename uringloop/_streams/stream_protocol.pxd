"""The protocol between a transport and a compiled StreamReader."""


cdef class ProtocolCore:
    cdef object reader_ref      # a weak reference to the StreamReader; None before and at the end
    cdef bint paused            # pause_writing() was called, and resume_writing() not yet
    cdef bint lost              # connection_lost() was called


cdef bint is_stream_protocol(object protocol) except -1
cdef bint receive(object protocol, const char *memory, Py_ssize_t size) except -1
cdef bint receive_object(object protocol, bytes data) except -1
