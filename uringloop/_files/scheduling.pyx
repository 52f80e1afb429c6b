"""Whose turn it is: the order of a file's calls, and the time of files in the loop's turn.

A call of a file that does not have to wait does not suspend its task, so that a task which makes
many of them would keep the loop. Each call therefore asks here first, and what takes long within a
call asks again and again. On a loop of ours the time is that of the turn, and is not over while
nobody waits; another loop does not tell its turns, and a turn is let pass whenever it is over.
"""

from asyncio import get_running_loop, sleep
from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from uringloop._cpython.pyapi cimport (
    Py_REFCNT,
    PyBytes_New,
    PyList_GET_ITEM_borrowed,
    PyUnicode_CopyCharacters,
    PyUnicode_MAX_CHAR_VALUE,
    PyUnicode_New,
    take_bytes,
    take_text,
)
from uringloop._files.memory cimport shortened
from uringloop._files.operation cimport OTHERS_TURN_NS, SLICE_BYTES, ring_loop
from uringloop._files.operation cimport is_spent as is_turn_spent
from uringloop._kernel.clock cimport uring_clock_ns
from uringloop._turn.turn cimport LoopCore


# Bytes that are given back to the system in a turn: some 100 us.
FREED_BYTES = 1024 * 1024

cdef Py_ssize_t FREED = FREED_BYTES


cdef class Turns:
    """Let calls have the file in the order in which they were begun: a lock that is no loop's."""

    def start(self):
        """Have the file if it is free and there is time; otherwise `take` is to be awaited."""
        if self.taken or self.is_spent():
            return False
        self.taken = True
        return True

    async def take(self):
        """Wait until nobody before needs the file, and until the turn has time for files."""
        await self.wait()
        try:
            if self.is_spent():
                await self.pause()
        except BaseException:
            self.give()
            raise

    async def wait(self):
        """Wait until nobody before needs the file; do not suspend if nobody does."""
        if not self.taken:
            self.taken = True
            return
        waiter = get_running_loop().create_future()
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                # It had become our turn already.
                self.give()
            raise

    def give(self):
        """Let the next one have the file."""
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)
                return
        self.taken = False

    cdef bint is_spent(self) except -1:
        """Whether files have had their time, and others wait for theirs."""
        cdef LoopCore loop = ring_loop()
        cdef int64_t now
        if loop is not None:
            return is_turn_spent(loop)
        now = uring_clock_ns()
        if self.until == 0:
            self.until = now + OTHERS_TURN_NS
        return now >= self.until

    def spent(self):
        return self.is_spent()

    async def pause(self):
        """Let the loop go round once."""
        await sleep(0)
        self.until = 0


async def joined(Turns turns, list parts):
    """Return *parts*, all bytes or all text, as one, in as many turns as that takes.

    They are taken from the list, and the last ones first, so that their memory is not freed all at
    once. If this is cancelled the list has them all again.
    """
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t start, end, size
    cdef Py_UCS4 widest = 0
    cdef bint is_text = bool(parts) and isinstance(parts[0], str)
    if len(parts) == 1:
        return parts.pop()
    for part in parts:
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
        for start in range(0, size, SLICE_BYTES):
            if turns.is_spent():
                try:
                    await turns.pause()
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
    return whole


def free(list held):
    """Free the bytes that are alone in *held*, in later turns if they are large.

    To give back the memory of 36 MB takes 3 ms.
    """
    if Py_REFCNT(PyList_GET_ITEM_borrowed(held, 0)) == 1:
        free_some(get_running_loop(), held)


def free_some(loop, list held):
    cdef PyObject *data = PyList_GET_ITEM_borrowed(held, 0)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(<object>data) - FREED
    if size <= 0:
        return
    Py_INCREF(<object>data)
    held[0] = None
    held[0] = shortened(data, size)
    loop.call_soon(free_some, loop, held)
