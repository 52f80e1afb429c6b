"""What a loop for tests knows of callbacks: their tasks, and where the seed may put them."""

import asyncio
import functools
import types

from uringloop._turn.handles cimport Handle

cdef object TASK = asyncio.Task
# The names of the callbacks by which asyncio's tasks, in C and in Python, run a step or wake up.
cdef str STEP = "TaskStepMethWrapper"
cdef tuple STEPS = ("task_wakeup", "__step", "__wakeup")
cdef tuple METHODS = (types.BuiltinMethodType, types.MethodType)


cdef str name_of(Handle handle):
    """Return a name of the callback, without the addresses that differ from run to run."""
    callback = handle.callback
    owner = task_of(callback)
    if owner is not None:
        coroutine = owner.get_coro()
        return f"{owner.get_name()} {getattr(coroutine, '__qualname__', type(coroutine).__name__)}"
    while isinstance(callback, functools.partial):
        callback = callback.func
    try:
        return callback.__qualname__
    except Exception:
        return type(callback).__name__


cdef object task_of(object callback):
    """Return the task whose step *callback* is; None for another callback."""
    kind = type(callback)
    if kind.__name__ == STEP:
        return callback.__self__
    if kind not in METHODS or callback.__name__ not in STEPS:
        return None
    owner = callback.__self__
    return owner if isinstance(owner, TASK) else None


cdef Place place_of(Handle handle, set seen) except *:
    """Return where the seed may put *handle*; *seen*, if given, has the tasks before it."""
    owner = task_of(handle.callback)
    if owner is None:
        return FIXED
    if seen is not None:
        if id(owner) in seen:
            return BEHIND
        seen.add(id(owner))
    # asyncio passes a woken task the future that has woken it. A task whose coroutine has not begun
    # is new.
    if handle.single or (type(handle.args) is tuple and len(<tuple>handle.args) == 1):
        return ANYWHERE
    return BEHIND if getattr(owner.get_coro(), "cr_suspended", True) else ANYWHERE
