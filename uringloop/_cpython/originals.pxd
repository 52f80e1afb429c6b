"""Functions of the standard library that compiled code stands for, while nobody changes them."""

cdef class Original:
    cdef object places      # the names of the owner
    cdef str name
    cdef object function
    cdef object code        # of a function in Python, else None
    cdef bint was_own       # the standard library had defined it
