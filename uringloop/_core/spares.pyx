"""Bytes objects that nobody holds any more, for the next messages of their size.

Python's own allocator is quick up to 512 bytes and malloc to about 1,000; beyond that it looks for
room, and joins what is given back with its neighbours. A server gets messages of few sizes, one
after the other: for those the object is simply used again. (Echo of 1,000 bytes, 50 clients: 3 to
4 % less processor time.) An object is offered by who may hold the last reference; as long as it is
on a shelf, the shelf holds the only one, so that nobody can see it change.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.string cimport memcpy

from uringloop._core.pyapi cimport Py_DECREF_owned, Py_REFCNT, forget_hash, take_bytes


# Smaller ones come from Python's allocator; of larger ones there are few at a time.
SPARE_SIZE_MIN = 480
SPARE_SIZE_MAX = 4096

cdef enum:
    # 16 sizes, and of each as many as a batch of completions brings: 1.5 MiB at most.
    SHELVES = 16
    SHELF_ROOM = 24


cdef struct Shelf:
    Py_ssize_t size             # of all that are here
    int count
    PyObject *items[SHELF_ROOM]       # owned


# Of the process; changed under the GIL only.
cdef Shelf shelves[SHELVES]
cdef Py_ssize_t SIZE_MIN = SPARE_SIZE_MIN
cdef Py_ssize_t SIZE_MAX = SPARE_SIZE_MAX


cdef inline Shelf *shelf_of(Py_ssize_t size) noexcept:
    return &shelves[(size ^ size >> 4) & (SHELVES - 1)]


cdef bytes bytes_of(const char *memory, Py_ssize_t size):
    """Return *size* bytes of *memory* as an object."""
    cdef Shelf *shelf = shelf_of(size)
    cdef PyObject *made
    if size != shelf.size or not shelf.count:
        return PyBytes_FromStringAndSize(memory, size)
    shelf.count -= 1
    made = shelf.items[shelf.count]
    forget_hash(made)
    memcpy(PyBytes_AS_STRING(<bytes>made), memory, size)
    return take_bytes(made)


cdef void offer(bytes data) noexcept:
    """Keep *data* for the next message of its size, if only the caller holds it."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Shelf *shelf
    if not SIZE_MIN <= size <= SIZE_MAX or Py_REFCNT(<PyObject*>data) != 1:
        return
    shelf = shelf_of(size)
    if shelf.size != size:
        # Sizes change: the new one has the shelf.
        while shelf.count:
            shelf.count -= 1
            Py_DECREF_owned(shelf.items[shelf.count])
        shelf.size = size
    if shelf.count < SHELF_ROOM:
        Py_INCREF(data)
        shelf.items[shelf.count] = <PyObject*>data
        shelf.count += 1
