"""A free list of bytes objects, by size.

Python's allocator is fast up to 512 bytes, and malloc(3) up to about 1,000; for larger blocks it
searches for free memory, and joins freed blocks. Servers receive messages of few sizes, so a bytes
object of the same size is used again. (Echo of 1,000 bytes and of 10 KB, 50 clients: 2 to 4 % less
processor time.) The list has a shelf for each of several sizes. `offer` puts an object on a shelf
only if the caller holds the last reference to it, so no program sees the bytes change.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from uringloop._cpython.pyapi cimport PyBytes_New, Py_DECREF_owned, Py_REFCNT, forget_hash
from uringloop._cpython.stdlib cimport KEPT_BYTES, uses


cdef enum:
    # 16 sizes; for each as many objects as a batch of completions needs, but at most 256 KiB.
    SHELVES = 16
    SHELF_ROOM = 24
    SHELF_BYTES = 256 * 1024


cdef struct Shelf:
    Py_ssize_t size              # of each object on the shelf
    int count
    PyObject *items[SHELF_ROOM]  # owned


# One for the process, changed under the GIL only.
cdef Shelf shelves[SHELVES]


cdef inline Shelf *shelf_of(Py_ssize_t size) noexcept:
    return &shelves[(size ^ size >> 4) & (SHELVES - 1)]


cdef PyObject *from_shelf(Py_ssize_t size) except NULL:
    cdef Shelf *shelf = shelf_of(size)
    if size != shelf.size or not shelf.count:
        return PyBytes_New(NULL, size)
    shelf.count -= 1
    forget_hash(shelf.items[shelf.count])
    return shelf.items[shelf.count]


cdef void to_shelf(bytes data, Py_ssize_t size) noexcept:
    cdef Shelf *shelf
    if Py_REFCNT(<PyObject*>data) != 1 or not uses(KEPT_BYTES):
        return
    shelf = shelf_of(size)
    if shelf.size != size:
        # Another size: the newest one gets the shelf.
        while shelf.count:
            shelf.count -= 1
            Py_DECREF_owned(shelf.items[shelf.count])
        shelf.size = size
    if shelf.count < SHELF_ROOM and (shelf.count + 1) * size <= SHELF_BYTES:
        Py_INCREF(data)
        shelf.items[shelf.count] = <PyObject*>data
        shelf.count += 1
