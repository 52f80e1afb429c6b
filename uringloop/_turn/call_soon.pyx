"""The methods that schedule callbacks, by vectorcall, in place of LoopCore's.

Cython's parsing of `*args` takes four times as long. Any thread may call these functions; they
decide as LoopCore's methods do, which run in debug mode and for unusual arguments.
"""

from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport (
    FREE_THREADED,
    PyContext_CopyCurrent,
    PyMethodDef,
    PyTuple_GET_ITEM_borrowed,
    PyTuple_GET_SIZE,
    give_away,
    has_no_variables,
    set_method,
    type_of,
)
from uringloop._kernel.atomics cimport load_int
from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._turn.handles cimport (
    Handle,
    ThreadSafeHandle,
    TimerHandle,
    new_handle_for_threads,
)
from uringloop._turn.turn cimport LoopCore, runs_here


cdef extern from *:
    """
    #include <string.h>
    #define URINGLOOP_CONTEXT "context"

    /* Whether a str is "context". asyncio's own in C is not interned, and PyUnicode_Compare takes
     * 50 instructions, a tenth of a callback's. The comparison has the NUL after the text, too: 8
     * bytes, which are one number. */
    static inline int uringloop_is_context(PyObject *name, PyObject *interned) {
        return name == interned
            || (PyUnicode_IS_COMPACT_ASCII(name)
                && PyUnicode_GET_LENGTH(name) == sizeof(URINGLOOP_CONTEXT) - 1
                && memcmp(PyUnicode_DATA(name), URINGLOOP_CONTEXT, sizeof(URINGLOOP_CONTEXT)) == 0);
    }
    """
    bint is_context "uringloop_is_context" (PyObject *name, PyObject *interned)
    bint PyFloat_CheckExact(PyObject *number)
    bint PyLong_CheckExact(PyObject *number)
    double PyFloat_AS_DOUBLE(PyObject *number)
    double PyLong_AsDouble(object number) except? -1


# The type that set_method() expects. The functions below take a LoopCore instead, whose type the
# method descriptor has checked: a variable of that type would count a reference.
ctypedef object (*fast_method)(object, PyObject *const *, Py_ssize_t, PyObject *)

cdef str NAME_CONTEXT = "context"
cdef tuple NO_ARGS = ()


cdef object call_soon_fast(
        LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names):
    """Do what call_soon does; in debug mode, or with unusual arguments, call it."""
    cdef PyObject *context = context_of(loop, call, size, names)
    cdef Handle handle
    if context == NULL:
        return call_slowly(CALL_SOON, loop, call, size, names)
    handle = loop.new_handle()
    fill_from(handle, call, size, context)
    handle.loop = loop
    loop.push(handle)
    return handle


cdef int schedule_with(
        LoopCore loop, object callback, object argument, object context) except -1:
    """Schedule *callback* with one argument, like call_soon(), for code in C."""
    cdef PyObject *call[2]
    cdef Handle handle = loop.new_handle()
    call[0] = <PyObject*>callback
    call[1] = <PyObject*>argument
    fill_from(handle, call, 2, <PyObject*>context)
    handle.loop = loop
    return loop.push(handle)


cdef object call_soon_threadsafe_fast(
        LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names):
    """Do what call_soon_threadsafe does, like call_soon_fast."""
    cdef PyObject *context = context_of(loop, call, size, names)
    cdef Handle handle
    if context == NULL:
        return call_slowly(CALL_SOON_THREADSAFE, loop, call, size, names)
    handle = new_handle_for_threads()
    if type_of(<PyObject*>handle) == <PyObject*>ThreadSafeHandle:
        fill_for_threads(handle, loop, call, size, context)
    else:
        fill_from(handle, call, size, context)
        handle.loop = loop
    loop.push_from_any_thread(handle)
    return handle


cdef object call_at_fast(
        LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names):
    """Do what call_at does, like call_soon_fast; slowly for times that are not floats."""
    cdef PyObject *context = context_of(loop, call, size, names)
    if context == NULL or size < 2 or not PyFloat_CheckExact(call[0]) or not may_add_timers(loop):
        return call_slowly(CALL_AT, loop, call, size, names)
    return add_timer(loop, PyFloat_AS_DOUBLE(call[0]), &call[1], size - 1, context)


cdef object call_later_fast(
        LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names):
    """Do what call_later does, like call_at_fast."""
    cdef PyObject *context = context_of(loop, call, size, names)
    cdef double delay
    if context == NULL or size < 2 or loop.clock_replaced or not may_add_timers(loop):
        return call_slowly(CALL_LATER, loop, call, size, names)
    if PyFloat_CheckExact(call[0]):
        delay = PyFloat_AS_DOUBLE(call[0])
    elif PyLong_CheckExact(call[0]):
        delay = PyLong_AsDouble(<object>call[0])
    else:
        return call_slowly(CALL_LATER, loop, call, size, names)
    return add_timer(loop, uring_clock_ns() * 1e-9 + delay, &call[1], size - 1, context)


cdef inline bint may_add_timers(LoopCore loop) noexcept:
    """Return whether the calling thread may use the loop's timers."""
    return not FREE_THREADED or runs_here(loop)


cdef inline TimerHandle add_timer(
        LoopCore loop, double deadline, PyObject *const *call, Py_ssize_t size, PyObject *context):
    cdef TimerHandle timer = loop.new_timer(True)
    fill_from(timer, call, size, context)
    timer.loop = loop
    timer.deadline = deadline
    loop.timers.push(timer)
    return timer


cdef inline int fill_from(
        Handle handle, PyObject *const *call, Py_ssize_t size, PyObject *context) except -1:
    """Fill *handle*, except for its loop, from *size* objects: a callback and its arguments."""
    take_call(handle, call, size)
    if context == <PyObject*>None:
        handle.context = PyContext_CopyCurrent()
    else:
        handle.context = <object>context
    return 0


cdef int fill_for_threads(
        Handle handle, LoopCore loop, PyObject *const *call, Py_ssize_t size,
        PyObject *context) except -1:
    """Do what fill_from does, for a ThreadSafeHandle."""
    take_call(handle, call, size)
    if not FREE_THREADED:
        handle.loop = loop
    if context != <PyObject*>None:
        handle.context = <object>context
    elif not has_no_variables():
        handle.context = PyContext_CopyCurrent()
        give_away(<PyObject*>handle.context)
    return 0


cdef inline int take_call(Handle handle, PyObject *const *call, Py_ssize_t size) except -1:
    cdef Py_ssize_t index
    handle.callback = <object>call[0]
    if size == 2:
        handle.single = True
        handle.args = <object>call[1]
    elif size == 1:
        handle.args = NO_ARGS
    else:
        handle.args = tuple([<object>call[index] for index in range(1, size)])
    return 0


cdef bint is_context_only(PyObject *names) noexcept:
    """Return whether `context` is the only keyword of a vectorcall with keywords."""
    return (PyTuple_GET_SIZE(<tuple>names) == 1
            and is_context(PyTuple_GET_ITEM_borrowed(<tuple>names, 0), <PyObject*>NAME_CONTEXT))


cdef inline PyObject *context_of(
        LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names) noexcept:
    """Return the argument `context`, or None; NULL if the call has to be made slowly."""
    if size >= 1 and not load_int(&loop.closed) and not loop.in_debug_mode():
        if names == NULL:
            return <PyObject*>None
        if is_context_only(names):
            return call[size]
    return NULL


cdef object call_slowly(
        object method, object target, PyObject *const *call, Py_ssize_t size, PyObject *names):
    """Call *method* of *target* with the arguments of a vectorcall."""
    cdef Py_ssize_t index
    cdef dict options = {}
    if names != NULL:
        for index, name in enumerate(<tuple>names):
            options[name] = <object>call[size + index]
    return method(target, *[<object>call[index] for index in range(size)], **options)


cdef PyMethodDef call_soon_definition
cdef PyMethodDef call_soon_threadsafe_definition
cdef PyMethodDef call_at_definition
cdef PyMethodDef call_later_definition
cdef object CALL_SOON = LoopCore.call_soon
cdef object CALL_SOON_THREADSAFE = LoopCore.call_soon_threadsafe
cdef object CALL_AT = LoopCore.call_at
cdef object CALL_LATER = LoopCore.call_later
set_method(LoopCore, CALL_SOON, &call_soon_definition, <fast_method>call_soon_fast)
set_method(
    LoopCore, CALL_SOON_THREADSAFE, &call_soon_threadsafe_definition,
    <fast_method>call_soon_threadsafe_fast)
set_method(LoopCore, CALL_AT, &call_at_definition, <fast_method>call_at_fast)
set_method(LoopCore, CALL_LATER, &call_later_definition, <fast_method>call_later_fast)
