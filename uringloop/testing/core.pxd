"""The compiled part of a loop for tests.

The seams by which tests reach into the core; no program needs them:

    soft_world (_softring/world.h)      answers for the kernel: faults, completions, ends of streams
    Ring.u                              has the software ring, which gets the `soft_world`
    LoopCore.now_ns, run_turns, expire_timers, run_due, sleep, time, call_at, call_soon_threadsafe
                                        are overridden: virtual time, and an order by the seed
    Sleeper.forbid_epoll                leaves one place to sleep, in which the clock can advance
    uring_trace.clock_ns                gives the trace the loop's own clock
    Loop._make_datagram, make_datagram(kind=), DatagramTransport._receive
                                        carry datagrams of a simulated network, without a socket
    Listener.is_paused, give, accept_given
                                        take connections of that network
    FilesOfLoop.reproducible            keeps the page cache and the time out of what files do
    features.number_of_call             returns the number of a system call, for filters
    records.framed                      finds the ends of TLS records
    _operations_in_flight, _buffers_out, _kernel_entries
                                        are counters; the first two are zero when all is closed
"""

from libc.stdint cimport int64_t, uint64_t, uintptr_t

from uringloop._turn.handles cimport Handle
from uringloop._turn.turn cimport LoopCore


cdef extern from "testing/simulation.h":
    const uint64_t SIMULATION_ALWAYS
    enum:
        FAULT_KINDS
    ctypedef uint64_t simulation_chooser(void *owner, uint64_t limit) noexcept nogil
    ctypedef struct simulation:
        uint64_t state
        simulation_chooser *choose
        void *owner
        int64_t clock_ns
        bint waiting
        uint64_t *chance
        uint64_t *happened
    uint64_t simulation_random_below(simulation *kernel, uint64_t limit)
    bint simulation_happens(simulation *kernel, uint64_t chance)
    int simulation_end_with(simulation *kernel, uint64_t inode, int error)
    void simulation_clear(simulation *kernel)


cdef class TestingCore(LoopCore):
    cdef simulation kernel      # the ring's world; its random numbers are this loop's
    cdef object choices         # a random.Random that chooses in place of the seed, or None
    cdef object choice_failed   # the exception that `choices` raised, until it is raised here
    cdef bint choices_ended     # `choices` raised an exception: from then on each choice is 0
    cdef double clock           # seconds; it stands still while a callback can run
    cdef int trace_fd           # -1: no trace
    cdef uint64_t stall         # the chance of a stall in each turn, of SIMULATION_ALWAYS
    cdef uint64_t stalls        # that have happened
    cdef bint shuffles          # whether the seed chooses the order
    cdef uintptr_t maker        # the address of the task that has made the newest timer
    cdef object outside         # an Outside; None before _simulate()
    cdef bint clock_patched     # a test has replaced time(), and maybe put it back
    cdef bint collects          # it collects garbage in Python's place
    cdef int busy               # turns in which something ran, since the newest collection
    cdef uint64_t collections   # of garbage
    cdef int looks_at_clock     # in this turn
    cdef int busy_turns         # turns in a row at one instant, in which no operation completed
    cdef double busy_at         # that instant
    cdef int turns_spun         # turns in a row in which only sleep(0) ran; other threads read it
    cdef int64_t spun_at_ns     # on the real clock: when these turns were last looked at
    cdef int64_t idle_since_ns  # on the real clock; 0 while callbacks run
    cdef uint64_t completions   # of the ring, when this turn began
    # What the loop tells the loops of other threads. They write it, too, so it is written under the
    # lock of other_loops.
    cdef readonly object _partners  # a WeakSet of the loops with which it shares the time
    cdef public double _rest_s      # how long a loop that sleeps has nothing to do; 0: not known
    cdef public double _owed_s      # by how much its partners' clocks have gone on

    cdef int check_choices(self) except -1
    cdef bint has_own_clock(self) except -1
    cdef int collect_garbage(self) except -1
    cdef int let_time_pass(self) except -1
    cdef int set_clock(self, double seconds) except -1
    cdef int move_to(self, double deadline) except -1
    cdef int trace_handle(self, str what, Handle handle) except -1
    cdef int begin_turn(self) except -1
    cdef bint only_yields(self) except -1
    cdef int leave_spin(self) except -1
    cdef int shuffle_ready(self) except -1
    cdef Py_ssize_t below(self, Py_ssize_t limit) noexcept
    cdef int shuffle_due(self) except -1
    cdef bint was_called(self, uintptr_t before) noexcept
    cdef int order_by_step(self, Py_ssize_t begin, Py_ssize_t end) except -1
    cdef bint has_nothing(self) noexcept
    cdef double idle_s(self) noexcept
    cdef uint64_t activity(self) noexcept
    cdef int sleep_outside(self, int64_t timeout_ns, double seconds, bint flows) except -1
    cdef double next_deadline(self) except? -1
    cdef int advance(self) except -1
    cdef int advance_to(self, double when) except -1
    cdef int goes_on(self) except -1
    cdef int take_owed(self) except -1
