"""What the interpreter does between two functions in Python."""

cdef int act_between_calls() except -1
