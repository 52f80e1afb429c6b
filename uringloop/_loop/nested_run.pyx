"""A run of a loop within a callback of the same loop.

The turn is re-entrant as far as completions, timers and ready callbacks go: each is taken from its
queue before it runs. What is not re-entrant is dealt with here when a nested run begins. The
contexts of the callbacks that wait for it are left, because a context can be entered only once and
the nested run may come to the same connection, watcher or task context. A connection whose receive
has ended, and waits for its delivery to return, is armed again. What an interrupted flush has
taken from the flush list goes back there. In debug mode the callback that is named in reports is
restored afterwards.

Only the thread that runs the loop may call run_nested(); the checks are the caller's.
"""

from uringloop._cpython.pyapi cimport PyContext_Enter, PyContext_Exit
from uringloop._transport.pausing cimport ReadTransport
from uringloop._transport.transport cimport OPEN, Transport
from uringloop._turn.handles cimport Handle
from uringloop._turn.turn cimport LoopCore


def allow_nesting(LoopCore loop not None):
    """Have the transports of *loop* be ready for a nested run in any call of a protocol."""
    loop.nestable = True


def swap_stopping(LoopCore loop not None, bint stopping):
    """Set whether the innermost run ends with this turn; return what it was."""
    cdef bint before = loop.stopping
    loop.stopping = stopping
    return before


def run_nested(LoopCore loop not None):
    """Run turns until stop() is called, within a callback of *loop*, in its thread."""
    cdef Handle handle = loop.current_handle
    cdef list left = []
    try:
        leave_contexts(left)
        resume_transports(loop)
        while True:
            loop.run_turn()
            if loop.stopping:
                break
    finally:
        loop.current_handle = handle
        enter_contexts(left)


cdef int leave_contexts(list left) except -1:
    """Leave all contexts that this thread has entered; append them to *left*, the newest first."""
    cdef PyThreadState *state = PyThreadState_Get()
    cdef PyObject *newest = state.context
    while newest != NULL:
        context = <object>newest
        try:
            PyContext_Exit(context)
        except RuntimeError:
            # The thread's own, which nobody has entered.
            break
        left.append(context)
        newest = state.context
    return 0


cdef int enter_contexts(list left) except -1:
    """Enter the contexts of *left* again, the oldest first."""
    while left:
        PyContext_Enter(left.pop())
    return 0


cdef int resume_transports(LoopCore loop) except -1:
    """Arm the receives that wait for a delivery to return, and flush what an outer flush has left.

    A flush that calls resume_writing() has taken the flush list; what it has not come to waits in
    its frame. Flushed once more when that goes on, a transport has nothing to send.
    """
    cdef Transport transport
    cdef set listed = set(loop.flush_list)
    cdef int fd
    for fd in range(loop.owners.size):
        if loop.owners.table[fd] != NULL:
            transport = <Transport>loop.owners.table[fd]
            if transport.flush_queued and transport not in listed:
                loop.flush_list.append(transport)
            if transport.life == OPEN and isinstance(transport, ReadTransport):
                (<ReadTransport>transport).want_recv()
    return 0
