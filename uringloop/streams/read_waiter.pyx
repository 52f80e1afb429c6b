"""What the task of a suspended read waits for, in place of a future.

A task takes each object with asyncio's mark `_asyncio_future_blocking` for a future: it adds a
callback, which steps the task, and calls cancel() and result(). Making an asyncio.Future and
resolving it takes a third of the instructions with which an echo server reads a message; a
ReadWaiter is used again for the next read of its stream, and schedules the callback without a call
of call_soon(). The callback runs when and in the order in which a future's would.

It is used only on loops of this package, and not in debug mode, in which futures note where they
were made.
"""

import asyncio

from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport (
    PyCFunction_Check,
    PyMethodDef,
    PyTuple_GET_SIZE,
    add_method,
)
from uringloop._turn.call_soon cimport is_context_only, schedule_with
from uringloop._turn.turn cimport LoopCore


cdef class ReadWaiter:

    # ── what tasks use ───────────────────────────────────────────────────────────────────────

    @property
    def _asyncio_future_blocking(self):
        return self.blocking

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, bint blocking):
        self.blocking = blocking

    @property
    def _loop(self):
        # asyncio looks for get_loop() first, but this class has none: a task would make and call a
        # bound method for each read, which takes 340 of the 8,160 instructions of an echo.
        return self.loop

    # add_done_callback() is at the end of this file: it takes its arguments by vectorcall.

    cdef int add_callback(self, object callback, object context) except -1:
        if self.state != PENDING:
            self.schedule(callback, context)
        elif self.callback is None:
            self.callback = callback
            self.context = context
        else:
            if self.more_callbacks is None:
                self.more_callbacks = []
            self.more_callbacks.append((callback, context))
        return 0

    def remove_done_callback(self, callback):
        """Remove all equal callbacks; return how many there were."""
        cdef list kept = []
        cdef Py_ssize_t count = 0
        cdef list added = [(self.callback, self.context), *(self.more_callbacks or ())]
        for entry in added:
            if entry[0] is None or entry[0] == callback:
                count += entry[0] is not None
            else:
                kept.append(entry)
        self.callback, self.context = kept.pop(0) if kept else (None, None)
        self.more_callbacks = kept or None
        return count

    def cancel(self, msg=None):
        if self.state != PENDING:
            return False
        self.state = CANCELLED
        self.error = msg
        self.schedule_callbacks()
        return True

    def cancelled(self):
        return self.state == CANCELLED

    def done(self):
        return self.state != PENDING

    def result(self):
        if self.state == FAILED:
            raise self.error
        if self.state == CANCELLED:
            raise cancelled_error(self.error)
        if self.state == PENDING:
            raise asyncio.InvalidStateError("Result is not set.")

    def exception(self):
        if self.state == FAILED:
            return self.error
        if self.state == CANCELLED:
            raise cancelled_error(self.error)
        if self.state == PENDING:
            raise asyncio.InvalidStateError("Exception is not set.")

    def set_result(self, result):
        if self.state != PENDING:
            raise asyncio.InvalidStateError("invalid state")
        self.resolve()

    def set_exception(self, exc):
        if self.state != PENDING:
            raise asyncio.InvalidStateError("invalid state")
        self.state = FAILED
        self.error = exc
        self.schedule_callbacks()

    def __repr__(self):
        return f"<ReadWaiter {STATES[<int>self.state]}>"

    # ── what reads use ───────────────────────────────────────────────────────────────────────

    cdef int reset(self) except -1:
        """Become pending again, for the next read."""
        self.state = PENDING
        self.blocking = True
        self.callback = None
        self.context = None
        self.more_callbacks = None
        self.error = None
        return 0

    cdef int resolve(self) except -1:
        assert self.state == PENDING
        self.state = RESOLVED
        return self.schedule_callbacks()

    cdef int schedule_callbacks(self) except -1:
        cdef object callback = self.callback
        cdef object context
        cdef list more = self.more_callbacks
        if callback is None:
            return 0
        context = self.context
        # A context that the reader kept until its next read would keep a task's variables alive.
        self.callback = self.context = None
        self.schedule(callback, context)
        if more is not None:
            self.more_callbacks = None
            for other, context in more:
                self.schedule(other, context)
        return 0

    cdef int schedule(self, object callback, object context) except -1:
        cdef object argument = self
        self.loop.check_closed()
        if self.state == RESOLVED and PyCFunction_Check(callback):
            # The callback is the step of a task, which asks its argument for the result. A future
            # answers five times as fast as another object.
            argument = resolved_future(self.loop)
        return schedule_with(self.loop, callback, argument, context)


cdef tuple STATES = ("pending", "finished", "failed", "cancelled")


cdef object resolved_future(LoopCore loop):
    """Return a future with the result None, one for each loop."""
    if loop.resolved_future is None:
        loop.resolved_future = loop.create_future()
        loop.resolved_future.set_result(None)
    return loop.resolved_future


cdef object cancelled_error(object message):
    return asyncio.CancelledError() if message is None else asyncio.CancelledError(message)


cdef ReadWaiter new_waiter(LoopCore loop):
    cdef ReadWaiter waiter = ReadWaiter.__new__(ReadWaiter)
    waiter.loop = loop
    waiter.blocking = True
    return waiter


cdef object add_done_callback(
        object self, PyObject *const *call, Py_ssize_t size, PyObject *names):
    cdef object context = None
    if names != NULL and is_context_only(names):
        context = <object>call[size]
    elif names != NULL and PyTuple_GET_SIZE(<tuple>names):
        size = 0
    if size != 1:
        raise TypeError("add_done_callback() takes a callback and the keyword argument 'context'")
    (<ReadWaiter>self).add_callback(<object>call[0], context)
    return None


cdef PyMethodDef definition
add_method(
    ReadWaiter, &definition, b"add_done_callback",
    b"add_done_callback($self, callback, *, context=None)\n--\n\n", add_done_callback)
