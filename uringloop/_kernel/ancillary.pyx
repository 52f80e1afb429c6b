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


cdef list checked_ancillary(object items):
    """Return a copy of what a program sends, None for nothing. Raises as `socket.sendmsg` does."""
    cdef list checked
    if type(items) is list and are_checked(<list>items):
        # A copy, because the program may change its list in a call that comes before the send.
        return (<list>items)[:] if <list>items else None
    checked = [checked_item(item) for item in list_of(items, 2)]
    return checked if checked else None


cdef list list_of(object items, int number):
    """Return what the argument of that number iterates over, in a list of its own."""
    try:
        iterator = iter(items)
    except TypeError:
        raise TypeError(f"sendmsg() argument {number} must be an iterable") from None
    return list(iterator)


cdef bint are_checked(list items) noexcept:
    """Return whether the items are as `checked_item` returns them, which is the usual case."""
    for item in items:
        if (type(item) is not tuple or len(<tuple>item) != 3
                or type((<tuple>item)[2]) is not bytes or not isinstance((<tuple>item)[0], int)
                or not isinstance((<tuple>item)[1], int)):
            return False
        if not (is_small((<tuple>item)[0]) and is_small((<tuple>item)[1])):
            return False
    return True


cdef bint is_small(object number) noexcept:
    """Return whether an int is a C int."""
    cdef int too_large = 0
    cdef long value = PyLong_AsLongAndOverflow(number, &too_large)
    return too_large == 0 and value == <int>value


cdef tuple checked_item(object item):
    cdef int level
    cdef int kind
    cdef Py_buffer view
    # As socket.sendmsg() does, whose texts change between versions of Python.
    PyArg_Parse(item, "(iiy*):[sendmsg() ancillary data items]", &level, &kind, &view)
    try:
        return level, kind, PyBytes_FromStringAndSize(<const char*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


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


cdef tuple segments_of(uint16_t size):
    """Return the item that makes the kernel cut a message into datagrams of *size* bytes."""
    return IPPROTO_UDP, UDP_SEGMENT, PyBytes_FromStringAndSize(<const char*>&size, sizeof(size))


cdef int merged_size(list items) noexcept:
    """Return the size of the datagrams that the kernel has merged into one, or 0 (UDP_GRO)."""
    cdef tuple item
    cdef int size = 0
    for item in items:
        if (item[0] == IPPROTO_UDP and item[1] == UDP_GRO
                and PyBytes_GET_SIZE(<bytes>item[2]) >= <Py_ssize_t>sizeof(size)):
            memcpy(&size, PyBytes_AS_STRING(<bytes>item[2]), sizeof(size))
    return size


cdef size_t packed_size(list items) noexcept:
    """Return how many bytes `pack_ancillary` writes for checked *items*."""
    cdef size_t size = 0
    cdef tuple item
    for item in items:
        size += CMSG_SPACE(PyBytes_GET_SIZE(<bytes>item[2]))
    return size


cdef void pack_ancillary(list items, char *control) noexcept:
    """Write checked *items* as the kernel takes them."""
    cdef tuple item
    cdef cmsghdr *head
    cdef size_t length
    for item in items:
        length = PyBytes_GET_SIZE(<bytes>item[2])
        # The gap behind the data.
        memset(control, 0, CMSG_SPACE(length))
        head = <cmsghdr*>control
        head.cmsg_len = CMSG_LEN(length)
        head.cmsg_level = item[0]
        head.cmsg_type = item[1]
        memcpy(CMSG_DATA(head), PyBytes_AS_STRING(<bytes>item[2]), length)
        control += CMSG_SPACE(length)
