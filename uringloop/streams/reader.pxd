"""A compiled StreamReader, and the objects that its methods return to be awaited."""

cimport cython

from uringloop._turn.turn cimport LoopCore
from uringloop.streams.read_buffer cimport ReadBuffer
from uringloop.streams.read_waiter cimport ReadWaiter


# What a Read waits for.
cdef enum Wanted:
    SOME            # read(): any byte, or the end
    EXACTLY         # readexactly()
    UNTIL           # readuntil()
    LINE            # readline(): like UNTIL; the end ends a line, too
    NEXT_LINE       # `async for`: like LINE; StopAsyncIteration at the end


# How far a Read is; it only goes forward.
cdef enum Progress:
    NEW             # not awaited yet: nothing is read
    WAITING         # suspended until `future` is done
    FINISHED


cdef class ReaderCore(ReadBuffer):
    cdef LoopCore core              # the loop, if it is one of ours; else None
    cdef object loop                # the loop, of any kind
    cdef object given_limit         # the limit as the program has set it
    cdef Py_ssize_t limit           # the same as a number of bytes
    cdef bint eof                   # feed_eof() was called
    cdef object error               # the argument of set_exception(); None before
    cdef object waiter              # the ReadWaiter or future of the read that waits; else None
    cdef Read waiting               # the Read that has made `waiter`; else None
    cdef ReadWaiter spare_waiter    # of the last read that waited, for the next one; or None
    cdef object transport           # None before set_transport()
    cdef bint paused                # reading of `transport` is paused
    # For a Read that waits for EXACTLY: its result, and how much of that is there. These bytes come
    # before those of the buffer.
    cdef bytes target               # None if there is no such result
    cdef Py_ssize_t filled

    cdef bint receive(self, const char *memory, Py_ssize_t size) except -1
    cdef bint receive_object(self, bytes data) except -1
    cdef int received(self) except -1
    cdef Py_ssize_t fill_target(self, const char *memory, Py_ssize_t size) except -1
    cdef int give_up_target(self) except -1
    cdef int wake(self) except -1
    cdef int pause(self) except -1
    cdef int resume_when_low(self) except -1
    cdef int resume(self) except -1
    cdef object make_waiter(self)
    cdef int check_thread(self) except -1
    cdef bytes take_rest(self)


cdef bint is_stock_reader(object reader) noexcept
cdef bint feeds_itself() except -1


@cython.final
cdef class Read:
    cdef ReaderCore reader          # None once finished
    cdef Wanted wanted
    cdef Progress progress
    cdef Py_ssize_t count           # bytes, of SOME and EXACTLY
    cdef bytes separator            # of the others
    cdef Py_ssize_t searched        # bytes in which no separator begins
    cdef object future              # WAITING: the ReadWaiter or future that is awaited

    cdef bytes advance(self)
    cdef int begin(self) except -1
    cdef int wait(self) except -1
    cdef int resumed(self) except -1
    cdef bint is_suspended(self) except -1
    cdef int finish(self) except -1
    cdef bint is_due(self) except -1
    cdef bytes result(self)
    cdef bytes exactly(self)
    cdef bytes until(self)
    cdef bytes overrun(self, str message, Py_ssize_t consumed)
    cdef str method(self)
    cdef str method_that_waits(self)
