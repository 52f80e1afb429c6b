"""URINGLOOP_TRACE: submissions and completions of a loop's ring, written as they happen."""

import errno
import fcntl
import os
import threading

from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._kernel.trace cimport URING_TRACE_ERRORS
from uringloop._turn.turn cimport LoopCore

# The value of the variable for standard error.
STDERR = "1"

_lock = threading.Lock()
# Descriptors by value of the variable; shared by the loops of a process, and never closed.
_outputs = {}
_names = {number: name.encode() for number, name in errno.errorcode.items()}
cdef const char *_errors[URING_TRACE_ERRORS]
cdef unsigned int _loops = 0


def output(where):
    """Return the descriptor for *where*: "1", or the path of a file to append to; -1 for "".

    Raises OSError if the file cannot be opened.
    """
    if not where:
        return -1
    with _lock:
        if where not in _outputs:
            _outputs[where] = _opened(where)
        return _outputs[where]


def _opened(where):
    if where != STDERR:
        return os.open(where, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # A duplicate: the program may close 2, and another file may get that number.
        return fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return -1


def trace(LoopCore loop not None, int fd):
    """Write the submissions and completions of *loop*'s ring to *fd*; -1 writes nothing."""
    global _loops
    cdef int number
    if fd < 0:
        return
    with _lock:
        if not _loops:
            for number in range(URING_TRACE_ERRORS):
                _errors[number] = <const char *>_names[number] if number in _names else NULL
        _loops += 1
        loop.ring.trace.loop = _loops
    loop.ring.trace.errors = _errors
    loop.ring.trace.began_ns = uring_clock_ns()
    loop.ring.trace.fd = fd
