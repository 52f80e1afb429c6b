"""Addresses of IPv4 and IPv6, as the kernel has them and as Python has them.

The kernel's form is kept in place of Python's where most programs never ask: it is 28 bytes
instead of some 180, and costs no objects. Nothing here touches a socket.
"""

cimport cython
from libc.string cimport memcmp, memcpy, memset

from uringloop._native.uring cimport (
    AF_INET,
    AF_INET6,
    inet_ntop,
    ntohl,
    ntohs,
    sockaddr_in,
    sockaddr_in6,
)


@cython.final
cdef class NearEnd:
    """What the connections of a listening socket have in common: their kind and their name.

    Accepted by the same socket most of them have the same name, and share this object.
    """

    def __cinit__(self, family, type, proto):
        self.family = family
        self.type = type
        self.proto = proto
        memset(&self.name, 0, sizeof(self.name))

    cdef bint is_named(self, const sockaddr_in6 *name, unsigned int size) noexcept:
        return size == self.size and memcmp(name, &self.name, size) == 0

    cdef NearEnd renamed(self, const sockaddr_in6 *name, unsigned int size):
        cdef NearEnd other = NearEnd(self.family, self.type, self.proto)
        memcpy(&other.name, name, size)
        other.size = size
        return other

    cdef object sockname(self):
        """Return what getsockname would; None if it failed."""
        if self.address is None:
            self.address = python_address(&self.name)
        return self.address


cdef object python_address(const sockaddr_in6 *name):
    """Return what the socket module makes of a name; None if there is none."""
    cdef const sockaddr_in *four = <const sockaddr_in*>name
    cdef char text[64]
    if name.sin6_family == AF_INET:
        inet_ntop(AF_INET, &four.sin_addr, text, sizeof(text))
        return text.decode("ascii"), ntohs(four.sin_port)
    if name.sin6_family != AF_INET6:
        return None
    inet_ntop(AF_INET6, &name.sin6_addr, text, sizeof(text))
    return (
        text.decode("ascii"), ntohs(name.sin6_port), ntohl(name.sin6_flowinfo),
        name.sin6_scope_id)
