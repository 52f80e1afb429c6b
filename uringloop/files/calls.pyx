"""A call of a file: an awaitable that does at once what does not have to wait.

`file.read(100)` returns a FileCall, which has the methods of a coroutine, and is used wherever one
is. It does nothing before it is awaited. Then it attempts the call: if the bytes were read ahead or
are in the page cache, that is all, and awaiting it does not suspend. Otherwise it runs a coroutine
of the file. The file's lock keeps calls in order: an attempt is a call like others.

    CREATED ──attempt()─────────────────────────────> ENDED
     │ │ └──the turn is spent──> PAUSED ──attempt()──>  ^
     │ └──others call──> WAITING ──attempt()─────────>  │
     └──an attempt returned LATER──> RUNNING ───────────┘   (also from PAUSED and WAITING)
"""

cimport cython
from cpython.exc cimport PyErr_WarnEx
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from uringloop._cpython.awaitables cimport (
    PYGEN_NEXT,
    PYGEN_RETURN,
    SendFunction,
    call_no_args,
    forget_result,
    raise_thrown,
    set_send,
    set_step,
    spare_stop,
    stop_with,
)
from uringloop._cpython.pyapi cimport FREE_THREADED, Py_DECREF_owned
from uringloop.files.scheduling cimport CallLock
from uringloop._kernel.atomics cimport replace_int, store_int_release


cdef extern from "Python.h":
    int PyIter_Send(object iterator, object value, PyObject **result) except -1


LATER = object()


@cython.final
cdef class CallKind:
    pass


cdef CallKind new_kind(Attempt attempt, str name, str slow_name, int arguments):
    """Return a kind of calls; *name* is that of the method with its class."""
    cdef CallKind kind = CallKind.__new__(CallKind)
    kind.attempt = attempt
    kind.name = name
    kind.slow_name = slow_name
    kind.arguments = arguments
    return kind


@cython.final
@cython.freelist(16)
@cython.no_gc_clear
cdef class FileCall:

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        # Only programs that call this by name get here: the interpreter calls `step_of_call`.
        return self.send(None)

    @property
    def __name__(self):
        return self.kind.name.rpartition(".")[2]

    @property
    def __qualname__(self):
        return self.kind.name

    def send(self, value):
        cdef PyObject *result
        if send_to_call(<PyObject*>self, <PyObject*>value, &result) == PYGEN_RETURN:
            raise StopIteration(taken(result))
        return taken(result)

    def throw(self, *exception):
        cdef bint ended = True
        self.enter()
        try:
            if self.stage == CALL_ENDED:
                raise RuntimeError("cannot reuse already awaited coroutine")
            if self.coroutine is None:
                raise_exception(*exception)
            value = self.coroutine.throw(*exception)
            ended = False
            return value
        finally:
            if ended:
                self.end()
            self.leave()

    def close(self):
        self.enter()
        try:
            if self.coroutine is not None:
                self.coroutine.close()
        finally:
            self.end()
            self.leave()

    def __dealloc__(self):
        forget_result()
        if self.stage == CALL_CREATED:
            # Warn as Python does for a coroutine that was never awaited.
            message = f"coroutine '{self.kind.name}' was never awaited".encode()
            PyErr_WarnEx(RuntimeWarning, message, 1)
        elif self.stage != CALL_ENDED:
            self.end()

    # ── one step ─────────────────────────────────────────────────────────────────────────────

    cdef int enter(self) except -1:
        cdef int before = 0
        if FREE_THREADED:
            if not replace_int(&self.busy, &before, 1):
                raise ValueError("coroutine already executing")
            return 0
        if self.busy:
            raise ValueError("coroutine already executing")
        self.busy = 1
        return 0

    cdef void leave(self) noexcept:
        if FREE_THREADED:
            store_int_release(&self.busy, 0)
        else:
            self.busy = 0

    cdef int resume(self, object value, PyObject **result) except -1:
        """Continue; return PYGEN_NEXT if the call suspends, PYGEN_RETURN if it ends."""
        if self.stage == CALL_CREATED:
            return self.begin(result)
        if self.stage == CALL_PAUSED:
            self.lock.begin_turn()
            return self.attempt(result)
        if self.stage == CALL_ENDED:
            raise RuntimeError("cannot reuse already awaited coroutine")
        return self.drive(value, result)

    cdef int begin(self, PyObject **result) except -1:
        # If this fails, the call has ended.
        self.stage = CALL_ENDED
        if self.lock.locked:
            self.coroutine = self.lock.acquire()
            self.stage = CALL_WAITING
            return self.drive(None, result)
        self.lock.enter()
        self.lock.locked = self.has_lock = True
        if self.lock.is_spent():
            # Yield None, as asyncio.sleep(0) does: the task goes on in the next turn.
            self.stage = CALL_PAUSED
            Py_INCREF(None)
            result[0] = <PyObject*>None
            return PYGEN_NEXT
        return self.attempt(result)

    cdef int attempt(self, PyObject **result) except -1:
        cdef bint ended = True
        try:
            made = self.kind.attempt(self.file, self.first, self.second)
            if made is LATER:
                self.coroutine = slow_call(self.file, self.kind, self.first, self.second)
                self.stage = CALL_RUNNING
                ended = False
        finally:
            if ended:
                self.end()
        if not ended:
            return self.drive(None, result)
        Py_INCREF(made)
        result[0] = <PyObject*>made
        return PYGEN_RETURN

    cdef int drive(self, object value, PyObject **result) except -1:
        cdef bint ended = True
        cdef int sent
        try:
            sent = PyIter_Send(self.coroutine, value, result)
            ended = sent == PYGEN_RETURN
            if ended and self.stage == CALL_WAITING:
                ended = False
                self.has_lock = True
                Py_DECREF_owned(result[0])
        finally:
            if ended:
                self.end()
        if self.stage == CALL_WAITING and sent == PYGEN_RETURN:
            return self.attempt(result)
        return sent

    cdef int end(self) except -1:
        """End the call: a coroutine that has not ended is destroyed, then the lock is released."""
        self.stage = CALL_ENDED
        self.coroutine = None
        if self.has_lock:
            self.has_lock = False
            self.lock.give_back()
        self.file = self.first = self.second = None
        return 0


cdef int send_to_call(PyObject *step, PyObject *value, PyObject **result) except -1:
    """The am_send of FileCall."""
    cdef FileCall call = <FileCall>step
    result[0] = NULL
    call.enter()
    try:
        if call.stage == CALL_CREATED and value != <PyObject*>None:
            raise TypeError("can't send non-None value to a just-started coroutine")
        return call.resume(<object>value, result)
    finally:
        call.leave()


cdef PyObject *step_of_call(PyObject *step) except? NULL:
    """The tp_iternext of FileCall: at its end returns NULL, with the result in a StopIteration."""
    cdef PyObject *result
    if send_to_call(step, <PyObject*>None, &result) == PYGEN_RETURN:
        stop_with(taken(result))
        return NULL
    return result


cdef object slow_call(object file, CallKind kind, object first, object second):
    """Return the coroutine of the file for a call that has to wait; the caller has the lock."""
    method = getattr(file, kind.slow_name)
    if kind.arguments == 0:
        return method()
    return method(first) if kind.arguments == 1 else method(first, second)


cdef object taken(PyObject *result):
    value = <object>result
    Py_DECREF_owned(result)
    return value


def raise_exception(kind, value=None, traceback=None):
    """Raise the exception that these arguments of `throw` mean."""
    raise_thrown(kind, value, traceback)


cdef FileCall new_call(object file, CallLock lock, CallKind kind, object first, object second):
    cdef FileCall call = FileCall.__new__(FileCall)
    call.kind = kind
    call.file = file
    call.lock = lock
    call.first = first
    call.second = second
    call.stage = CALL_CREATED
    return call


spare_stop = call_no_args(StopIteration)
set_step(FileCall, <PyObject *(*)(PyObject *) noexcept>step_of_call)
set_send(FileCall, <SendFunction>send_to_call)
