"""Flow control: calls pause_writing() above the high-water mark, resume_writing() at the low one.

Both marks are numbers of bytes that wait to be sent. The subclass owns the queue and returns its
size; nothing here touches a descriptor. While bytes are queued, a subclass calls `pause_protocol`
and `resume_protocol` only with the transport on the flush list or a send in flight, so that the
next run sends the bytes if the protocol raises KeyboardInterrupt.
"""

from asyncio import constants
from asyncio.log import logger

from cpython.object cimport PyObject
from cpython.pyport cimport PY_SSIZE_T_MAX

from uringloop._cpython.pyapi cimport Py_DECREF_owned
from uringloop._kernel.atomics cimport load_size, store_size
from uringloop._transport.read_transport cimport ReadTransport
from uringloop._transport.transport cimport pending_exception, polling_or_idle


# asyncio's default: pause the protocol above 64 KiB, resume it at a quarter of that.
HIGH_WATER = 64 * 1024

cdef int LOG_AFTER = constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES
cdef object NAME_PAUSE_WRITING = "pause_writing"
cdef object NAME_RESUME_WRITING = "resume_writing"


cdef class FlowControl(ReadTransport):

    def __cinit__(self, *args, **kwargs):
        self.high_water = HIGH_WATER
        self.low_water = HIGH_WATER // 4
        # asyncio counts the end of a socket's connection as the first lost write.
        self.writes_lost = 1

    cdef Py_ssize_t unsent(self) noexcept:
        """Return the bytes that wait to be sent."""
        return 0

    cdef bint is_sending(self) noexcept:
        """Return whether a send, or a poll for room, is in flight."""
        return False

    cdef bint has_operations(self) noexcept:
        return self.recv_op.in_flight or self.is_sending()

    cdef str describe_io(self):
        return (
            f"read={self.describe_reading()} "
            f"write=<{polling_or_idle(self.is_sending())}, bufsize={self.unsent()}>"
        )

    cdef str lost_write_warning(self):
        return "socket.send() raised exception."

    cdef int warn_lost(self) except -1:
        """Count a write after the end; log a warning from the fifth on, as asyncio does."""
        if self.writes_lost >= LOG_AFTER:
            logger.warning(self.lost_write_warning())
        self.writes_lost += 1
        return 0

    cdef int pause_protocol(self) except -1:
        """Call pause_writing() if more than the high-water mark waits."""
        cdef PyObject *result
        if self.writing_paused or self.unsent() <= self.high_water:
            return 0
        self.writing_paused = True
        result = self.call(NAME_PAUSE_WRITING, NULL)
        if result == NULL:
            return self.report("protocol.pause_writing() failed", pending_exception())
        Py_DECREF_owned(result)
        return 0

    cdef int resume_protocol(self) except -1:
        cdef PyObject *result
        self.writing_paused = False
        result = self.call(NAME_RESUME_WRITING, NULL)
        if result == NULL:
            return self.report("protocol.resume_writing() failed", pending_exception())
        Py_DECREF_owned(result)
        return 0

    @property
    def _protocol_paused(self):
        return self.writing_paused

    def get_write_buffer_limits(self):
        return (load_size(&self.low_water), load_size(&self.high_water))

    def set_write_buffer_limits(self, high=None, low=None):
        self.loop.check_owner()
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        # math.inf is allowed: no queue reaches PY_SSIZE_T_MAX.
        store_size(&self.high_water, int(min(high, PY_SSIZE_T_MAX)))
        store_size(&self.low_water, int(min(low, PY_SSIZE_T_MAX)))
        if self.get_write_buffer_size() > self.high_water:
            self.pause_protocol()
