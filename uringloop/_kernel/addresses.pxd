"""Addresses of IPv4 and IPv6, as the kernel has them and as Python has them."""

cimport cython
from cpython.object cimport PyObject

from uringloop._kernel.libc cimport sockaddr_in6


@cython.final
cdef class LocalEnd:
    cdef object family          # of the socket, as socket.socket takes them
    cdef object type
    cdef object proto
    cdef sockaddr_in6 name      # the local address; or a sockaddr_in
    cdef unsigned int size      # of the name; 0 for none
    cdef object address         # Python's form of the name; None before the first need

    cdef bint is_named(self, const sockaddr_in6 *name, unsigned int size) noexcept
    cdef LocalEnd with_name(self, const sockaddr_in6 *name, unsigned int size)
    cdef object sockname(self)


cdef object python_address(const sockaddr_in6 *name)


cdef enum:
    # Senders in the cache, a power of two. They take 40 KiB, but most programs touch only a part.
    KNOWN_MAX = 1024


cdef struct Known:
    sockaddr_in6 name
    unsigned int size
    PyObject *address       # owned; NULL while the entry is empty


cdef struct KnownSenders:
    Known entries[KNOWN_MAX]
    # The entry of a tuple, by a hash of the tuple's memory address; may be another tuple's.
    unsigned short places[KNOWN_MAX]


@cython.final
cdef class SenderCache:
    cdef KnownSenders *known    # NULL before the first sender; freed by the destructor

    cdef object address_of(self, const sockaddr_in6 *name, unsigned int size)
    cdef const sockaddr_in6 *name_of(self, object address, unsigned int *size) noexcept
