"""What the interpreter does between two functions in Python.

Before it runs one it gives the GIL to a thread that has waited for sys.getswitchinterval(), takes
part in a garbage collection, and runs the handlers of signals in the main thread. Compiled code
that calls functions in C, one after the other, has to let it act, or nobody else would run.
"""

from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport PyObject_CallNoArgs


# A function in Python. Profilers show these names; coverage looks for no file of such a name.
cdef dict defined = {}
exec(compile("def act_between_calls(): pass", "<uringloop>", "exec"), defined)
cdef object ACT = defined["act_between_calls"]


cdef int act_between_calls() except -1:
    PyObject_CallNoArgs(<PyObject*>ACT)
    return 0
