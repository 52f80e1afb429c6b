"""A compiled StreamReader, and the objects that its methods return to be awaited.

`StreamReader` puts `ReaderCore` before asyncio's StreamReader. Both share their fields, which are C
fields under the names that asyncio's methods use, so that asyncio's methods can do what is rare
(negative sizes, tuples of separators, repr()).

The methods return a `Read` in place of a coroutine. It does its work when it is awaited, as a
coroutine does: bytes that are there already are returned without suspending the caller. Otherwise
the Read waits for a future, which is resolved when all bytes that are wanted have come, so that a
readexactly() that needs ten receives wakes its task once. The result of a readexactly() that waits
is allocated with the first byte that comes, and received bytes are copied there directly.

If a Read is cancelled, or ends in an exception, what it has received is unread again.

With a loop of this package only the loop's thread may read; other loops leave that to the program.
For them the public methods that use the fields, each step of a Read, and the properties `_buffer`,
`_waiter`, `_exception` and `_transport` have critical sections, which do nothing in builds with a
GIL.
"""

import asyncio
import sys
import warnings
from asyncio import streams
from collections.abc import Coroutine

cimport cython
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.pyport cimport PY_SSIZE_T_MAX
from cpython.ref cimport Py_INCREF
from libc.string cimport memcpy

from uringloop._cpython.awaitables cimport (
    PYGEN_NEXT,
    PYGEN_RETURN,
    SendFunction,
    call_no_args,
    forget_result,
    inherit_anext,
    raise_thrown,
    set_send,
    set_step,
    spare_stop,
    stop_with,
)
from uringloop._cpython.pyapi cimport (
    PyBytes_New,
    PyNumber_AsSsize_t,
    PyObject_CallMethodOneArg,
    Py_DECREF_owned,
    raise_pending,
    take_bytes,
)
from uringloop._turn.turn cimport LoopCore
from uringloop.streams.read_buffer cimport ReadBuffer
from uringloop.streams.read_waiter cimport PENDING, RESOLVED, ReadWaiter, new_waiter


cdef enum:
    # The largest result of readexactly() that is allocated before its bytes have come.
    TARGET_MAX = 256 * 1024

ctypedef PyObject *(*step_type)(PyObject *) noexcept

# Since Python 3.13 asyncio's readuntil() takes a tuple of separators.
cdef bint HAS_TUPLES = sys.version_info >= (3, 13)
# asyncio's words, and the interpreter's for a coroutine.
cdef str FOUND_BEHIND = "Separator is found, but chunk is longer than limit"
cdef str NOT_FOUND = "Separator is not found, and chunk exceed the limit"
cdef str AWAITED = "cannot reuse already awaited coroutine"
cdef object STOCK = streams.StreamReader
cdef object NAME_SET_RESULT = "set_result"
cdef bytes NEWLINE = b"\n"
# A C global, because the interpreter clears the names of modules when it exits.
cdef object warn = warnings.warn


cdef class ReaderCore(ReadBuffer):

    # ── the fields, under the names of asyncio's StreamReader ────────────────────────────────

    @property
    def _loop(self):
        return self.loop

    @_loop.setter
    def _loop(self, loop):
        self.loop = loop
        self.core = loop if isinstance(loop, LoopCore) else None

    @property
    def _limit(self):
        return self.given_limit

    @_limit.setter
    def _limit(self, limit):
        self.given_limit = limit
        # math.inf is allowed: no buffer reaches PY_SSIZE_T_MAX.
        self.limit = int(min(limit, PY_SSIZE_T_MAX // 2))

    @property
    @cython.critical_section
    def _buffer(self):
        self.give_up_target()
        return self.expose()

    @_buffer.setter
    @cython.critical_section
    def _buffer(self, data):
        self.give_up_target()
        self.replace(data if type(data) is bytearray else bytearray(data))

    @property
    def _eof(self):
        return self.eof

    @_eof.setter
    def _eof(self, bint eof):
        self.eof = eof

    @property
    @cython.critical_section
    def _waiter(self):
        return self.waiter

    @_waiter.setter
    @cython.critical_section
    def _waiter(self, waiter):
        self.give_up_target()
        self.waiter = waiter
        self.waiting = None

    @property
    @cython.critical_section
    def _exception(self):
        return self.error

    @_exception.setter
    @cython.critical_section
    def _exception(self, exc):
        self.error = exc

    @property
    @cython.critical_section
    def _transport(self):
        return self.transport

    @_transport.setter
    @cython.critical_section
    def _transport(self, transport):
        self.transport = transport

    @property
    def _paused(self):
        return self.paused

    @_paused.setter
    def _paused(self, bint paused):
        self.paused = paused

    # ── what the protocol calls ──────────────────────────────────────────────────────────────

    @cython.critical_section
    def feed_data(self, data):
        if self.eof:
            # asyncio's assertion; those of this module are left out of ordinary builds.
            raise AssertionError("feed_data after feed_eof")
        if not data:
            return
        if type(data) is bytes:
            self.receive_object(data)
        else:
            self.give_up_target()
            self.as_bytearray().extend(data)
            self.received()

    @cython.critical_section
    def feed_eof(self):
        self.eof = True
        self.wake()

    @cython.critical_section
    def set_exception(self, exc):
        cdef object waiter = self.waiter
        self.error = exc
        if waiter is not None:
            self.waiter = None
            if not waiter.cancelled():
                waiter.set_exception(exc)

    @cython.critical_section
    def exception(self):
        return self.error

    @cython.critical_section
    def at_eof(self):
        return self.eof and not self.size() and not self.filled

    def _wakeup_waiter(self):
        self.wake()

    def _maybe_resume_transport(self):
        self.resume_when_low()

    # ── receiving ────────────────────────────────────────────────────────────────────────────

    @cython.critical_section
    cdef bint receive(self, const char *memory, Py_ssize_t size) except -1:
        """Append *size* bytes of *memory*, like feed_data(); False if they must be fed."""
        cdef Py_ssize_t used
        if self.eof or self.core is None:
            return False
        if self.waiting is not None and self.waiting.wanted == EXACTLY:
            used = self.fill_target(memory, size)
            memory += used
            size -= used
        if size and (self.exposed or self.size()):
            self.join(memory, size)
        elif size:
            self.append_object(self.core.freelist.copy(memory, size))
        self.received()
        return True

    @cython.critical_section
    cdef bint receive_object(self, bytes data) except -1:
        """Like `receive`, for an object, of which no copy is made if nothing is unread."""
        cdef Py_ssize_t used
        if self.eof:
            return False
        if self.waiting is not None and self.waiting.wanted == EXACTLY and (
                self.target is not None or self.waiting.count != PyBytes_GET_SIZE(data)):
            used = self.fill_target(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
            data = data[used:] if used else data
        if PyBytes_GET_SIZE(data):
            self.append_object(data)
        self.received()
        return True

    cdef int received(self) except -1:
        """Wake the read that waits if its bytes are there; pause at twice the limit."""
        if self.waiter is not None and (self.waiting is None or self.waiting.is_due()):
            self.wake()
        elif self.waiter is not None:
            return 0
        if self.size() > 2 * self.limit and not self.paused and self.transport is not None:
            self.pause()
        return 0

    cdef Py_ssize_t fill_target(self, const char *memory, Py_ssize_t size) except -1:
        """Copy bytes of *memory* into the result of readexactly(); return how many fitted."""
        cdef Py_ssize_t count = self.waiting.count
        cdef Py_ssize_t unread
        if self.target is None:
            unread = self.size()
            # A program that keeps `_buffer` must find every byte there.
            if unread >= count or count > TARGET_MAX or self.is_kept():
                return 0
            self.target = take_bytes(PyBytes_New(NULL, count))
            if unread:
                memcpy(PyBytes_AS_STRING(self.target), self.data(), unread)
                self.drop(unread)
            self.filled = unread
        size = min(size, count - self.filled)
        memcpy(PyBytes_AS_STRING(self.target) + self.filled, memory, size)
        self.filled += size
        return size

    cdef int give_up_target(self) except -1:
        """Make the bytes in the result of readexactly() unread again."""
        cdef bytes target = self.target
        cdef bytearray all_unread
        if target is None:
            return 0
        all_unread = PyByteArray_FromStringAndSize(PyBytes_AS_STRING(target), self.filled)
        if self.size():
            all_unread += self.as_bytearray()
        if self.exposed:
            self.joined[:] = all_unread
        else:
            self.chunk = None
            self.joined = all_unread
            self.start = 0
        self.target = None
        self.filled = 0
        return 0

    cdef int wake(self) except -1:
        cdef object waiter = self.waiter
        cdef PyObject *result
        if waiter is None:
            return 0
        self.waiter = None
        if type(waiter) is ReadWaiter:
            if (<ReadWaiter>waiter).state == PENDING:
                (<ReadWaiter>waiter).resolve()
            return 0
        result = PyObject_CallMethodOneArg(waiter, NAME_SET_RESULT, None)
        if result != NULL:
            Py_DECREF_owned(result)
            return 0
        try:
            raise_pending()
        except asyncio.InvalidStateError:
            # A cancelled read leaves its future here until its task runs.
            if not waiter.cancelled():
                raise
        return 0

    cdef int pause(self) except -1:
        try:
            self.transport.pause_reading()
        except NotImplementedError:
            # The transport cannot be paused: do not try again.
            self.transport = None
        else:
            self.paused = True
        return 0

    cdef int resume_when_low(self) except -1:
        if self.paused and self.size() + self.filled <= self.limit:
            self.resume()
        return 0

    cdef int resume(self) except -1:
        self.paused = False
        self.transport.resume_reading()
        return 0

    cdef object make_waiter(self):
        """Return what a task waits for: a ReadWaiter or, in debug mode, a future."""
        cdef ReadWaiter waiter = self.spare_waiter
        if self.core is None or self.core.in_debug_mode():
            future = self.loop.create_future()
            future._asyncio_future_blocking = True
            return future
        if waiter is None:
            return new_waiter(self.core)
        self.spare_waiter = None
        waiter.reset()
        return waiter

    cdef int check_thread(self) except -1:
        return 0 if self.core is None else self.core.check_reader()

    cdef bytes take_rest(self):
        return self.take(self.size())

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def read(self, n=-1):
        """Return an awaitable of at most *n* bytes, or of all to the end if *n* is negative."""
        cdef Py_ssize_t count = size_of(n)
        return STOCK.read(self, n) if count < 0 else new_read(self, SOME, count, None)

    def readexactly(self, n):
        """Return an awaitable of exactly *n* bytes. Awaiting it raises asyncio's exceptions."""
        cdef Py_ssize_t count = size_of(n)
        return STOCK.readexactly(self, n) if count < 0 else new_read(self, EXACTLY, count, None)

    def readuntil(self, separator=b"\n"):
        """Return an awaitable of the bytes up to *separator*, or to the first one of a tuple."""
        if type(separator) is bytes and PyBytes_GET_SIZE(separator):
            return new_read(self, UNTIL, 0, separator)
        if isinstance(separator, tuple) and not HAS_TUPLES:
            # Imported here: few programs use it.
            from uringloop.streams.separators import read_until_any
            return read_until_any(self, separator)
        return STOCK.readuntil(self, separator)

    def readline(self):
        """Return an awaitable of the bytes up to a newline, or up to the end."""
        if type(self) is READER or type(self).readuntil is READUNTIL:
            return new_read(self, LINE, 0, NEWLINE)
        return STOCK.readline(self)

    def __aiter__(self):
        return self

    def __anext__(self):
        if type(self) is READER or (
                type(self).readline is READLINE and type(self).readuntil is READUNTIL):
            return new_read(self, NEXT_LINE, 0, NEWLINE)
        return STOCK.__anext__(self)


# asyncio's readline() calls readuntil(), which a derived class may replace, and so on.
cdef object READUNTIL = ReaderCore.readuntil
cdef object READLINE = ReaderCore.readline


cdef Py_ssize_t size_of(object n) except? -1:
    """Return *n* as a number of bytes; -1 if it is negative or no int, which asyncio handles."""
    # A number that is too large becomes PY_SSIZE_T_MAX.
    return PyNumber_AsSsize_t(n, NULL) if type(n) is int else -1


class StreamReader(ReaderCore, STOCK):
    """asyncio's StreamReader, compiled. Its methods return awaitables that are not coroutines."""

    __module__ = "uringloop.streams"


cdef object READER = StreamReader
cdef object FEED_DATA = StreamReader.feed_data


cdef bint is_stock_reader(object reader) noexcept:
    """Return whether *reader* is a StreamReader of this module, and not of a derived class."""
    return type(reader) is READER


cdef bint feeds_itself() except -1:
    """Return whether feed_data() is the one above: a program may have replaced it."""
    return READER.feed_data is FEED_DATA


cdef Read new_read(ReaderCore reader, Wanted wanted, Py_ssize_t count, bytes separator):
    cdef Read read = Read.__new__(Read)
    read.reader = reader
    read.wanted = wanted
    read.count = count
    read.separator = separator
    return read


@cython.final
@cython.freelist(32)
cdef class Read:
    # What read() and its siblings return: asyncio takes it for a coroutine.

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        # Only programs call this, by its name. The interpreter calls `read_step`, which `set_step`
        # has installed.
        return self.send(None)

    def send(self, value):
        cdef PyObject *given
        cdef int status
        if value is not None and self.progress == NEW:
            raise TypeError("can't send non-None value to a just-started coroutine")
        status = send_to_read(<PyObject*>self, <PyObject*>value, &given)
        result = <object>given
        Py_DECREF_owned(given)
        if status == PYGEN_NEXT:
            return result
        raise StopIteration(result)

    def throw(self, exc, value=None, traceback=None):
        """End the read with an exception; the bytes that it has received are unread again."""
        if self.progress == FINISHED:
            raise RuntimeError(AWAITED)
        self.finish()
        raise_thrown(exc, value, traceback)

    def close(self):
        self.finish()

    def __dealloc__(self):
        forget_result()
        if self.progress == NEW and self.reader is not None:
            warn_never_awaited(self)

    @property
    def __name__(self):
        return self.method()

    @property
    def __qualname__(self):
        return f"StreamReader.{self.method()}"

    def __repr__(self):
        return f"<{self.__qualname__} of {self.reader!r}>"

    # ── the steps ────────────────────────────────────────────────────────────────────────────

    cdef bytes advance(self):
        """Return the result; None if `future` has to be waited for."""
        cdef bytes data
        if self.progress == WAITING:
            self.resumed()
        else:
            self.begin()
        data = self.result()
        if data is None:
            self.wait()
            return None
        self.finish()
        if self.wanted == NEXT_LINE and PyBytes_GET_SIZE(data) == 0:
            raise StopAsyncIteration
        return data

    cdef int begin(self) except -1:
        cdef ReaderCore reader = self.reader
        reader.check_thread()
        if reader.error is not None:
            raise reader.error
        if reader.waiting is not None:
            # This read may take what the other one was woken for.
            reader.waiting.searched = 0
            reader.give_up_target()
        return 0

    cdef int wait(self) except -1:
        """Make the future that is awaited."""
        cdef ReaderCore reader = self.reader
        if reader.waiter is not None:
            raise RuntimeError(
                f"{self.method_that_waits()}() called while another coroutine is "
                "already waiting for incoming data")
        if reader.paused:
            # Without new bytes this read would wait for ever.
            reader.resume()
        self.future = reader.make_waiter()
        reader.waiter = self.future
        reader.waiting = self
        self.progress = WAITING
        return 0

    cdef int resumed(self) except -1:
        """The future is done: raise its exception, if it has one."""
        cdef object future = self.future
        cdef ReaderCore reader = self.reader
        self.future = None
        if reader.waiting is self:
            reader.waiting = None
            reader.waiter = None
        if type(future) is ReadWaiter and (<ReadWaiter>future).state == RESOLVED:
            # The next read can use it: its only user was the task that is running.
            reader.spare_waiter = <ReadWaiter>future
        else:
            future.result()
        return 0

    cdef bint is_suspended(self) except -1:
        """Return whether a task waits for the future."""
        if self.progress != WAITING:
            return False
        if type(self.future) is ReadWaiter:
            return (<ReadWaiter>self.future).state == PENDING
        return not self.future.done()

    cdef int finish(self) except -1:
        cdef ReaderCore reader = self.reader
        self.progress = FINISHED
        self.future = None
        self.reader = None
        if reader is not None and reader.waiting is self:
            reader.waiting = None
            reader.waiter = None
        if reader is not None and self.wanted == EXACTLY:
            reader.give_up_target()
        return 0

    # ── the result ───────────────────────────────────────────────────────────────────────────

    cdef bint is_due(self) except -1:
        """Return whether `result` would not wait."""
        cdef ReaderCore reader = self.reader
        cdef Py_ssize_t size = reader.size()
        if self.wanted == SOME:
            return size > 0
        if self.wanted == EXACTLY:
            return size + reader.filled >= self.count
        if reader.find(self.separator, self.searched) >= 0:
            return True
        self.searched = max(0, size + 1 - PyBytes_GET_SIZE(self.separator))
        return self.searched > reader.limit

    cdef bytes result(self):
        """Take the bytes that are wanted; None if they have to be waited for."""
        cdef ReaderCore reader = self.reader
        cdef Py_ssize_t size
        cdef bytes data
        if self.wanted == EXACTLY:
            data = self.exactly()
        elif self.wanted == SOME:
            size = reader.size()
            # Like asyncio's, it returns nothing if another read has taken what it was woken for.
            if not size and not reader.eof and self.count and self.progress == NEW:
                return None
            data = reader.take(min(size, self.count))
        else:
            return self.until()
        if data is not None and reader.paused:
            reader.resume_when_low()
        return data

    cdef bytes exactly(self):
        cdef ReaderCore reader = self.reader
        cdef bytes data
        if reader.target is not None and reader.filled == self.count:
            data = reader.target
            reader.target = None
            reader.filled = 0
            return data
        if reader.size() + reader.filled >= self.count:
            reader.give_up_target()
            return reader.take(self.count)
        if not reader.eof:
            return None
        reader.give_up_target()
        raise asyncio.IncompleteReadError(reader.take_rest(), self.count)

    cdef bytes until(self):
        cdef ReaderCore reader = self.reader
        cdef Py_ssize_t size = reader.size()
        cdef Py_ssize_t width = PyBytes_GET_SIZE(self.separator)
        cdef Py_ssize_t found = reader.find(self.separator, self.searched)
        cdef bytes data
        if found > reader.limit:
            return self.overrun(FOUND_BEHIND, found)
        if found < 0:
            self.searched = max(self.searched, size + 1 - width)
            if self.searched > reader.limit:
                return self.overrun(NOT_FOUND, self.searched)
            if not reader.eof:
                return None
            data = reader.take_rest()
            if self.wanted == UNTIL:
                raise asyncio.IncompleteReadError(data, None)
            return data
        data = reader.take(found + width)
        if reader.paused:
            reader.resume_when_low()
        return data

    cdef bytes overrun(self, str message, Py_ssize_t consumed):
        """Raise the exception for a line over the limit; readline() skips the line."""
        cdef ReaderCore reader = self.reader
        if self.wanted == UNTIL:
            raise asyncio.LimitOverrunError(message, consumed)
        if reader.find(self.separator, consumed) == consumed:
            reader.drop(consumed + PyBytes_GET_SIZE(self.separator))
        else:
            reader.drop(reader.size())
        reader.resume_when_low()
        raise ValueError(message)

    cdef str method(self):
        return METHODS[<int>self.wanted]

    cdef str method_that_waits(self):
        return METHODS[min(<int>self.wanted, <int>UNTIL)]


cdef tuple METHODS = ("read", "readexactly", "readuntil", "readline", "__anext__")


cdef int send_to_read(PyObject *step, PyObject *value, PyObject **result) except -1:
    """The am_send of Read: give what is awaited, or the bytes."""
    cdef Read read = <Read>step
    cdef bytes data
    result[0] = NULL
    if read.progress == FINISHED:
        raise RuntimeError(AWAITED)
    if read.is_suspended():
        # Another task awaits this read, and goes on waiting after this exception.
        raise RuntimeError("coroutine is being awaited already")
    try:
        with cython.critical_section(read.reader):
            data = read.advance()
    except BaseException:
        read.finish()
        raise
    if data is None:
        Py_INCREF(read.future)
        result[0] = <PyObject*>read.future
        return PYGEN_NEXT
    Py_INCREF(data)
    result[0] = <PyObject*>data
    return PYGEN_RETURN


cdef PyObject *read_step(PyObject *step) except? NULL:
    """The tp_iternext of Read: return what is awaited, or NULL with the bytes in an exception."""
    cdef PyObject *result
    if send_to_read(step, <PyObject*>None, &result) == PYGEN_NEXT:
        return result
    stop_with(take_bytes(result))
    return NULL


cdef int warn_never_awaited(Read read) except -1:
    """Warn as Python does for a coroutine."""
    warn(f"coroutine {read.__qualname__!r} was never awaited", RuntimeWarning, stacklevel=1)
    return 0


spare_stop = call_no_args(StopIteration)
set_step(Read, <step_type>read_step)
set_send(Read, <SendFunction>send_to_read)
inherit_anext(StreamReader, ReaderCore)
Coroutine.register(Read)
