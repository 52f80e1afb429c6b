"""Addresses of IPv4 and IPv6, as the kernel has them and as Python has them."""

cimport cython

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


cdef object known_address(const sockaddr_in6 *name, unsigned int size)


cdef const sockaddr_in6 *known_name(object address, unsigned int *size) noexcept
