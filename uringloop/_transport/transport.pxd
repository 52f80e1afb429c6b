"""Transport, the base class of all transports."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t

from uringloop._turn.turn cimport LoopCore, TurnUser


cdef class Connections:
    cdef LoopCore loop
    cdef readonly Py_ssize_t count  # of transports that are not released
    cdef Py_ssize_t served      # connections whose connection_lost() is not scheduled
    cdef Py_ssize_t limit       # the largest number of those that the server wants
    cdef object on_empty        # called when the last transport is released; None after end()
    cdef object on_limit        # called when `served` reaches `limit`, and when it falls below

    cdef int attach(self, Transport transport) except -1
    cdef int begin_service(self) except -1
    cdef int end_service(self) except -1
    cdef int detach(self) except -1


# The life of a transport, in this order; the drawing is in transport.pyx.
cdef enum Life:
    OPENING     # connection_made() is scheduled; nothing is received yet
    OPEN        # received data is delivered, written data is sent
    BROKEN      # a send has failed: what the peer sent before is delivered, writes are lost
    CLOSING     # nothing more is delivered; queued data is still sent
    ENDING      # connection_lost() is scheduled
    LOST        # connection_lost() was called; the socket closes when nothing is in flight


cdef extern from "_kernel/atomics.h":
    # Atomic accesses, because other threads may call is_closing().
    Life load_life "uring_load" (const Life *field)
    void store_life "uring_store" (Life *field, Life life)


cdef class Transport(TurnUser):
    cdef LoopCore loop
    cdef object protocol        # None after the release
    cdef object context         # every callback of the protocol runs in it
    cdef object sock            # owns fd; a pipe's file; None before first need and after the end
    cdef int fd                 # -1 once closed
    cdef Connections server     # of the server that accepted the connection; else None
    cdef dict extra             # get_extra_info()'s; None before first need
    cdef Life life
    cdef dict __dict__          # programs set attributes on transports, as on asyncio's
    cdef object __weakref__

    cdef int adopt(self, LoopCore loop, object sock, dict extra) except -1
    cdef int adopt_descriptor(self, LoopCore loop, int fd) except -1
    cdef str describe_io(self)
    cdef int use_protocol(self, object protocol) except -1
    cdef object need_socket(self)
    cdef dict need_extra(self)
    cdef dict make_extra(self)
    cdef int begin(self, object waiter) except -1
    cdef int start_io(self) except -1
    cdef int enter_open(self) except -1
    cdef int enter_broken(self) except -1
    cdef int enter_closing(self) except -1
    cdef PyObject *call(self, object method, PyObject *argument) noexcept
    cdef PyObject *call_many(self, object method, PyObject **arguments, size_t count) noexcept
    cdef PyObject *call_nested(
        self, object method, PyObject *const *arguments, size_t count) noexcept
    cdef int warn_slow(self, int64_t began, object method) noexcept
    cdef int report(self, str message, object exc) except -1
    cdef int fatal_error(self, object exc, str message) except -1
    cdef int force_close(self, object exc) except -1
    cdef int schedule_end(self, object exc) except -1
    cdef int release_when_done(self) except -1
    cdef int release(self) except -1
    cdef int complete_cancelled(self) except -1
    cdef bint has_operations(self) noexcept
    cdef int stop_operations(self) except -1


cdef int close_socket(int fd) noexcept


cdef object pending_exception()


cdef str polling_or_idle(bint in_flight)


cdef dict socket_extra(object sock, object peername)


cdef inline object own(PyObject *result):
    """Return as an object the new reference *result*, which a C function has returned."""
    cdef object taken = <object>result
    Py_DECREF(taken)
    return taken
