"""Flow control: when the protocol is paused, and when it is resumed."""

from uringloop._transport.read_transport cimport ReadTransport


cdef class FlowControl(ReadTransport):
    cdef bint writing_paused        # pause_writing() was called, resume_writing() was not
    cdef int writes_lost            # writes since the end, for the warning
    cdef Py_ssize_t high_water      # bytes
    cdef Py_ssize_t low_water       # bytes

    cdef Py_ssize_t unsent(self) noexcept
    cdef bint is_sending(self) noexcept
    cdef str lost_write_warning(self)
    cdef int warn_lost(self) except -1
    cdef int pause_protocol(self) except -1
    cdef int resume_protocol(self) except -1
