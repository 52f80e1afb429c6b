"""Values for the private attributes of asyncio's loops that other programs read.

Each function derives its result from the loop's own state; no state is kept for it alone. The
results are copies: changing them does not change the loop. Any thread may call thread_of(), and
with a GIL the other functions.
"""

from uringloop._kernel.atomics cimport load_int
from uringloop._turn.handles cimport Handle, TimerHandle
from uringloop._turn.ready cimport ReadyQueue
from uringloop._turn.turn cimport LoopCore, running_thread, runs_here, try_to_claim, unclaim


def thread_of(LoopCore loop not None):
    """Return the identifier of the thread that runs *loop*; None if it does not run."""
    return running_thread(loop) or None


def ready_of(LoopCore loop not None):
    """Return the handles in the ready queue, the oldest first."""
    cdef ReadyQueue ready = loop.ready
    cdef Py_ssize_t index
    loop.check_reader()
    sort_inbox(loop)
    return tuple([<Handle>ready.place(index)[0] for index in range(ready.count)])


def scheduled_of(LoopCore loop not None):
    """Return the timers that have not run, nearest deadline first."""
    cdef list found = []
    cdef Py_ssize_t index
    loop.check_reader()
    for index in range(loop.timers.due_begin, loop.timers.due_end):
        found.append(<TimerHandle>loop.timers.due[index])
    for index in range(loop.timers.count):
        found.append(<TimerHandle>loop.timers.entries[index].timer)
    found.sort(key=order_of)
    return found


def order_of(TimerHandle timer):
    """Return the heap's sort key: equal deadlines run in the order of creation."""
    return timer.deadline_ns(), timer.sequence


cdef int sort_inbox(LoopCore loop) except -1:
    """Move the handles of the inbox to the ready queue, unless another thread runs the loop."""
    if not loop.inbox.has_new():
        return 0
    if runs_here(loop):
        return loop.inbox.drain_to(loop.ready)
    if try_to_claim(loop):
        try:
            if not load_int(&loop.closed):
                loop.inbox.drain_to(loop.ready)
        finally:
            unclaim(loop)
    return 0
