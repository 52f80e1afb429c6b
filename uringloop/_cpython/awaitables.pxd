"""Awaitables in C: how one of our types gives its result to whoever awaits it, if possible without
an exception.

CPython 3.11, and tasks of every version, take the result by the slot `am_send`; later interpreters
call __next__, which raises it in a StopIteration.
"""

from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport is_only_reference


cdef extern from "Python.h":
    # PySendResult, which comes with a new reference to the result, or to what is awaited.
    enum:
        PYGEN_RETURN
        PYGEN_NEXT


# A step of an awaitable. It gets the awaitable and the value that is sent, and returns a
# PySendResult, or -1 with an exception.
ctypedef int (*SendFunction)(PyObject *, PyObject *, PyObject **) noexcept


cdef extern from *:
    """
    /* Sets __next__ of one of our awaitable types: it returns what is awaited, or NULL with a
     * StopIteration that holds the result. Cython's own would create a traceback each time. */
    static void uringloop_set_step(PyObject *type, iternextfunc step) {
        ((PyTypeObject *)type)->tp_iternext = step;
    }

    /* Sets am_send, which unlike __next__ returns the result without an exception. */
    static inline void uringloop_set_send(
        PyObject *type, int (*send)(PyObject *, PyObject *, PyObject **)) {
        ((PyTypeObject *)type)->tp_as_async->am_send = (sendfunc)(void (*)(void))send;
    }

    /* Raises StopIteration with a result. From Python 3.12 on, that would create an exception each
     * time. So one is kept and raised again, unless a program or another thread has it, or has had
     * it. */
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
    void set_step "uringloop_set_step" (object type, PyObject *(*step)(PyObject *) noexcept)
    void set_send "uringloop_set_send" (object type, SendFunction send)
    # Each module that uses `stop_with` sets it when it is imported.
    PyObject *spare_stop "uringloop_spare_stop"
    PyObject *call_no_args "PyObject_CallNoArgs" (object callable) except NULL
    void stop_with "uringloop_stop_with" (object result)
    void forget_result "uringloop_forget_result" ()
    void inherit_anext "uringloop_inherit_anext" (object type, object base)


cdef inline int raise_thrown(object exc, object value, object traceback) except -1:
    """Raise the exception that the arguments of `throw` mean; the last two may be None."""
    if value is None:
        value = exc if isinstance(exc, BaseException) else exc()
    elif not isinstance(value, BaseException):
        value = exc(value)
    raise value if traceback is None else value.with_traceback(traceback)
