"""Declarations of trace.h: the trace of a ring."""

from libc.stdint cimport int64_t

from uringloop._kernel.io_uring cimport io_uring_sqe


cdef extern from "_kernel/trace.h" nogil:
    enum:
        URING_TRACE_ERRORS

    struct uring_trace:
        int fd
        unsigned int loop
        unsigned int number
        int64_t began_ns
        const int64_t *clock_ns
        const char **errors

    unsigned int uring_trace_start(
        uring_trace *trace, const io_uring_sqe *sqe, bint quiet, const char *owner)
    void uring_trace_cancel(
        const uring_trace *trace, const char *what, unsigned int opcode, unsigned int number)
    void uring_trace_complete(
        const uring_trace *trace, unsigned int opcode, unsigned int number, int res, bint more,
        bint all)
    void uring_trace_enter(const uring_trace *trace, int res)
