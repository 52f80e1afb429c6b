"""Declarations of probes.h: probes of what the kernel supports."""

from libc.stdint cimport uint64_t


cdef extern from "_ring/probes.h" nogil:
    struct uring_answers:
        uint64_t unknown
        uint64_t refused

    struct uring_abilities:
        bint quiet_sends
        uring_answers operations
        bint listed
        unsigned int facts
        const char *call

    const char *uring_operation_name(unsigned int opcode)
    int uring_try(uring_abilities *found)
    bint uring_try_paths()
    long uring_call_number(const char *name)
    int uring_ask_call(long number)
