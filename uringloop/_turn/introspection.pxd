"""Values for the private attributes of asyncio's loops that other programs read."""

from uringloop._turn.turn cimport LoopCore


cdef int sort_inbox(LoopCore loop) except -1
