"""Flow control: when a protocol is told to pause writing, and to resume.

Between two marks of what waits to be sent, in bytes. What waits, and what it counts as, is the
subclass's affair; nothing here touches a descriptor.
"""

from cpython.object cimport PyObject
from cpython.pyport cimport PY_SSIZE_T_MAX

from uringloop._cpython.pyapi cimport Py_DECREF_owned
from uringloop._transport.pausing cimport ReadTransport


# asyncio's default: pause the protocol above 64 KiB, resume it at a quarter of that.
HIGH_WATER = 64 * 1024

cdef object NAME_PAUSE_WRITING = "pause_writing"
cdef object NAME_RESUME_WRITING = "resume_writing"


cdef class FlowControl(ReadTransport):

    def __cinit__(self, *args, **kwargs):
        self.high_water = HIGH_WATER
        self.low_water = HIGH_WATER // 4

    cdef Py_ssize_t unsent(self) noexcept:
        """Return what waits to be sent, as far as the marks are concerned."""
        return 0

    cdef int pause_protocol(self) except -1:
        """Tell the protocol to pause if too much waits."""
        cdef PyObject *result
        if self.writing_paused or self.unsent() <= self.high_water:
            return 0
        self.writing_paused = True
        result = self.call(NAME_PAUSE_WRITING, NULL)
        if result == NULL:
            return self.call_failed("protocol.pause_writing() failed", False)
        Py_DECREF_owned(result)
        return 0

    cdef int resume_protocol(self) except -1:
        cdef PyObject *result
        self.writing_paused = False
        result = self.call(NAME_RESUME_WRITING, NULL)
        if result == NULL:
            return self.call_failed("protocol.resume_writing() failed", False)
        Py_DECREF_owned(result)
        return 0

    @property
    def _protocol_paused(self):
        return self.writing_paused

    def get_write_buffer_limits(self):
        return (self.low_water, self.high_water)

    def set_write_buffer_limits(self, high=None, low=None):
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        # An infinite limit is as good as one that memory can not reach.
        self.high_water = int(min(high, PY_SSIZE_T_MAX))
        self.low_water = int(min(low, PY_SSIZE_T_MAX))
        if self.get_write_buffer_size() > self.high_water:
            self.pause_protocol()
