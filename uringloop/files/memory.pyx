"""The memory that a file is read into or written from: bytes, or views of the caller's buffers."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject

from uringloop._cpython.pyapi cimport PyBytes_New, cut_bytes, take_bytes
from uringloop._kernel.libc cimport iovec


cdef const char *start_of(object data) noexcept:
    """Return the address of *data*, bytes or a memoryview."""
    return PyBytes_AS_STRING(data) if type(data) is bytes else view_data(data)


cdef char *view_data(object view) noexcept:
    return <char*>PyMemoryView_GET_BUFFER(view).buf


def room_in(buffer):
    """Return a writable view of the bytes of *buffer*."""
    view = memoryview(buffer)
    if view.readonly:
        raise TypeError(
            "readinto() argument must be read-write bytes-like object, "
            f"not {type(buffer).__name__}")
    return view.cast("B")


def bytes_of(data):
    """Return *data* as bytes or a memoryview of bytes: its length is its size."""
    if type(data) is bytes:
        return data
    if isinstance(data, str):
        raise TypeError("a bytes-like object is required, not 'str'")
    return memoryview(data).cast("B")


cdef bytes shortened(PyObject *data, Py_ssize_t size):
    """Return the first *size* bytes of *data*; steals the reference to *data*."""
    if size != PyBytes_GET_SIZE(<object>data):
        cut_bytes(&data, size)
    return take_bytes(data)


cdef bytes vectors_of(list views, Py_ssize_t skip):
    """Return an array of iovec for *views* without their first *skip* bytes."""
    cdef bytes vectors = take_bytes(PyBytes_New(NULL, len(views) * sizeof(iovec)))
    cdef iovec *vector = <iovec*>PyBytes_AS_STRING(vectors)
    cdef Py_ssize_t count = 0
    for view in views:
        size = len(view)
        if size <= skip:
            skip -= size
            continue
        vector[count].iov_base = (
            PyBytes_AS_STRING(view) if type(view) is bytes else view_data(view)) + skip
        vector[count].iov_len = size - skip
        skip = 0
        count += 1
    return vectors[:count * sizeof(iovec)]
