"""A call of a file: an awaitable that does at once what does not have to wait."""

from cpython.object cimport PyObject

from uringloop.files.scheduling cimport CallLock


# Does a call at once, with its arguments; returns `LATER` if it cannot, having changed nothing that
# the caller can see. The call holds the file's lock.
ctypedef object (*Attempt)(object file, object first, object second)

# The drawing is in calls.pyx.
cdef enum CallStage:
    CALL_ENDED      # also the stage of an object that no file created
    CALL_CREATED
    CALL_PAUSED     # has the lock, and waits for the next turn
    CALL_WAITING    # for the lock
    CALL_RUNNING    # has the lock


cdef class CallKind:
    cdef Attempt attempt
    cdef str name                   # of the method that is called, with its class
    cdef str slow_name              # of the coroutine method that does the call if it has to wait
    cdef int arguments              # how many arguments that method takes


cdef class FileCall:
    cdef CallKind kind
    cdef object file                # None once the call has ended; so are the arguments
    cdef CallLock lock              # the file's
    cdef object first               # the arguments
    cdef object second
    cdef object coroutine           # WAITING: of the lock; RUNNING: of the file; else None
    cdef CallStage stage
    cdef bint has_lock
    cdef int busy                   # some code is in a method of this object; atomic without a GIL
    cdef object __weakref__

    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef int resume(self, object value, PyObject **result) except -1
    cdef int begin(self, PyObject **result) except -1
    cdef int attempt(self, PyObject **result) except -1
    cdef int drive(self, object value, PyObject **result) except -1
    cdef int end(self) except -1


# What an attempt returns if the call has to wait.
cdef object LATER

cdef CallKind new_kind(Attempt attempt, str name, str slow_name, int arguments)
cdef FileCall new_call(object file, CallLock lock, CallKind kind, object first, object second)
