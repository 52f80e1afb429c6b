"""A call of a file: an awaitable that does at once what does not have to wait."""

from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport is_only_reference

from uringloop._files.scheduling cimport CallLock

cdef extern from "Python.h":
    # PySendResult, with a new reference to the result or the value.
    enum:
        PYGEN_RETURN
        PYGEN_NEXT


ctypedef int (*SendFunction)(PyObject *, PyObject *, PyObject **) noexcept


cdef extern from *:
    """
    /* Sets what a step of one of our awaitable types calls in Python 3.11, and of a task in later
     * ones, too: unlike __next__ it returns the result without an exception. */
    static inline void uringloop_set_send(
        PyObject *type, int (*send)(PyObject *, PyObject *, PyObject **)) {
        ((PyTypeObject *)type)->tp_as_async->am_send = (sendfunc)(void (*)(void))send;
    }

    /* Raises StopIteration with a result. Since Python 3.12 that creates the exception each time:
     * one is kept and raised again, unless a program or another thread has it, or has had it. */
    static PyObject *uringloop_spare_stop;

    static inline void uringloop_stop_with(PyObject *result) {
    #if PY_VERSION_HEX >= 0x030C0000
        PyStopIterationObject *spare = (PyStopIterationObject *)uringloop_spare_stop;

        if (uringloop_is_only_reference((PyObject *)spare) && spare->traceback == NULL
            && spare->context == NULL && spare->dict == NULL) {
            Py_XSETREF(spare->value, Py_NewRef(result));
            PyErr_SetRaisedException(Py_NewRef((PyObject *)spare));
            return;
        }
    #endif
        PyErr_SetObject(PyExc_StopIteration, result);
    }

    /* Drops the result that was raised last, so that it lives no longer than the program needs. */
    static inline void uringloop_forget_result(void) {
    #if PY_VERSION_HEX >= 0x030C0000
        if (uringloop_is_only_reference(uringloop_spare_stop))
            Py_XSETREF(((PyStopIterationObject *)uringloop_spare_stop)->value, Py_NewRef(Py_None));
    #endif
    }

    /* Gives a class the __anext__ of its compiled base: Python's own looks the method up by its
     * name each time. */
    static inline void uringloop_inherit_anext(PyObject *type, PyObject *base) {
        ((PyTypeObject *)type)->tp_as_async->am_anext =
            ((PyTypeObject *)base)->tp_as_async->am_anext;
    }
    """
    void set_send "uringloop_set_send" (object type, SendFunction send)
    # Each module that uses `stop_with` sets it when it is imported.
    PyObject *spare_stop "uringloop_spare_stop"
    PyObject *call_no_args "PyObject_CallNoArgs" (object callable) except NULL
    void stop_with "uringloop_stop_with" (object result)
    void forget_result "uringloop_forget_result" ()
    void inherit_anext "uringloop_inherit_anext" (object type, object base)


# Does a call at once, with its arguments; returns `LATER` if it cannot, having changed nothing that
# the caller can see. The call holds the file's lock.
ctypedef object (*Attempt)(object file, object first, object second)

# The drawing is in calls.pyx.
cdef enum CallStage:
    CALL_ENDED      # also of an object that no file has made
    CALL_CREATED
    CALL_PAUSED     # has the lock, and waits for the next turn
    CALL_WAITING    # for the lock
    CALL_RUNNING    # has the lock


cdef class CallKind:
    cdef Attempt attempt
    cdef str name                   # of the method that is called, with its class
    cdef str slow_name              # of the coroutine method that does the call if it has to wait
    cdef int arguments              # how many the latter takes


cdef class FileCall:
    cdef CallKind kind
    cdef object file                # None once the call has ended, as the arguments
    cdef CallLock lock              # the file's
    cdef object first               # the arguments
    cdef object second
    cdef object coroutine           # WAITING: of the lock; RUNNING: of the file; else None
    cdef CallStage stage
    cdef bint has_lock
    cdef int busy                   # some code is in a method of this object; atomic without a GIL
    cdef object __weakref__

    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef int resume(self, object value, PyObject **result) except -1
    cdef int begin(self, PyObject **result) except -1
    cdef int attempt(self, PyObject **result) except -1
    cdef int drive(self, object value, PyObject **result) except -1
    cdef int end(self) except -1


# What an attempt returns if the call has to wait.
cdef object LATER

cdef CallKind new_kind(Attempt attempt, str name, str slow_name, int arguments)
cdef FileCall new_call(object file, CallLock lock, CallKind kind, object first, object second)
