"""A run of a loop within a callback of the same loop.

The turn is re-entrant for completions, timers, ready callbacks, deliveries and flushes: each is
taken from its queue before it runs. run_nested() handles the rest. It leaves the contexts of the
outer callbacks during the nested run: a context can be entered only once, and the nested run may
need the same context for a connection, a watcher or a task. It arms receives that have ended and
that the outer run would arm only after a delivery returns. At the end it restores the callback that
debug mode names in reports.

Only the thread that runs the loop may call run_nested(); the caller must check that.
"""

from uringloop._cpython.pyapi cimport PyContext_Enter, PyContext_Exit
from uringloop._kernel.atomics cimport store_int
from uringloop._transport.read_transport cimport ReadTransport
from uringloop._turn.handles cimport Handle
from uringloop._turn.turn cimport LoopCore


def allow_nesting(LoopCore loop not None):
    """Make the transports of *loop* expect a nested run within any protocol method."""
    loop.nestable = True


def take_stop(LoopCore loop not None):
    """Let the innermost run go on; return whether it was to end after this turn."""
    cdef bint stopping = loop.stopping
    store_int(&loop.stopping, False)
    return stopping


def give_stop_back(LoopCore loop not None, bint stopping):
    """Set whether the innermost run ends after this turn, as `take_stop` has returned it."""
    store_int(&loop.stopping, stopping)


def run_nested(LoopCore loop not None):
    """Run turns of *loop* until stop() is called; the caller is a callback of *loop*."""
    cdef Handle handle = loop.current_handle
    cdef list left = []
    try:
        leave_contexts(left)
        arm_receives(loop)
        loop.run_turns()
    finally:
        loop.current_handle = handle
        enter_contexts(left)


cdef int leave_contexts(list left) except -1:
    """Exit all contexts that this thread has entered; append them to *left*, newest first."""
    cdef PyThreadState *state = PyThreadState_Get()
    cdef PyObject *newest = state.context
    while newest != NULL:
        context = <object>newest
        try:
            PyContext_Exit(context)
        except RuntimeError:
            # The thread's base context, which was never entered.
            break
        left.append(context)
        newest = state.context
    return 0


cdef int enter_contexts(list left) except -1:
    """Enter the contexts of *left* again, oldest first."""
    while left:
        PyContext_Enter(left.pop())
    return 0


cdef int arm_receives(LoopCore loop) except -1:
    """Arm the receives that wait for an outer delivery to return."""
    cdef int fd
    for fd in range(loop.fd_table.size):
        if loop.fd_table.table[fd] != NULL:
            transport = <object>loop.fd_table.table[fd]
            if isinstance(transport, ReadTransport):
                (<ReadTransport>transport).want_recv()
    return 0
