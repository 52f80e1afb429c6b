"""Reading a file into the page cache, before sendfile(2) sends it from there."""

from uringloop._ring.ring cimport Operation
from uringloop._turn.turn cimport LoopCore


cdef class ReadAhead:
    cdef LoopCore loop
    cdef Operation read_op
    cdef bytes memory               # which a worker fills until the operation has ended
    cdef object future              # resolved with None when the operation has ended

    cdef int submit_read(self, int fd, unsigned long long offset) except -1
    cdef int on_read(self) except -1
    cdef int finish(self) except -1
