"""call_soon() and call_soon_threadsafe() by vectorcall, in place of LoopCore's methods.

Cython's parsing of `*args` takes four times as long. Any thread may call these functions; they
decide as LoopCore's methods do, which run in debug mode and for unusual arguments.
"""

from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport (
    PyMethodDef,
    PyTuple_GET_ITEM_borrowed,
    PyTuple_GET_SIZE,
    PyUnicode_Compare,
    set_method,
)
from uringloop._kernel.atomics cimport load_int
from uringloop._turn.handles cimport Handle, fill_from, new_handle_for_threads
from uringloop._turn.turn cimport LoopCore


# The type that set_method() expects. The functions below take a LoopCore instead, whose type the
# method descriptor has checked: a variable of that type would count a reference.
ctypedef object (*fast_method)(object, PyObject *const *, Py_ssize_t, PyObject *)

cdef str NAME_CONTEXT = "context"


cdef object call_soon_fast(
        LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names):
    """Do what call_soon does; in debug mode, or with unusual arguments, call it."""
    cdef PyObject *context = context_of(loop, call, size, names)
    cdef Handle handle
    if context == NULL:
        return call_slowly(CALL_SOON, loop, call, size, names)
    handle = fill_from(loop.new_handle(), loop, call, size, context)
    loop.push(handle)
    return handle


cdef object call_soon_threadsafe_fast(
        LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names):
    """Do what call_soon_threadsafe does, like call_soon_fast."""
    cdef PyObject *context = context_of(loop, call, size, names)
    cdef Handle handle
    if context == NULL:
        return call_slowly(CALL_SOON_THREADSAFE, loop, call, size, names)
    handle = fill_from(new_handle_for_threads(), loop, call, size, context)
    loop.push_from_any_thread(handle)
    return handle


cdef PyObject *context_of(
        LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names) noexcept:
    """Return the argument `context`, or None; NULL if the call has to be made slowly."""
    if size >= 1 and not load_int(&loop.closed) and not loop.in_debug_mode():
        if names == NULL:
            return <PyObject*>None
        if PyTuple_GET_SIZE(<tuple>names) == 1:
            if PyUnicode_Compare(PyTuple_GET_ITEM_borrowed(<tuple>names, 0), NAME_CONTEXT) == 0:
                return call[size]
    return NULL


cdef object call_slowly(
        object method, LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names):
    """Call *method* of *loop* with the arguments of a vectorcall."""
    cdef Py_ssize_t index
    cdef dict options = {}
    if names != NULL:
        for index, name in enumerate(<tuple>names):
            options[name] = <object>call[size + index]
    return method(loop, *[<object>call[index] for index in range(size)], **options)


cdef PyMethodDef call_soon_definition
cdef PyMethodDef call_soon_threadsafe_definition
cdef object CALL_SOON = LoopCore.call_soon
cdef object CALL_SOON_THREADSAFE = LoopCore.call_soon_threadsafe
set_method(LoopCore, CALL_SOON, &call_soon_definition, <fast_method>call_soon_fast)
set_method(
    LoopCore, CALL_SOON_THREADSAFE, &call_soon_threadsafe_definition,
    <fast_method>call_soon_threadsafe_fast)
