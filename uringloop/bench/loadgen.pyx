# cython: language_level=3
"""The compiled load generator: many connections, one thread, one ring, no GIL while it measures.

Runs in a process of its own, started by `uringloop.bench.runner`. The thread that makes a
LoadGenerator drives and closes it. The engine is C, in loadgen.h; this module has its Python
interface, the check for signals between slices of a run, and the histogram.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import os

# How long the engine runs before Python checks for signals: Ctrl-C feels immediate.
cdef uint64_t SLICE_NS = 50_000_000

# In the order of enum loadgen_failure.
FAILURE_KINDS = ("mismatches", "unexpected", "early_eofs", "errors", "stalls")


@cython.final
cdef class Histogram:
    """Latencies in nanoseconds, in buckets of less than 1 % width."""

    def __cinit__(self):
        self.buckets = <uint64_t *>calloc(HISTOGRAM_BUCKETS, sizeof(uint64_t))
        if self.buckets == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.buckets)

    @staticmethod
    def from_items(items):
        """Return a histogram with the counts that `items` returned."""
        cdef Histogram histogram = Histogram()
        for index, count in items:
            if not 0 <= index < HISTOGRAM_BUCKETS:
                raise ValueError(f"no bucket has the index {index}")
            histogram.buckets[<unsigned int>index] += <uint64_t>count
        return histogram

    def items(self):
        """Return the buckets that are not empty, as pairs of index and count."""
        cdef unsigned int i
        return [(i, self.buckets[i]) for i in range(HISTOGRAM_BUCKETS) if self.buckets[i]]

    def record(self, uint64_t value, uint64_t count=1):
        """Count *value*, in nanoseconds, *count* times."""
        self.buckets[histogram_index(value)] += count

    def merge(self, Histogram other not None):
        """Add the counts of *other*."""
        cdef unsigned int i
        for i in range(HISTOGRAM_BUCKETS):
            self.buckets[i] += other.buckets[i]

    def count(self):
        """Return how many values were recorded."""
        cdef unsigned int i
        cdef uint64_t total = 0
        for i in range(HISTOGRAM_BUCKETS):
            total += self.buckets[i]
        return total

    def percentile(self, double percent):
        """Return the value that *percent* of the recorded values do not exceed; 0 if empty."""
        cdef uint64_t total = self.count()
        cdef uint64_t seen = 0
        cdef unsigned int i
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentile is between 0 and 100, not {percent}")
        for i in range(HISTOGRAM_BUCKETS):
            seen += self.buckets[i]
            if seen and <double>seen >= percent / 100 * <double>total:
                return histogram_value(i)
        return 0


@cython.final
cdef class LoadGenerator:
    """Connections to one echo server, each with at most one request outstanding.

    *address* is a path or a pair of IPv4 address and port. *rate* is the total of requests per
    second of the open loop, 0 the closed loop. With *spinning* a generator that has a core for
    itself spins before a scheduled send. Raises OSError if the kernel refuses the ring.
    """

    def __cinit__(self):
        memset(&self.engine, 0, sizeof(self.engine))

    def __init__(self, address, connections, size, *, rate=0.0, spinning=False, stall=10.0):
        if connections < 1 or size < 1 or rate < 0 or stall <= 0:
            raise ValueError("connections, size and stall are positive, and rate is not negative")
        if self.opened:
            raise RuntimeError("this load generator is already open")
        self.engine.count = connections
        self.engine.size = size
        self.engine.rate = rate
        self.engine.spinning = spinning
        self.engine.stall_ns = <uint64_t>(stall * 1e9)
        cdef bytes name
        cdef int res
        if isinstance(address, str):
            name = os.fsencode(address)
            res = loadgen_set_unix_address(&self.engine, name, len(name))
        else:
            name = address[0].encode("ascii")
            res = loadgen_set_tcp_address(&self.engine, name, address[1])
        if res < 0:
            raise OSError(-res, f"{os.strerror(-res)}: {address!r}")
        self.opened = True
        res = loadgen_open(&self.engine)
        if res < 0:
            self.close()
            raise OSError(-res, f"the load generator's ring: {os.strerror(-res)}")

    def __dealloc__(self):
        if self.opened:
            loadgen_close(&self.engine)

    def close(self):
        """Close every connection and the ring."""
        if self.opened:
            self.opened = False
            loadgen_close(&self.engine)

    cdef int drive(
        self, int (*phase)(loadgen *, uint64_t) noexcept nogil, uint64_t end_ns
    ) except -1:
        # Returns 0 at end_ns or when the phase is over, 1 when all connections are lost.
        cdef int res = LOADGEN_GOES_ON
        cdef uint64_t now = loadgen_now()
        cdef uint64_t slice_ns
        while now < end_ns:
            slice_ns = min(end_ns, now + SLICE_NS)
            with nogil:
                res = phase(&self.engine, slice_ns)
                now = loadgen_now()
            if res < 0:
                raise OSError(-res, f"the load generator's ring: {os.strerror(-res)}")
            if res == LOADGEN_DEAD:
                return 1
            # Runs the handlers of signals, so that KeyboardInterrupt leaves from here.
            PyErr_CheckSignals()
            if now < slice_ns and res == LOADGEN_GOES_ON:
                return 0
        return 0

    def connect(self, timeout=60.0):
        """Establish the connections, each with one echo that is checked but not counted."""
        cdef uint64_t end_ns = loadgen_now() + <uint64_t>(timeout * 1e9)
        self.require_open()
        self.drive(&loadgen_connect, end_ns)
        if self.engine.established + self.engine.lost < self.engine.count:
            loadgen_fail_stalled(&self.engine)

    def run(self, seconds):
        """Send requests for *seconds*; return answered, unanswered, nanoseconds and latencies.

        Requests in flight stay so: the next call carries on where this one ended. Requests of the
        open loop that are due but not answered are in the histogram with their present age.
        """
        cdef Histogram histogram = Histogram()
        cdef uint64_t begin_ns, end_ns, unanswered
        self.require_open()
        self.engine.answered = 0
        self.engine.histogram = histogram.buckets
        if not self.started:
            self.started = True
            loadgen_start(&self.engine)
        begin_ns = loadgen_now()
        try:
            self.drive(&loadgen_run, begin_ns + <uint64_t>(seconds * 1e9))
            end_ns = loadgen_now()
            unanswered = loadgen_count_unanswered(&self.engine, end_ns)
        finally:
            self.engine.histogram = NULL
        return self.engine.answered, unanswered, end_ns - begin_ns, histogram

    def untaken(self):
        """Return how many complete answers of the server have not been taken from their sockets."""
        self.require_open()
        return loadgen_count_untaken(&self.engine)

    def drain(self, timeout=10.0):
        """Wait for the outstanding echoes; an echo that does not come is a stall."""
        cdef Histogram histogram = Histogram()
        self.require_open()
        self.engine.histogram = histogram.buckets
        try:
            self.drive(&loadgen_drain, loadgen_now() + <uint64_t>(timeout * 1e9))
        finally:
            self.engine.histogram = NULL
        loadgen_fail_stalled(&self.engine)

    cdef int require_open(self) except -1:
        if not self.opened:
            raise RuntimeError("the load generator is closed")
        return 0

    def failures(self):
        """Return how often each kind of failure was seen."""
        cdef int i
        return {FAILURE_KINDS[i]: self.engine.failures[i] for i in range(LOADGEN_FAILURES)}

    def first_failure(self):
        """Return one line about the first failure, or None."""
        if not any(self.failures().values()):
            return None
        kind = FAILURE_KINDS[self.engine.failed_kind]
        error = self.engine.failed_error
        texts = {
            "mismatches": "the echo differs from what was sent",
            "unexpected": "more bytes were received than sent",
            "early_eofs": "the server closed the connection",
            "errors": os.strerror(error),
            "stalls": "the echo did not come",
        }
        return (
            f"{texts[kind]} (connection {self.engine.failed_connection},"
            f" request {self.engine.failed_sequence}, byte {self.engine.failed_offset})"
        )
