"""The thread that runs a loop, and private attributes of loops that other programs read."""

from uringloop._turn.turn cimport LoopCore


cdef int sort_inbox(LoopCore loop) except -1
