"""The load generator's C engine and the fields of the two classes over it."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t


cdef extern from "histogram.h" nogil:
    const unsigned int HISTOGRAM_BUCKETS

    unsigned int histogram_index(uint64_t value)
    uint64_t histogram_value(unsigned int index)


cdef extern from "loadgen.h" nogil:
    enum:
        LOADGEN_GOES_ON
        LOADGEN_INTERRUPTED
        LOADGEN_DEAD
        LOADGEN_FAILURES

    # The fields are explained in loadgen_types.h.
    struct loadgen:
        uint32_t count
        uint64_t size
        double rate
        uint64_t stall_ns
        bint spinning
        uint32_t outstanding
        uint32_t established
        uint32_t lost
        uint64_t answered
        uint64_t *histogram
        uint64_t *failures
        uint32_t failed_connection
        uint32_t failed_sequence
        uint64_t failed_offset
        int failed_error
        uint32_t failed_kind

    int loadgen_set_unix_address(loadgen *lg, const char *path, size_t length)
    int loadgen_set_tcp_address(loadgen *lg, const char *host, uint16_t port)
    int loadgen_open(loadgen *lg)
    void loadgen_close(loadgen *lg)
    uint64_t loadgen_now()
    int loadgen_connect(loadgen *lg, uint64_t until_ns)
    void loadgen_start(loadgen *lg)
    int loadgen_run(loadgen *lg, uint64_t until_ns)
    int loadgen_drain(loadgen *lg, uint64_t until_ns)
    void loadgen_fail_stalled(loadgen *lg)
    uint64_t loadgen_count_untaken(loadgen *lg)
    uint64_t loadgen_count_unanswered(loadgen *lg, uint64_t now)


cdef class Histogram:
    cdef uint64_t *buckets       # HISTOGRAM_BUCKETS counts; freed by __dealloc__


cdef class LoadGenerator:
    cdef loadgen engine          # all state; its memory is freed by close or __dealloc__
    cdef bint opened             # the engine holds a ring and memory
    cdef bint started            # the requests have begun

    cdef int drive(
        self, int (*phase)(loadgen *, uint64_t) noexcept nogil, uint64_t end_ns
    ) except -1
    cdef int require_open(self) except -1
