"""call_soon(), call_soon_threadsafe(), call_later() and call_at(): methods of LoopCore.

The methods take their arguments by vectorcall, because Cython's parsing of `*args` takes four times
as long. Each function is a whole method, debug mode and unusual arguments included. Any thread may
call them.
"""

from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport (
    FREE_THREADED,
    PyContext_CopyCurrent,
    PyMethodDef,
    PyTuple_GET_ITEM_borrowed,
    PyTuple_GET_SIZE,
    add_method,
    give_away,
    has_no_variables,
    tuple_items,
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
from uringloop._turn.turn cimport LoopCore


cdef extern from *:
    """
    #include <string.h>
    #define URINGLOOP_CONTEXT "context"

    /* Whether a str is "context". The str that asyncio passes in C is not interned, and
     * PyUnicode_Compare takes 50 instructions, a tenth of those for a callback. The comparison
     * includes the NUL after the text, so it compares 8 bytes, which are a single number. */
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


# The type that add_method() expects. The functions below take a LoopCore instead of an object,
# because a variable of that type would count a reference. The method descriptor has checked the
# type.
ctypedef object (*method)(object, PyObject *const *, Py_ssize_t, PyObject *)
ctypedef object (*method_of_loop)(LoopCore, PyObject *const *, Py_ssize_t, PyObject *)

cdef str NAME_CONTEXT = "context"
cdef tuple CONTEXT_ONLY = (NAME_CONTEXT,)
cdef tuple CALLBACK = ("callback",)
cdef tuple DELAY_AND_CALLBACK = ("delay", "callback")
cdef tuple WHEN_AND_CALLBACK = ("when", "callback")
cdef tuple NO_ARGS = ()


cdef object call_soon(LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names):
    cdef Handle handle
    if not is_usual(1, size, names):
        return call_sorted(call_soon, "call_soon", CALLBACK, loop, call, size, names)
    if load_int(&loop.closed) or loop.in_debug_mode():
        check(loop, call[0], "call_soon")
    handle = loop.new_handle()
    fill_from(handle, call, size, context_of(call, size, names))
    handle.loop = loop
    if loop.in_debug_mode():
        loop.note_caller(handle)
    loop.push(handle)
    return handle


cdef int schedule_with(
        LoopCore loop, object callback, object argument, object context) except -1:
    """Do what call_soon() does outside debug mode, for code in C: *callback* has one argument."""
    cdef PyObject *call[2]
    cdef Handle handle = loop.new_handle()
    call[0] = <PyObject*>callback
    call[1] = <PyObject*>argument
    fill_from(handle, call, 2, <PyObject*>context)
    handle.loop = loop
    return loop.push(handle)


cdef object call_soon_threadsafe(
        LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names):
    cdef PyObject *context
    cdef Handle handle
    if not is_usual(1, size, names):
        return call_sorted(
            call_soon_threadsafe, "call_soon_threadsafe", CALLBACK, loop, call, size, names)
    if load_int(&loop.closed) or loop.in_debug_mode():
        loop.check_closed()
        loop.check_call(<object>call[0], "call_soon_threadsafe")
    context = context_of(call, size, names)
    handle = new_handle_for_threads()
    if type_of(<PyObject*>handle) == <PyObject*>ThreadSafeHandle:
        fill_for_threads(handle, loop, call, size, context)
    else:
        fill_from(handle, call, size, context)
        handle.loop = loop
    if loop.in_debug_mode():
        loop.note_caller(handle)
    loop.push_from_any_thread(handle)
    return handle


cdef object call_later(LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names):
    cdef double delay
    if not is_usual(2, size, names):
        return call_sorted(call_later, "call_later", DELAY_AND_CALLBACK, loop, call, size, names)
    if call[0] == <PyObject*>None:
        raise TypeError("delay must not be None")
    if loop.clock_replaced:
        return call_at_of_subclass(loop, call, size, context_of(call, size, names))
    if PyFloat_CheckExact(call[0]):
        delay = PyFloat_AS_DOUBLE(call[0])
    elif PyLong_CheckExact(call[0]):
        delay = PyLong_AsDouble(<object>call[0])
    else:
        when = uring_clock_ns() * 1e-9 + <object>call[0]
        check(loop, call[1], "call_at")
        return add_timer(loop, when, when, &call[1], size - 1, context_of(call, size, names))
    if load_int(&loop.closed) or loop.in_debug_mode():
        check(loop, call[1], "call_at")
    return add_timer(
        loop, uring_clock_ns() * 1e-9 + delay, None, &call[1], size - 1,
        context_of(call, size, names))


cdef object call_at_of_subclass(
        LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *context):
    """Call the methods `time` and `call_at` that a subclass or a program has put in place."""
    cdef Py_ssize_t index
    cdef object when = loop.time() + <object>call[0]
    return loop.call_at(
        when, *[<object>call[index] for index in range(1, size)], context=<object>context)


cdef object call_at(LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names):
    cdef PyObject *context
    if not is_usual(2, size, names):
        return call_sorted(call_at, "call_at", WHEN_AND_CALLBACK, loop, call, size, names)
    if call[0] == <PyObject*>None:
        raise TypeError("when cannot be None")
    if load_int(&loop.closed) or loop.in_debug_mode():
        check(loop, call[1], "call_at")
    context = context_of(call, size, names)
    if PyFloat_CheckExact(call[0]):
        return add_timer(loop, PyFloat_AS_DOUBLE(call[0]), None, &call[1], size - 1, context)
    return add_timer(loop, <object>call[0], <object>call[0], &call[1], size - 1, context)


cdef inline TimerHandle add_timer(
        LoopCore loop, double deadline, object given, PyObject *const *call, Py_ssize_t size,
        PyObject *context):
    """Add a timer, for call_later() and call_at(); *given*: the time if it is not a float."""
    cdef TimerHandle timer = loop.new_timer()
    fill_from(timer, call, size, context)
    timer.loop = loop
    timer.deadline = deadline
    if given is not None and type(given) is not float:
        timer.given = given
    if loop.in_debug_mode():
        loop.note_caller(timer)
    loop.push_timer(timer)
    return timer


cdef int check(LoopCore loop, PyObject *callback, str method) except -1:
    """Raise RuntimeError if the loop is closed; in debug mode check thread and callback, too."""
    loop.check_closed()
    if loop.in_debug_mode():
        loop.check_thread()
        loop.check_call(<object>callback, method)
    return 0


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
    if not FREE_THREADED or loop.in_debug_mode():
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


cdef inline bint is_usual(Py_ssize_t least, Py_ssize_t size, PyObject *names) noexcept:
    """Return whether *least* arguments or more came by position, and none but `context` by name."""
    return size >= least and (names == NULL or is_context_only(names))


cdef inline PyObject *context_of(
        PyObject *const *call, Py_ssize_t size, PyObject *names) noexcept:
    """Return the argument `context` of a usual call, or None."""
    return <PyObject*>None if names == NULL else call[size]


cdef object call_sorted(
        method_of_loop function, str name, tuple parameters, LoopCore loop,
        PyObject *const *call, Py_ssize_t size, PyObject *names):
    """Call one of the methods again, with the arguments of an unusual call in their order."""
    cdef tuple arguments = sort_arguments(name, parameters, call, size, names)
    return function(loop, tuple_items(arguments), len(arguments) - 1, <PyObject*>CONTEXT_ONLY)


cdef tuple sort_arguments(
        str method, tuple parameters, PyObject *const *call, Py_ssize_t size, PyObject *names):
    """Return the arguments of an unusual call by position, the context last.

    The signature is (*parameters, *args, context=None); raises TypeError, with Python's wording.
    """
    cdef Py_ssize_t index
    cdef list arguments = [<object>call[index] for index in range(size)]
    cdef dict by_name = {}
    if names != NULL:
        for index, name in enumerate(<tuple>names):
            by_name[name] = <object>call[size + index]
    context = by_name.pop(NAME_CONTEXT, None)
    missing = [name for name in parameters[size:] if name not in by_name]
    for name in by_name:
        if name not in parameters:
            raise TypeError(
                f"BaseLoop.{method}() got an unexpected keyword argument {str(name)!r}")
        if name in parameters[:size]:
            raise TypeError(f"BaseLoop.{method}() got multiple values for argument {str(name)!r}")
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise TypeError(
            f"BaseLoop.{method}() missing {len(missing)} required positional argument{plural}: "
            + " and ".join(map(repr, missing)))
    arguments += [by_name[name] for name in parameters[size:]]
    return (*arguments, context)


cdef PyMethodDef call_soon_definition
cdef PyMethodDef call_soon_threadsafe_definition
cdef PyMethodDef call_later_definition
cdef PyMethodDef call_at_definition
add_method(
    LoopCore, &call_soon_definition, b"call_soon",
    b"call_soon($self, callback, *args, context=None)\n--\n\n"
    b"Schedule *callback* for the next turn.",
    <method>call_soon)
add_method(
    LoopCore, &call_soon_threadsafe_definition, b"call_soon_threadsafe",
    b"call_soon_threadsafe($self, callback, *args, context=None)\n--\n\n"
    b"Schedule *callback* from any thread, waking the loop if it sleeps.",
    <method>call_soon_threadsafe)
add_method(
    LoopCore, &call_later_definition, b"call_later",
    b"call_later($self, delay, callback, *args, context=None)\n--\n\n"
    b"Schedule *callback* after *delay* seconds.",
    <method>call_later)
add_method(
    LoopCore, &call_at_definition, b"call_at",
    b"call_at($self, when, callback, *args, context=None)\n--\n\n"
    b"Schedule *callback* for the time *when* on the loop's clock.",
    <method>call_at)
