"""The order of a file's calls, their thread, and the time of files in the loop's turn.

A call that does not have to wait does not suspend its task, so a task that makes many such calls
would block the loop. Each call therefore checks the time here first, and a long one checks again
and again. On a uringloop.Loop files have a share of each turn, which is not used up while no other
work waits. The loop does not know about files: it counts its turns, and files keep their deadline
with the number of the turn to which it belongs (`FilesOfLoop`). Other loops do not expose their
turns: a call waits for the next one whenever the file's time is over.

Without a GIL the calls that are in progress are those of one thread: `enter` refuses other threads
until the last of these calls has ended. With a GIL no call of another thread can interrupt what is
done here without waiting.
"""

from asyncio import get_running_loop, sleep
from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from uringloop._cpython.pyapi cimport (
    FREE_THREADED,
    PyBytes_New,
    PyList_GET_ITEM_borrowed,
    PyUnicode_CopyCharacters,
    PyUnicode_MAX_CHAR_VALUE,
    PyUnicode_New,
    Py_REFCNT,
    take_bytes,
    take_text,
    this_thread,
)
from uringloop.files.operation cimport SLICE_BYTES, ring_loop
from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._kernel.libc cimport MADV_DONTNEED, getpagesize, madvise
from uringloop._ring.ring cimport PROCESS
from uringloop._turn.timers cimport NO_DEADLINE
from uringloop._turn.turn cimport LoopCore, runs_here


cdef enum:
    # How long files may work in a turn while other work waits for the next one, in ns: an echo
    # beside a task that reads lines takes at most twice as long as alone.
    TURN_NS = 10 * 1000
    # The same on the software ring, which does not know whether other work waits.
    SOFT_TURN_NS = 35 * 1000
    # The same under other loops, whose turns are not known and cost more.
    OTHER_LOOP_TURN_NS = 50 * 1000
    # The interval of the checks for other work once that time is over, in ns.
    RECHECK_NS = 2 * 1000
cdef enum:
    # How many bytes of memory are given back in a turn, which takes some 100 us.
    FREED_BYTES = 1024 * 1024


@cython.final
cdef class FilesOfLoop:

    cdef bint is_turn_spent(self, LoopCore loop) except -1:
        """Return whether files must stop: their time in this turn is used up, and other work waits.

        While no work waits they may go on, but not in debug mode, in which the loop would report
        the callback as slow.
        """
        cdef int64_t now
        if self.reproducible:
            return False
        now = uring_clock_ns()
        if self.turn != loop.counters.turns:
            self.turn = loop.counters.turns
            self.deadline_ns = now + (SOFT_TURN_NS if loop.ring.is_software() else TURN_NS)
            return False
        if now < self.deadline_ns:
            return False
        if loop.in_debug_mode() or not turn_would_be_idle(loop):
            return True
        self.deadline_ns = now + RECHECK_NS
        return False


cdef FilesOfLoop files_of(LoopCore loop):
    """Return what files keep for *loop*: an attribute that only files, and loops for tests, use."""
    cdef FilesOfLoop files = getattr(loop, "_files", None)
    if files is None:
        files = loop._files = FilesOfLoop()
    return files


cdef bint turn_would_be_idle(LoopCore loop) except -1:
    """Return whether a turn would find no work now, as far as is known without a system call."""
    cdef int64_t deadline
    # The software ring would need a system call.
    if loop.ring.is_software() or not loop.is_idle():
        return False
    if loop.sleeper.unarmed or loop.ring.needs_enter() or loop.timers.due_end:
        return False
    deadline = loop.timers.next_deadline_ns()
    return deadline == NO_DEADLINE or deadline > loop.now_ns()


@cython.final
cdef class CallLock:
    """A fair lock for the calls of a file; it belongs to no loop."""

    # ── the thread ───────────────────────────────────────────────────────────────────────────

    cdef int enter(self) except -1:
        """Begin a call. Raises RuntimeError while calls of another thread are in progress."""
        if FREE_THREADED and not self.add_call():
            raise RuntimeError("This file is in use by another thread")
        return 0

    cdef void leave(self) noexcept:
        """End a call, in any thread: the garbage collector may destroy it."""
        if FREE_THREADED:
            self.drop_call()

    @cython.critical_section
    cdef bint add_call(self) noexcept:
        if self.calls and self.thread != this_thread():
            return False
        self.thread = this_thread()
        self.calls += 1
        return True

    @cython.critical_section
    cdef void drop_call(self) noexcept:
        self.calls -= 1

    def begin(self):
        """Do what `enter` does, for Python code that does not wait."""
        self.enter()

    def end(self):
        self.leave()

    # ── the order ────────────────────────────────────────────────────────────────────────────

    def try_acquire(self):
        """Take the lock if it is free and there is time; else the caller must await `acquire`."""
        cdef bint taken = False
        self.enter()
        try:
            taken = not self.locked and not self.is_spent()
            if taken:
                self.locked = True
        finally:
            if not taken:
                self.leave()
        return taken

    async def acquire(self):
        """Take the lock once earlier calls have ended, and wait for a turn with time for files."""
        await self.acquire_in_any_turn()
        try:
            if self.is_spent():
                await self.pause()
        except BaseException:
            self.release()
            raise

    async def acquire_in_any_turn(self):
        """Take the lock once earlier calls have ended; do not suspend if there are none."""
        self.enter()
        try:
            await self._wait()
        except BaseException:
            self.leave()
            raise

    async def _wait(self):
        if not self.locked:
            self.locked = True
            return
        waiter = get_running_loop().create_future()
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                # The lock was passed to this call already.
                self.pass_on()
            raise

    def release(self):
        """Pass the lock to the next call, or release it."""
        self.give_back()

    cdef int give_back(self) except -1:
        try:
            if self.waiting is None:
                self.locked = False
            else:
                self.pass_on()
        finally:
            self.leave()
        return 0

    cdef int pass_on(self) except -1:
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)
                return 0
        self.locked = False
        return 0

    # ── the time ─────────────────────────────────────────────────────────────────────────────

    cdef LoopCore running_loop(self):
        """Return the running loop if it is a uringloop.Loop, else None.

        While this thread runs the loop of the last call, that is the answer: asking asyncio would
        take longer than reading a line. In a forked child the parent's loop seems to run, so the
        process is compared, too.
        """
        if self.loop is None or self.process != PROCESS or not runs_here(self.loop):
            self.loop = ring_loop()
            self.files = None if self.loop is None else files_of(self.loop)
            self.process = PROCESS
        return self.loop

    cdef void forget_loop(self) noexcept:
        """Drop the reference to the last loop, as the file is closed."""
        self.loop = None
        self.files = None

    cdef bint is_spent(self) except -1:
        """Return whether files have used up their time while other work waits, or may wait."""
        cdef LoopCore loop = self.running_loop()
        cdef int64_t now
        if loop is not None:
            return self.files.is_turn_spent(loop)
        now = uring_clock_ns()
        if self.until == 0:
            self.until = now + OTHER_LOOP_TURN_NS
        return now >= self.until

    def spent(self):
        return self.is_spent()

    async def pause(self):
        """Wait for the next turn of the loop."""
        await sleep(0)
        self.begin_turn()

    cdef void begin_turn(self) noexcept:
        """Note that a new turn has begun."""
        self.until = 0


async def joined(CallLock lock, list parts):
    """Join *parts*, all bytes or all text, over several turns if they are long.

    The parts are removed from the list, the last ones first, so that their memory is not freed all
    at once. After a cancel the list holds all of the data again.
    """
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t start, end, size
    cdef Py_UCS4 widest = 0
    cdef bint is_text = bool(parts) and isinstance(parts[0], str)
    if len(parts) == 1:
        return parts.pop()
    for part in parts:
        # In a line of many parts each may be far away from the others: a cache miss, or worse.
        if lock.is_spent():
            await lock.pause()
        total += len(part)
        if is_text:
            widest = max(widest, PyUnicode_MAX_CHAR_VALUE(part))
    if total <= SLICE_BYTES:
        return ("" if is_text else b"").join(parts)
    whole = (
        take_text(PyUnicode_New(total, widest)) if is_text
        else take_bytes(PyBytes_New(NULL, total)))
    end = total
    while parts:
        part = parts.pop()
        size = len(part)
        end -= size
        start = 0
        while start < size:
            if lock.is_spent():
                try:
                    await lock.pause()
                except BaseException:
                    parts += (part, whole[end + size:])
                    raise
            if is_text:
                PyUnicode_CopyCharacters(
                    <PyObject*>whole, end + start, part, start,
                    min(size - start, <Py_ssize_t>SLICE_BYTES))
            else:
                memcpy(
                    PyBytes_AS_STRING(whole) + end + start, PyBytes_AS_STRING(part) + start,
                    min(size - start, <Py_ssize_t>SLICE_BYTES))
            start += SLICE_BYTES
    return whole


def free(list held):
    """Free the bytes that only *held* refers to, over several turns if they are large.

    Freeing 36 MB takes 3 ms: the kernel takes back every page.
    """
    free_some(get_running_loop(), held, 0)


def free_some(loop, list held, Py_ssize_t start):
    """Give back the pages from *start* on, a part in each turn; the last turn frees the object.

    The object is not shortened by realloc(), which may copy what remains and free all of the old
    memory at once. CPython's allocator without a GIL does so below half of the size.
    """
    cdef PyObject *data = PyList_GET_ITEM_borrowed(held, 0)
    if PyBytes_GET_SIZE(<object>data) - start <= FREED_BYTES or Py_REFCNT(data) != 1:
        return
    give_back(PyBytes_AS_STRING(<object>data) + start, FREED_BYTES)
    loop.call_soon(free_some, loop, held, start + FREED_BYTES)


cdef void give_back(char *memory, Py_ssize_t size) noexcept:
    """Have the kernel take back the pages that are within *memory*; their content is lost."""
    cdef size_t page = getpagesize()
    cdef size_t start = (<size_t>memory + page - 1) & ~(page - 1)
    cdef size_t end = (<size_t>memory + size) & ~(page - 1)
    if start < end:
        # A failure, for instance of locked memory, leaves the pages to be freed with the object.
        madvise(<void*>start, end - start, MADV_DONTNEED)
