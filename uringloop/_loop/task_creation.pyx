"""create_task() by vectorcall, in place of the method in Python, for loops without a task factory.

Without a GIL the method in Python remains: it finds asyncio's class of tasks without a change of a
count that threads share, and code in C cannot. But asyncio makes a bound method of it for each
task, so it is an object that counts no references.
"""

from asyncio import tasks

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport (
    FREE_THREADED,
    PY_VECTORCALL_ARGUMENTS_OFFSET,
    PyMethodDef,
    PyTuple_GET_ITEM_borrowed,
    PyTuple_GET_SIZE,
    PyUnicode_Compare,
    call_vector,
    keep_for_ever,
    name_method,
    set_method,
)
from uringloop._kernel.atomics cimport load_int
from uringloop._turn.call_soon cimport call_slowly
from uringloop._turn.turn cimport LoopCore


cdef dict NAMES = vars(tasks)
cdef str TASK = "Task"
cdef tuple OPTIONS = ("loop", "name", "context")

cdef PyMethodDef definition
cdef object in_python


def replace_create_task(type loop_class not None):
    """Replace `create_task` of *loop_class*, or keep it for ever; once in a process."""
    global in_python
    in_python = loop_class.create_task
    if FREE_THREADED:
        keep_for_ever(in_python)
        return
    name_method(
        &definition, b"create_task",
        b"create_task($self, coro, *, name=None, context=None, **kwargs)\n--\n\n")
    set_method(loop_class, in_python, &definition, create_task)


cdef object create_task(object self, PyObject *const *call, Py_ssize_t size, PyObject *names):
    cdef LoopCore loop = <LoopCore>self
    cdef PyObject *arguments[5]
    cdef PyObject *found
    cdef PyObject *name
    cdef Py_ssize_t index
    if size != 1 or loop._has_task_factory or load_int(&loop.closed):
        return call_slowly(in_python, loop, call, size, names)
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
                return call_slowly(in_python, loop, call, size, names)
    # Programs replace the class.
    found = PyDict_GetItemWithError(NAMES, TASK)
    if found == NULL:
        return call_slowly(in_python, loop, call, size, names)
    task_class = <object>found
    return call_vector(
        <PyObject*>task_class, &arguments[1], 1 | PY_VECTORCALL_ARGUMENTS_OFFSET,
        <PyObject*>OPTIONS)
