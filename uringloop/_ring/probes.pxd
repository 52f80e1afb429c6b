"""Declarations of probes.h: probes of what the kernel supports."""


cdef extern from "_ring/probes.h" nogil:
    struct uring_abilities:
        bint quiet_sends
        bint has_ftruncate
        bint has_epoll_wait
        unsigned int facts
        const char *call

    int uring_try(uring_abilities *found)
    bint uring_try_paths()
    long uring_call_number(const char *name)
    int uring_ask_call(long number)
