"""What this kernel does, tried (probes.h)."""


cdef extern from "probes.h" nogil:
    int uring_try(bint *quiet, bint *truncates, unsigned int *facts)
    bint uring_try_paths()
