"""Flow control: when a protocol is told to pause writing, and to resume."""

from uringloop._transport.pausing cimport ReadTransport


cdef class FlowControl(ReadTransport):
    cdef bint writing_paused        # the protocol was told to pause
    cdef int writes_lost            # since the end began, for the warning
    cdef Py_ssize_t high_water
    cdef Py_ssize_t low_water

    cdef Py_ssize_t unsent(self) noexcept
    cdef int pause_protocol(self) except -1
    cdef int resume_protocol(self) except -1
