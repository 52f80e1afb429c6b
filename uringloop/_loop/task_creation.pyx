"""create_task(), a method of LoopCore that takes its arguments by vectorcall.

Unusual calls go on to `BaseLoop._create_task_slowly()`, which is Python code. A task factory is
called from here, too. For an eager task that never waits, the loop does nothing else; and a factory
that notes the place at which a task is created, as aiomonitor's does, finds the caller's.

Programs replace asyncio's class of tasks. On builds without a GIL, code in C that looks the class
up changes a reference count that all threads share. So there the class is noted, and noted anew
whenever the module's dictionary changes; each class that was noted is kept for ever, since a thread
may be using it.
"""

from asyncio import BaseEventLoop, tasks
from inspect import signature

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uintptr_t

from uringloop._cpython.pyapi cimport (
    FREE_THREADED,
    PY_VECTORCALL_ARGUMENTS_OFFSET,
    PyDict_WatchEvent,
    PyMethodDef,
    PyObject_Call,
    PyTuple_GET_ITEM_borrowed,
    PyTuple_GET_SIZE,
    PyUnicode_Check,
    PyUnicode_Compare,
    add_method,
    call_vector,
    watch,
)
from uringloop._kernel.atomics cimport exchange_pointer, load_int, load_pointer_acquire
from uringloop._turn.turn cimport LoopCore


cdef dict NAMES = vars(tasks)
cdef str TASK = "Task"
# asyncio's own class, in C; None if something has replaced it before the import. It keeps no
# reference to the dict of its options: all tasks of a loop that have no name and no context of
# their own are made with one dict.
cdef object TASK_IN_C = tasks.Task if tasks.Task.__module__ == "_asyncio" else None
cdef tuple OPTIONS = ("loop", "name", "context")

# Whether asyncio passes a name to a factory; see base_loop.py.
cdef bint FACTORY_TAKES_NAME = "name" not in signature(BaseEventLoop.create_task).parameters

cdef PyMethodDef definition
cdef uintptr_t noted_class      # of tasks, without a GIL; 0 if the module has none


cdef object create_task(object self, PyObject *const *call, Py_ssize_t size, PyObject *names):
    cdef LoopCore loop = <LoopCore>self
    cdef PyObject *arguments[5]
    cdef PyObject *task_class
    cdef PyObject *name
    cdef Py_ssize_t index
    cdef bint has_options
    if size != 1 or load_int(&loop.closed):
        return create_slowly(loop, call, size, names)
    arguments[1] = call[0]
    arguments[2] = <PyObject*>loop
    arguments[3] = <PyObject*>None
    arguments[4] = <PyObject*>None
    if names != NULL:
        for index in range(PyTuple_GET_SIZE(<tuple>names)):
            name = PyTuple_GET_ITEM_borrowed(<tuple>names, index)
            if PyUnicode_Compare(name, "name") == 0:
                arguments[3] = call[1 + index]
            elif PyUnicode_Compare(name, "context") == 0:
                arguments[4] = call[1 + index]
            else:
                return create_slowly(loop, call, size, names)
    has_options = arguments[3] != <PyObject*>None or arguments[4] != <PyObject*>None
    if load_int(&loop.has_task_factory):
        factory = self._task_factory
        if factory is None:
            return create_slowly(loop, call, size, names)
        if not has_options:
            return factory(self, <object>call[0])
        # Factories that accept only the loop and the coroutine are valid: pass only options that
        # the caller has given.
        options = {}
        if arguments[4] != <PyObject*>None:
            options["context"] = <object>arguments[4]
        if arguments[3] == <PyObject*>None:
            return factory(self, <object>call[0], **options)
        if FACTORY_TAKES_NAME:
            options["name"] = <object>arguments[3]
            return factory(self, <object>call[0], **options)
        made = factory(self, <object>call[0], **options)
        self._set_name(made, <object>arguments[3])
        return made
    task_class = <PyObject*>load_pointer_acquire(&noted_class)
    if not FREE_THREADED:
        task_class = PyDict_GetItemWithError(NAMES, TASK)
        # Hold the class: its constructor may put another in its place.
        _held = <object>task_class if task_class != NULL else None
    if task_class == NULL:
        return create_slowly(loop, call, size, names)
    if task_class == <PyObject*>TASK_IN_C and not has_options:
        return PyObject_Call(task_class, (<object>call[0],), loop.options_of_futures())
    return call_vector(
        task_class, &arguments[1], 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, <PyObject*>OPTIONS)


cdef object create_slowly(
        LoopCore loop, PyObject *const *call, Py_ssize_t size, PyObject *names):
    """Make a task with unusual arguments or in an unusual state of the loop, in Python."""
    cdef Py_ssize_t index
    cdef dict options = {}
    if names != NULL:
        for index, name in enumerate(<tuple>names):
            options[name] = <object>call[size + index]
    if size > 1:
        raise TypeError(
            f"BaseLoop.create_task() takes 2 positional arguments but {size + 1} were given")
    if size == 1 and "coro" in options:
        raise TypeError("BaseLoop.create_task() got multiple values for argument 'coro'")
    if size == 0 and "coro" not in options:
        raise TypeError("BaseLoop.create_task() missing 1 required positional argument: 'coro'")
    coroutine = <object>call[0] if size else options.pop("coro")
    return loop._create_task_slowly(coroutine, **options)


cdef int on_change(
        PyDict_WatchEvent _event, PyObject *_names, PyObject *key, PyObject *value) noexcept:
    """Note *value* as the class; note none if *key* is not a name: the whole dict changes."""
    if key == NULL or not PyUnicode_Check(key):
        note_class(NULL)
    elif PyUnicode_Compare(key, TASK) == 0:
        note_class(value)
    return 0


cdef void note_class(PyObject *task_class) noexcept:
    if task_class != NULL:
        Py_INCREF(<object>task_class)
    exchange_pointer(&noted_class, <uintptr_t>task_class)


add_method(
    LoopCore, &definition, b"create_task",
    b"create_task($self, coro, *, name=None, context=None, **kwargs)\n--\n\n", create_task)
if FREE_THREADED:
    note_class(PyDict_GetItemWithError(NAMES, TASK))
    try:
        watch(NAMES, on_change)
    except RuntimeError:
        # The process has all the watchers that CPython allows. Without a noted class each task is
        # created slowly.
        note_class(NULL)
