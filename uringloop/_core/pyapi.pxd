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
    object PyContext_CopyCurrent()
    int PyContext_Enter(object context) except -1
    # Negative with the exception set, which the caller handles.
    int PyContext_TryEnter "PyContext_Enter" (object context)
    int PyContext_Exit(object context) except -1
    PyObject *PyList_GET_ITEM_borrowed "PyList_GET_ITEM" (list items, Py_ssize_t index)
    void PyList_SET_ITEM_stolen "PyList_SET_ITEM" (list items, Py_ssize_t index, PyObject *item)
    PyObject *PyTuple_GET_ITEM_borrowed "PyTuple_GET_ITEM" (tuple items, Py_ssize_t index)
    Py_ssize_t PyTuple_GET_SIZE(tuple items)
    int PyErr_CheckSignals() except -1


cdef extern from *:
    """
    /* The items of a tuple, in the form that vectorcall takes its arguments. */
    #define uringloop_tuple_items(t) (((PyTupleObject *)(t))->ob_item)
    """
    PyObject *const *tuple_items "uringloop_tuple_items" (tuple items)


cdef inline int raise_pending() except -1:
    """Turn a pending C-level exception into one that Cython's ``except`` can see."""
    return -1
