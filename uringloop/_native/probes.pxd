"""What this kernel does, tried (probes.h)."""


cdef extern from "probes.h" nogil:
    int uring_try(bint *quiet, unsigned int *facts)
