"""The parts of CPython's C API that Cython's own declarations lack or wrap too heavily.

A call that returns ``PyObject *`` gives a new reference, or NULL with the exception set: the
caller owns both.
"""

from cpython.object cimport PyObject


cdef extern from "Python.h":
    PyObject *PyObject_Vectorcall(
        object callable, PyObject *const *args, size_t nargs, PyObject *kwnames)
    PyObject *PyObject_CallMethodOneArg(object target, object name, object argument)
    PyObject *PyObject_CallMethodNoArgs(object target, object name)
    PyObject *PyObject_VectorcallMethod(
        object name, PyObject *const *args, size_t nargs, PyObject *kwnames)
    object PyContext_CopyCurrent()
    int PyContext_Enter(object context) except -1
    # Negative with the exception set, which the caller handles.
    int PyContext_TryEnter "PyContext_Enter" (object context)
    int PyContext_Exit(object context) except -1
    void Py_DECREF_owned "Py_DECREF" (PyObject *reference)
    PyObject *PyList_GET_ITEM_borrowed "PyList_GET_ITEM" (list items, Py_ssize_t index)
    void PyList_SET_ITEM_stolen "PyList_SET_ITEM" (list items, Py_ssize_t index, PyObject *item)
    PyObject *PyTuple_GET_ITEM_borrowed "PyTuple_GET_ITEM" (tuple items, Py_ssize_t index)
    Py_ssize_t PyTuple_GET_SIZE(tuple items)
    int PyErr_CheckSignals() except -1


cdef extern from *:
    """
    /* The items of a tuple, in the form that vectorcall takes its arguments. */
    #define uringloop_tuple_items(t) (((PyTupleObject *)(t))->ob_item)

    /* Sets the pending exception aside and back; NULL when there is none. */
    #if PY_VERSION_HEX >= 0x030C0000
    #define uringloop_take_pending() PyErr_GetRaisedException()
    #define uringloop_set_pending(e) PyErr_SetRaisedException(e)
    #else
    static inline PyObject *uringloop_take_pending(void) {
        PyObject *type, *value, *traceback;

        PyErr_Fetch(&type, &value, &traceback);
        if (type == NULL)
            return NULL;
        PyErr_NormalizeException(&type, &value, &traceback);
        if (traceback != NULL)
            PyException_SetTraceback(value, traceback);
        Py_DECREF(type);
        Py_XDECREF(traceback);
        return value;
    }
    static inline void uringloop_set_pending(PyObject *exc) {
        if (exc == NULL) {
            PyErr_Clear();
            return;
        }
        PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exc)), exc, PyException_GetTraceback(exc));
    }
    #endif
    """
    PyObject *const *tuple_items "uringloop_tuple_items" (tuple items)
    PyObject *take_pending "uringloop_take_pending" ()
    void set_pending "uringloop_set_pending" (PyObject *exception)


cdef inline int raise_pending() except -1:
    """Turn a pending C-level exception into one that Cython's ``except`` can see."""
    return -1
