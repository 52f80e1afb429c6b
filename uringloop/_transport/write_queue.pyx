"""Bytes that wait to be sent: a circular queue of immutable bytes objects.

The queue owns a reference to every item until `consume` has passed its last byte. So an operation
in flight may point into the items; the transport calls `clear` only when no send is in flight.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memset

from uringloop._cpython.freelist cimport FreeList
from uringloop._kernel.atomics cimport count_size
from uringloop._kernel.libc cimport msghdr

from uringloop._cpython.stdlib import WRITE_TAKES_BYTES_LIKE


cdef enum:
    # The room of the first allocation. Most connections write once in a turn, for which they need
    # no allocation; this saves 80 bytes per connection.
    CAPACITY_OF_MANY = 4
    # Bytes of one send: a longer one would report its progress, and release its buffers, too late.
    SEND_MAX = 1024 * 1024
# asyncio's wording.
BYTES_LIKE = (
    "a bytes-like object" if WRITE_TAKES_BYTES_LIKE else "a bytes, bytearray, or memoryview object")


@cython.final
cdef class WriteQueue:

    def __cinit__(self):
        self.items = self.only
        self.capacity = 1

    def __dealloc__(self):
        self.clear()
        if self.items != self.only:
            PyMem_Free(self.items)
        PyMem_Free(self.gathered)

    cdef int push(self, bytes data) except -1:
        if self.count == self.capacity:
            self._grow()
        Py_INCREF(data)
        self.items[(self.first + self.count) & (self.capacity - 1)] = <PyObject*>data
        self.count += 1
        count_size(&self.size, PyBytes_GET_SIZE(data))
        return 0

    cdef int _grow(self) except -1:
        cdef Py_ssize_t capacity = max(2 * self.capacity, CAPACITY_OF_MANY)
        cdef Py_ssize_t index
        cdef PyObject **items = <PyObject**>PyMem_Malloc(capacity * sizeof(PyObject*))
        if items == NULL:
            raise MemoryError
        for index in range(self.count):
            items[index] = self.items[(self.first + index) & (self.capacity - 1)]
        if self.items != self.only:
            PyMem_Free(self.items)
        self.items = items
        self.capacity = capacity
        self.first = 0
        return 0

    cdef int prepare(self) except -1:
        """Point `data`, or `gathered` for several items, to the bytes of the next send."""
        cdef Py_ssize_t index, size
        cdef Py_ssize_t total = 0
        cdef Py_ssize_t offset = self.offset
        cdef PyObject *item = self.items[self.first]
        size = PyBytes_GET_SIZE(<bytes>item) - offset
        if self.count == 1 or size >= SEND_MAX:
            self.data = PyBytes_AS_STRING(<bytes>item) + offset
            self.data_size = min(size, SEND_MAX)
            self.single = True
            return 0
        if self.gathered == NULL:
            self.gathered = <Gathered*>PyMem_Malloc(sizeof(Gathered))
            if self.gathered == NULL:
                raise MemoryError
            memset(&self.gathered.message, 0, sizeof(msghdr))
            self.gathered.message.msg_iov = self.gathered.vector
        index = 0
        while index < self.count and index < VECTOR_MAX and total < SEND_MAX:
            item = self.items[(self.first + index) & (self.capacity - 1)]
            size = min(PyBytes_GET_SIZE(<bytes>item) - offset, SEND_MAX - total)
            self.gathered.vector[index].iov_base = PyBytes_AS_STRING(<bytes>item) + offset
            self.gathered.vector[index].iov_len = size
            total += size
            offset = 0
            index += 1
        self.gathered.message.msg_iovlen = index
        self.data_size = total
        self.single = False
        return 0

    cdef void show(self, const void *data, Py_ssize_t size) noexcept:
        """Point `data` to memory of the caller, for a send that has ended when it returns."""
        self.data = data
        self.data_size = size
        self.single = True

    cdef void consume(self, Py_ssize_t sent, FreeList kept) noexcept:
        """Drop the first *sent* bytes; offer *kept* every item that is sent to its end."""
        cdef PyObject *item
        cdef Py_ssize_t left
        count_size(&self.size, -sent)
        while self.count:
            item = self.items[self.first]
            left = PyBytes_GET_SIZE(<bytes>item) - self.offset
            if sent < left:
                self.offset += sent
                break
            sent -= left
            self.offset = 0
            self.first = (self.first + 1) & (self.capacity - 1)
            self.count -= 1
            if kept is not None:
                kept.offer(<bytes>item)
            Py_DECREF(<object>item)

    cdef void clear(self) noexcept:
        """Drop everything. No operation may refer to the items."""
        self.consume(self.size, None)


cdef bytes as_bytes(object data):
    """Return *data* as bytes; of a memoryview with gaps, the bytes between the gaps.

    Raises asyncio's TypeError for another type.
    """
    if type(data) is bytes:
        return data
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"data argument must be {BYTES_LIKE}, not {type(data).__name__!r}")
    return bytes(data)
