"""What a loop for tests knows of callbacks: their tasks, and where the seed may put them."""

from uringloop._turn.handles cimport Handle


# Where the seed may put a handle, in relation to those that were scheduled before it.
cdef enum Place:
    FIXED       # after all of them, and before all later ones: a callback
    BEHIND      # after all of them: a task that has yielded by sleep(0)
    ANYWHERE    # after the callbacks: a task that was woken, or has not begun


cdef str name_of(Handle handle)
cdef object task_of(object callback)
cdef Place place_of(Handle handle, set seen) except *
