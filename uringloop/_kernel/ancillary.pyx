"""Ancillary data of messages, as the kernel has them and as Python has them.

Python has a list of tuples, as `socket.recvmsg` returns it and `socket.sendmsg` takes it: a level,
a type and the data. The kernel has the same one behind the other, aligned, each with a header.
Any thread may use these functions.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongAndOverflow
from libc.stdint cimport uint16_t
from libc.string cimport memcpy, memset

from uringloop._kernel.libc cimport (
    CMSG_DATA,
    CMSG_LEN,
    CMSG_SPACE,
    IPPROTO_UDP,
    UDP_GRO,
    UDP_SEGMENT,
    cmsghdr,
)


cdef extern from "Python.h":
    int PyArg_Parse(object argument, const char *format, ...) except 0


cdef list received_ancillary(const char *control, size_t size):
    """Return what the kernel has written to *control*; what it has cut off is missing."""
    cdef list items = []
    cdef const cmsghdr *head
    cdef size_t start = 0
    cdef size_t length
    while start + CMSG_LEN(0) <= size:
        head = <const cmsghdr*>(control + start)
        if head.cmsg_len < CMSG_LEN(0):
            break
        length = min(<size_t>head.cmsg_len, size - start) - CMSG_LEN(0)
        items.append((
            head.cmsg_level, head.cmsg_type,
            PyBytes_FromStringAndSize(<const char*>CMSG_DATA(<cmsghdr*>head), length)))
        start += CMSG_SPACE(head.cmsg_len - CMSG_LEN(0))
    return items


cdef bytes joined(object buffers):
    """Return the bytes of what a program sends. Raises the exceptions of `socket.sendmsg`."""
    if type(buffers) is list and len(<list>buffers) == 1:
        return bytes_of((<list>buffers)[0])
    return b"".join([bytes_of(buffer) for buffer in list_of(buffers, 1)])


cdef bytes packed_ancillary(object items):
    """Return what a program sends, as the kernel takes it, None for nothing.

    Raises the exceptions of `socket.sendmsg`.
    """
    cdef list parts
    if type(items) is list and len(<list>items) == 1:
        return packed_item((<list>items)[0])
    parts = [packed_item(item) for item in list_of(items, 2)]
    return b"".join(parts) if parts else None


cdef list list_of(object items, int number):
    """Return what the argument of that number iterates over, in a list of its own."""
    try:
        iterator = iter(items)
    except TypeError:
        raise TypeError(f"sendmsg() argument {number} must be an iterable") from None
    return list(iterator)


cdef bytes packed_item(object item):
    cdef int level
    cdef int kind
    cdef Py_buffer view
    # The usual case, 0.1 us faster.
    if (type(item) is tuple and len(<tuple>item) == 3 and type((<tuple>item)[2]) is bytes
            and is_int((<tuple>item)[0], &level) and is_int((<tuple>item)[1], &kind)):
        return packed(
            level, kind, PyBytes_AS_STRING((<tuple>item)[2]),
            PyBytes_GET_SIZE((<tuple>item)[2]))
    # As socket.sendmsg() does, whose texts change between versions of Python.
    PyArg_Parse(item, "(iiy*):[sendmsg() ancillary data items]", &level, &kind, &view)
    try:
        return packed(level, kind, <const char*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef bint is_int(object number, int *value) noexcept:
    """Return whether an int is a C int, which *value* then is."""
    cdef int too_large = 0
    cdef long found
    if type(number) is not int:
        return False
    found = PyLong_AsLongAndOverflow(number, &too_large)
    value[0] = <int>found
    return too_large == 0 and found == value[0]


cdef bytes packed(int level, int kind, const char *data, Py_ssize_t size):
    cdef bytes item = PyBytes_FromStringAndSize(NULL, CMSG_SPACE(size))
    cdef cmsghdr *head = <cmsghdr*>PyBytes_AS_STRING(item)
    # The gap behind the data.
    memset(head, 0, CMSG_SPACE(size))
    head.cmsg_len = CMSG_LEN(size)
    head.cmsg_level = level
    head.cmsg_type = kind
    memcpy(CMSG_DATA(head), data, size)
    return item


cdef bytes bytes_of(object data):
    """Return *data*, or a copy of what is not a bytes object. Raises TypeError or BufferError."""
    cdef Py_buffer view
    if type(data) is bytes:
        return data
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return PyBytes_FromStringAndSize(<const char*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef bytes segments_of(uint16_t size):
    """Return the packed item that makes the kernel cut a message into datagrams of *size* bytes."""
    return packed(IPPROTO_UDP, UDP_SEGMENT, <const char*>&size, sizeof(size))


cdef int merged_size(list items) noexcept:
    """Return the size of the datagrams that the kernel has merged into one, or 0 (UDP_GRO)."""
    cdef tuple item
    cdef int size = 0
    for item in items:
        # Most items are shorter: their level and type need not be compared.
        if (PyBytes_GET_SIZE(<bytes>item[2]) >= <Py_ssize_t>sizeof(size)
                and item[0] == IPPROTO_UDP and item[1] == UDP_GRO):
            memcpy(&size, PyBytes_AS_STRING(<bytes>item[2]), sizeof(size))
    return size
