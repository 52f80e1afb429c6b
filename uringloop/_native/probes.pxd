"""What this kernel does, tried (probes.h)."""


cdef extern from "probes.h" nogil:
    bint uring_quiet_send_works()
    bint uring_unix_multishot_works()
