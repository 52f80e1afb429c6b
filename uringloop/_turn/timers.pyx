"""Timers, nearest deadline first: a heap with four children per node and lazy cancellation.

An entry is a deadline and a pointer to its handle, and four children fill one cache line: sifting
reads a handle only when two deadlines are equal.

As in asyncio, a cancelled timer stays until it reaches the top, or until more than half of a large
heap is cancelled: cancelling, which is how most timeouts end, costs nothing. The kernel gets no
timer per deadline; the wait carries the nearest one.

Handles in the heap are untracked: the garbage collector's visits took nearly half of the time of
creating a million timers. `traverse_timers` visits what they refer to, so that an unreferenced loop
is collected with its timers.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy

from uringloop._cpython.pyapi cimport (
    FREE_THREADED,
    PyObject_GC_Track,
    PyObject_GC_UnTrack,
    Py_DECREF_owned,
    prefetch,
    visitproc,
)
from uringloop._kernel.atomics cimport adjust_size, count_size, load_int, load_size, store_size
from uringloop._turn.handles cimport TimerHandle, is_unshared, traverse_waiting
from uringloop._turn.spare_handles cimport new_spare_timers


cdef enum:
    # Compact the heap when more than COMPACT_ABOVE of its timers, and more than half of them, are
    # cancelled: asyncio's numbers.
    COMPACT_ABOVE = 100
    # Initial capacity, and that of bursts for which spare timers are kept (TIMERS_MAX). It doubles
    # when full, and halves when three quarters are empty.
    CAPACITY_AT_START = 256
    CACHE_LINE = 64
    # A due timer is prefetched before it runs: its handle when HANDLE_AHEAD others come before it,
    # and its context when CONTEXT_AHEAD others do.
    HANDLE_AHEAD = 8
    CONTEXT_AHEAD = 4


cdef inline bint before(const Entry *left, const Entry *right) noexcept:
    if left.ns != right.ns:
        return left.ns < right.ns
    # Equal deadlines run in the order of creation.
    return (<TimerHandle>left.timer).sequence < (<TimerHandle>right.timer).sequence


cdef inline PyObject *let_go(PyObject *waiting) except NULL:
    """Return a timer that leaves the heap; if others refer to it, the collector tracks it again."""
    if is_unshared(waiting):
        leave(<TimerHandle>waiting)
        return waiting
    timer = <TimerHandle>waiting
    # Another thread may cancel it.
    with cython.critical_section(timer):
        leave(timer)
    PyObject_GC_Track(timer)
    return waiting


cdef inline void leave(TimerHandle timer) noexcept:
    if timer.is_cancelled:
        adjust_size(timer.cancelled_count, -1)
    timer.cancelled_count = NULL


cdef class TimerHeap:

    def __cinit__(self):
        self.spare = new_spare_timers()

    def __dealloc__(self):
        self.clear()

    cdef int push(self, TimerHandle timer) except -1:
        if self.is_sparse():
            self.spare.give_chain(self.compact())
        if self.count == self.capacity:
            self._resize(max(2 * self.capacity, CAPACITY_AT_START))
        self.sequence += 1
        timer.sequence = self.sequence
        if not FREE_THREADED or is_unshared(<PyObject*>timer):
            timer.cancelled_count = &self.cancelled
        else:
            # Another thread has called call_at(), and may have cancelled the timer by now.
            with cython.critical_section(timer):
                timer.cancelled_count = &self.cancelled
                if timer.is_cancelled:
                    adjust_size(&self.cancelled, 1)
        PyObject_GC_UnTrack(timer)
        Py_INCREF(timer)
        self.entries[self.count].ns = timer.deadline_ns()
        self.entries[self.count].timer = <PyObject*>timer
        count_size(&self.count, 1)
        self._sift_up(self.count - 1)
        return 0

    cdef int64_t next_deadline_ns(self) except? -1:
        """Return the nearest deadline or NO_DEADLINE, dropping cancelled timers on top."""
        while self.count:
            if not load_int(&(<TimerHandle>self.entries[0].timer).is_cancelled):
                return self.entries[0].ns
            self.spare.give(let_go(self._pop()))
        return NO_DEADLINE

    cdef int expire(self, int64_t now_ns) except -1:
        """Move the due timers out of the heap; `next_due` returns them."""
        while self.count and self.entries[0].ns <= now_ns:
            if self.due_end == self.due_capacity:
                self._grow_due()
            self.due[self.due_end] = self._pop()
            count_size(&self.due_end, 1)
        if self.capacity > CAPACITY_AT_START and 4 * self.count < self.capacity:
            try:
                self._resize(max(self.capacity // 2, CAPACITY_AT_START))
            except MemoryError:
                # The heap keeps the memory that it has.
                return 0
            if self.capacity == CAPACITY_AT_START:
                # Drop the timers of a burst: each keeps the memory around it from being given back.
                self.spare.clear()
        return 0

    cdef PyObject *next_due(self) except? NULL:
        """Remove the first due timer, which the caller then owns; NULL if there is none."""
        cdef PyObject *waiting
        if self.due_begin == self.due_end:
            return NULL
        if self.due_begin + HANDLE_AHEAD < self.due_end:
            prefetch(self.due[self.due_begin + HANDLE_AHEAD])
            waiting = self.due[self.due_begin + CONTEXT_AHEAD]
            prefetch(<PyObject*>(<TimerHandle>waiting).context)
        waiting = self.due[self.due_begin]
        count_size(&self.due_begin, 1)
        if self.due_begin == self.due_end:
            self._forget_due()
        return let_go(waiting)

    cdef int clear(self) except -1:
        """Drop every timer. Timers that destructors create meanwhile stay."""
        cdef Entry *entries = self.entries
        cdef char *storage = self.storage
        cdef PyObject **due = self.due
        cdef Py_ssize_t count = self.count
        cdef Py_ssize_t index = self.due_begin
        cdef Py_ssize_t end = self.due_end
        self.storage = NULL
        self.entries = NULL
        self.due = NULL
        self.capacity = self.due_capacity = 0
        store_size(&self.count, 0)
        self._empty_due()
        for index in range(index, end):
            Py_DECREF_owned(let_go(due[index]))
        for index in range(count):
            Py_DECREF_owned(let_go(entries[index].timer))
        PyMem_Free(due)
        PyMem_Free(storage)
        return 0

    cdef bint is_sparse(self) noexcept:
        """Return whether so many timers are cancelled that `compact` is worth its time."""
        # Other threads may cancel timers meanwhile.
        cdef Py_ssize_t cancelled = load_size(&self.cancelled)
        return cancelled > COMPACT_ABOVE and 2 * cancelled > self.count

    cdef PyObject *compact(self) except? NULL:
        """Remove the cancelled timers and return them as a chain, which the caller then owns.

        The caller drops them when the heap may change: their destructors may create timers.
        """
        cdef Py_ssize_t index
        cdef Py_ssize_t kept = 0
        cdef PyObject *timer
        cdef PyObject *cancelled = NULL
        for index in range(self.count):
            timer = self.entries[index].timer
            if load_int(&(<TimerHandle>timer).is_cancelled):
                (<TimerHandle>timer).older = cancelled
                cancelled = let_go(timer)
            else:
                self.entries[kept] = self.entries[index]
                kept += 1
        store_size(&self.count, kept)
        for index in range((kept - 2) >> 2, -1, -1):
            self._sift_down(index)
        return cancelled

    # ── memory ───────────────────────────────────────────────────────────────────────────────

    cdef int _resize(self, Py_ssize_t capacity) except -1:
        cdef char *storage = <char*>PyMem_Malloc(capacity * sizeof(Entry) + 2 * CACHE_LINE)
        cdef uintptr_t line
        if storage == NULL:
            raise MemoryError
        # Entries 1 to 4, the first four children, begin a cache line.
        line = (<uintptr_t>storage + 2 * CACHE_LINE - 1) & ~<uintptr_t>(CACHE_LINE - 1)
        if self.count:
            memcpy(<Entry*>line - 1, self.entries, self.count * sizeof(Entry))
        PyMem_Free(self.storage)
        self.storage = storage
        self.entries = <Entry*>line - 1
        self.capacity = capacity
        return 0

    cdef int _grow_due(self) except -1:
        cdef Py_ssize_t capacity = max(2 * self.due_capacity, CAPACITY_AT_START)
        cdef PyObject **grown = <PyObject**>PyMem_Realloc(
            self.due, capacity * sizeof(PyObject*))
        if grown == NULL:
            raise MemoryError
        self.due = grown
        self.due_capacity = capacity
        return 0

    cdef void _forget_due(self) noexcept:
        """Empty the due list, whose timers have all run; free its memory if it has grown."""
        self._empty_due()
        if self.due_capacity > CAPACITY_AT_START:
            PyMem_Free(self.due)
            self.due = NULL
            self.due_capacity = 0

    cdef void _empty_due(self) noexcept:
        store_size(&self.due_begin, 0)
        store_size(&self.due_end, 0)

    # ── keeping the order ────────────────────────────────────────────────────────────────────

    cdef PyObject *_pop(self) noexcept:
        """Remove and return the nearest timer with its reference; the heap must not be empty."""
        cdef PyObject *nearest = self.entries[0].timer
        count_size(&self.count, -1)
        if self.count:
            self.entries[0] = self.entries[self.count]
            self._sift_down(0)
        return nearest

    cdef void _sift_up(self, Py_ssize_t index) noexcept:
        cdef Entry moving = self.entries[index]
        cdef Py_ssize_t above
        while index > 0:
            above = (index - 1) >> 2
            if not before(&moving, &self.entries[above]):
                break
            self.entries[index] = self.entries[above]
            index = above
        self.entries[index] = moving

    cdef void _sift_down(self, Py_ssize_t index) noexcept:
        cdef Entry moving = self.entries[index]
        cdef Py_ssize_t below = 4 * index + 1
        cdef Py_ssize_t other
        while below < self.count:
            for other in range(below + 1, min(below + 4, self.count)):
                if before(&self.entries[other], &self.entries[below]):
                    below = other
            if not before(&self.entries[below], &moving):
                break
            self.entries[index] = self.entries[below]
            index = below
            below = 4 * index + 1
        self.entries[index] = moving


cdef int traverse_timers(TimerHeap heap, visitproc visit, void *argument) noexcept:
    """Visit what the timers refer to, for the garbage collector."""
    cdef Py_ssize_t index
    cdef int res = 0
    if heap is None:
        return 0
    for index in range(heap.due_begin, heap.due_end):
        res = res or traverse_waiting(heap.due[index], visit, argument)
    for index in range(heap.count):
        res = res or traverse_waiting(heap.entries[index].timer, visit, argument)
    return res
