"""Scheduled callbacks: asyncio.Handle and asyncio.TimerHandle, compiled.

A handle owns its callback, arguments and context and drops them when it is cancelled. Only the
thread that runs the loop runs it. Any thread may cancel it: what a cancel drops is read and dropped
in the handle's critical section, which a build with a GIL does not need.

The handles of call_soon_threadsafe are made in one thread and freed in another. Without a GIL such
an object is expensive twice: the thread that made it would have to free it, and the garbage
collector, which stops all threads, would visit each one that waits. So these handles are given away
(`give_away`), and unknown to the collector: the queue that holds one visits what it refers to.
Nobody does that for a handle that has run, which therefore forgets its callback. Outside debug mode
such a handle does not refer to its loop: threads that count references to the same object wait for
each other.
"""

import asyncio
import contextvars
import inspect
from asyncio import Task, events, format_helpers

cimport cython
from cpython.object cimport PyObject
from libc.math cimport ceil
from libc.stdint cimport INT64_MAX, int64_t

from uringloop._cpython.pyapi cimport (
    FREE_THREADED,
    PY_VECTORCALL_ARGUMENTS_OFFSET,
    PyContext_CopyCurrent,
    PyContext_Exit,
    PyContext_New,
    PyContext_TryEnter,
    PyMutex_Lock,
    PyMutex_Unlock,
    PyObject_IS_GC,
    PyObject_Vectorcall,
    PyTuple_GET_SIZE,
    Py_DECREF_owned,
    Py_REFCNT,
    hide_from_collector,
    is_given,
    raise_pending,
    this_thread,
    tuple_items,
    visitproc,
)
from uringloop._kernel.atomics cimport (
    adjust_size,
    load_byte,
    load_int,
    load_long,
    store_byte,
    store_int,
    store_long,
)

cdef extern from *:
    """
    #define uringloop_has_vectorcall(callable) \\
        PyType_HasFeature(Py_TYPE(callable), Py_TPFLAGS_HAVE_VECTORCALL)
    """
    bint has_vectorcall "uringloop_has_vectorcall" (PyObject *callable)
    PyObject *call_with_tuple "PyObject_Call" (
        PyObject *callable, PyObject *args, PyObject *options)


# Newer Pythons show the arguments of a callback in debug mode only.
cdef bint ARGS_IN_DEBUG = (
    "debug" in inspect.signature(format_helpers._format_callback_source).parameters)
cdef object THREAD_SAFE_HANDLE = getattr(events, "_ThreadSafeHandle", None)
cdef tuple NO_ARGS = ()
cdef NoLoop NO_LOOP = NoLoop()
# A deadline of this many seconds or more never comes: 2**63 ns are 292 years.
cdef double NEVER = 9.2e9


@cython.final
cdef class NoLoop:
    """The loop of a handle that has forgotten its own, for asyncio's description of handles."""

    def get_debug(self):
        return False


cdef class Handle:

    def __init__(self, *args, **kwargs):
        # The loop creates handles with __new__ only.
        raise TypeError(f"cannot create '{type(self).__name__}' instances")

    def cancel(self):
        """Cancel the callback, and drop it with its arguments."""
        self.drop()

    def cancelled(self):
        """Return True if the callback was cancelled."""
        return load_int(&self.is_cancelled) != 0

    def get_context(self):
        """Return the contextvars.Context that the callback runs in."""
        return self.own_context()

    @cython.critical_section
    def __repr__(self):
        return self.cancelled_repr or self.describe()

    cdef object stock_handle(self):
        return asyncio.Handle(self.callback, self.all_args(), self.loop, self.context)

    cdef str describe(self):
        """Describe the callback as asyncio's own handle would."""
        cdef object stock_handle = self.stock_handle()
        stock_handle._cancelled = self.is_cancelled
        stock_handle._source_traceback = self.source_traceback
        return repr(stock_handle)

    @cython.final
    cdef int drop(self) except -1:
        if not FREE_THREADED:
            return self.drop_locked()
        with cython.critical_section(self):
            return self.drop_locked()

    @cython.final
    cdef int drop_locked(self) except -1:
        if self.is_cancelled:
            return 0
        store_int(&self.is_cancelled, True)
        if self.source_traceback is not None:
            # The callback is dropped below; a report in debug mode still names it.
            self.cancelled_repr = self.describe()
        # If run_unshared() is using the callback, it drops the callback itself.
        return 0 if load_byte(&self.is_running) else self.drop_callback()

    @cython.final
    cdef int drop_callback(self) except -1:
        self.callback = None
        self.args = None
        self.single = False
        return 0

    cdef object own_context(self):
        return self.context

    cdef tuple all_args(self):
        return (self.args,) if self.single else self.args

    # ── attributes that asyncio's own modules and tools read ─────────────────────────────────

    @property
    def __class__(self):
        # isinstance(handle, asyncio.Handle) holds without inheriting its slots.
        return asyncio.Handle

    @property
    @cython.critical_section
    def _callback(self):
        return self.callback

    @property
    @cython.critical_section
    def _args(self):
        return self.all_args()

    @property
    def _context(self):
        return self.own_context()

    @property
    @cython.critical_section
    def _loop(self):
        return self.loop

    @property
    def _cancelled(self):
        return self.cancelled()

    @property
    def _source_traceback(self):
        return self.source_traceback

    def _run(self):
        self.run(events._get_running_loop() if self.loop is None else self.loop)

    # ── running ──────────────────────────────────────────────────────────────────────────────

    cdef int run(self, object loop) except -1:
        """Run the callback in its context; its exception goes to the handler of *loop*.

        If *loop* is None, it is raised.
        """
        # The callback may cancel its own handle, which drops these: keep them alive.
        cdef object callback, args
        cdef bint single
        cdef Outcome outcome
        with cython.critical_section(self):
            if self.is_cancelled:
                return 0
            callback = self.callback
            args = self.args
            single = self.single
        outcome = call(<PyObject*>self.context, <PyObject*>callback, <PyObject*>args, single)
        return 0 if outcome == RETURNED else self._failed(
            loop, callback, (args,) if single else args, outcome)

    cdef int _failed(
            self, object loop, object callback, object args, Outcome outcome) except -1:
        try:
            try:
                raise_pending()
            except TypeError:
                if outcome == RAISED or isinstance(self.context, contextvars.Context):
                    raise
                # The context is not a Context: call its run(), as asyncio does.
                self.context.run(callback, *args)
            finally:
                if outcome == RAISED:
                    PyContext_Exit(self.context)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            if loop is None:
                raise
            options = {"debug": loop.get_debug()} if ARGS_IN_DEBUG else {}
            source = format_helpers._format_callback_source(callback, args, **options)
            report = {
                "message": f"Exception in callback {source}",
                "exception": exc,
                "handle": self,
            }
            if self.source_traceback:
                report["source_traceback"] = self.source_traceback
            loop.call_exception_handler(report)
        return 0


@cython.final
cdef class ThreadSafeHandle(Handle):

    def cancel(self):
        """Cancel the callback; if it is running, wait for its end."""
        # Destructors of what is dropped may use the handle, and so lock it again.
        cdef bint locked = self.lock()
        try:
            self.drop()
        finally:
            if locked:
                self.unlock()

    def cancelled(self):
        """Return True if the callback was cancelled; if it is running, wait for its end."""
        if self.lock():
            self.unlock()
        return load_int(&self.is_cancelled) != 0

    cdef bint lock(self) noexcept:
        """Wait for the end of a run in another thread; return whether to call unlock()."""
        if load_long(&self.holder) == this_thread():
            # The caller is the callback itself, or a destructor.
            return False
        PyMutex_Lock(&self.mutex)
        store_long(&self.holder, this_thread())
        return True

    cdef void unlock(self) noexcept:
        store_long(&self.holder, 0)
        PyMutex_Unlock(&self.mutex)

    cdef int run(self, object loop) except -1:
        cdef bint locked
        if is_given(<PyObject*>self) and not has_weak_references(<PyObject*>self):
            # Nobody else can reach the handle, so nobody cancels it. But a report may keep it.
            try:
                run_unshared(self, loop)
            finally:
                if not is_given(<PyObject*>self):
                    self.forget()
            return 0
        locked = self.lock()
        try:
            self.own_context()
            Handle.run(self, loop)
        finally:
            if FREE_THREADED:
                self.forget()
            if locked:
                self.unlock()
        return 0

    @cython.critical_section
    cdef int forget(self) except -1:
        """Drop what could refer to the handle, after its run."""
        if self.source_traceback is not None and self.cancelled_repr is None:
            self.cancelled_repr = self.describe()
        self.loop = None
        return self.drop_callback()

    @cython.critical_section
    cdef object own_context(self):
        if self.context is None:
            self.context = PyContext_New()
        return self.context

    cdef object stock_handle(self):
        return THREAD_SAFE_HANDLE(
            self.callback, self.all_args(), self.loop or NO_LOOP, self.context)

    @property
    def __class__(self):
        return THREAD_SAFE_HANDLE


cdef class TimerHandle(Handle):

    def when(self):
        """Return the deadline in seconds on the loop's clock."""
        return self.deadline if self.given is None else self.given

    cdef int64_t deadline_ns(self) noexcept:
        # NaN is due at once, as in asyncio.
        return nanoseconds(self.deadline) if self.deadline == self.deadline else 0

    def cancel(self):
        """Cancel the callback; the heap drops the handle later."""
        if not FREE_THREADED:
            self.cancel_locked()
        else:
            with cython.critical_section(self):
                self.cancel_locked()

    @cython.final
    cdef int cancel_locked(self) except -1:
        if not self.is_cancelled and self.cancelled_count != NULL:
            adjust_size(self.cancelled_count, 1)
        return self.drop_locked()

    cdef object stock_handle(self):
        return asyncio.TimerHandle(
            self.when(), self.callback, self.all_args(), self.loop, self.context)

    @property
    def __class__(self):
        return asyncio.TimerHandle

    @property
    def _when(self):
        return self.when()

    @property
    def _scheduled(self):
        return self.cancelled_count != NULL

    def __hash__(self):
        return hash(self.when())

    def __lt__(self, other):
        return self.when() < other.when() if is_timer(other) else NotImplemented

    def __le__(self, other):
        if not is_timer(other):
            return NotImplemented
        return self.when() < other.when() or self == other

    def __gt__(self, other):
        return self.when() > other.when() if is_timer(other) else NotImplemented

    def __ge__(self, other):
        if not is_timer(other):
            return NotImplemented
        return self.when() > other.when() or self == other

    def __eq__(self, other):
        if not is_timer(other):
            return NotImplemented
        return (
            self.when() == other.when()
            and self._callback == other._callback
            and self._args == other._args
            and self._cancelled == other._cancelled
        )


cdef int run_unshared(Handle handle, object loop) except -1:
    # Meanwhile only a debugger that asks the garbage collector can find the handle and cancel it.
    # Even then the handle keeps alive what it refers to (drop_locked).
    cdef Outcome outcome
    if handle.is_cancelled:
        return 0
    if handle.context is None:
        handle.context = PyContext_New()
    store_byte(&handle.is_running, True)
    outcome = call(
        <PyObject*>handle.context, <PyObject*>handle.callback, <PyObject*>handle.args,
        handle.single)
    store_byte(&handle.is_running, False)
    if outcome != RETURNED:
        handle._failed(loop, handle.callback, handle.all_args(), outcome)
    return handle.drop_callback() if load_int(&handle.is_cancelled) else 0


cdef inline Outcome call(
        PyObject *context, PyObject *callback, PyObject *args, bint single) noexcept:
    """Call *callback* in *context*; an exception is left for `_failed`.

    The caller keeps all three alive. They come as pointers, because counting the references of a
    callback that threads share is the most expensive part of a call.
    """
    cdef PyObject *result
    cdef PyObject *arguments[2]
    if PyContext_TryEnter(<object>context) < 0:
        return NOT_ENTERED
    if single:
        # arguments[0] is free for a bound method's self (PY_VECTORCALL_ARGUMENTS_OFFSET).
        arguments[1] = args
        result = PyObject_Vectorcall(
            <object>callback, &arguments[1], 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
    elif has_vectorcall(callback):
        result = PyObject_Vectorcall(
            <object>callback, tuple_items(<object>args), PyTuple_GET_SIZE(<tuple>args), NULL)
    else:
        # A task's step takes a tuple of arguments, and a vectorcall would make one.
        result = call_with_tuple(callback, args, NULL)
    if result == NULL:
        return RAISED
    PyContext_Exit(<object>context)
    Py_DECREF_owned(result)
    return RETURNED


cdef bint is_timer(object other) except -1:
    return isinstance(other, asyncio.TimerHandle)


cdef Handle new_handle_for_threads():
    if THREAD_SAFE_HANDLE is None:
        return Handle.__new__(Handle)
    return ThreadSafeHandle.__new__(ThreadSafeHandle)


cdef Handle fill(Handle handle, object loop, object callback, tuple args, object context):
    handle.callback = callback
    handle.args = args
    handle.context = PyContext_CopyCurrent() if context is None else context
    handle.loop = loop
    return handle


cdef int traverse_queued(PyObject *handle, visitproc visit, void *argument) noexcept:
    return (visit(handle, argument) if PyObject_IS_GC(handle)
            else traverse_waiting(handle, visit, argument))


cdef int traverse_waiting(PyObject *waiting, visitproc visit, void *argument) noexcept:
    cdef Handle handle
    if Py_REFCNT(waiting) > 1:
        # Another reference keeps the handle alive, and what it refers to.
        return 0
    handle = <Handle>waiting
    return (
        visit(<PyObject*>handle.callback, argument) or visit(<PyObject*>handle.args, argument)
        or visit(<PyObject*>handle.context, argument) or visit(<PyObject*>handle.loop, argument)
        or visit(<PyObject*>handle.source_traceback, argument))


cdef int64_t nanoseconds(double seconds) noexcept:
    """Return *seconds* as nanoseconds, rounded up: a timer never runs before its deadline."""
    if seconds >= NEVER:
        return INT64_MAX
    return <int64_t>ceil(max(seconds, -NEVER) * 1e9)


cdef str format_handle(Handle handle):
    """Format a handle for reports as asyncio does: a task's step as its task."""
    callback = handle.callback
    task = getattr(callback, "__self__", None)
    if isinstance(task, Task):
        return repr(task)
    return str(handle)


hide_from_collector(ThreadSafeHandle)
