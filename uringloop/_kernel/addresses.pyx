"""Addresses of IPv4 and IPv6, as the kernel has them and as Python has them.

A connection keeps the kernel's structure, and makes Python's tuple when the program asks for it.
The structure takes 28 bytes instead of some 180, and no objects. Nothing here uses a socket.

Each loop caches recent senders of datagrams in both forms: another datagram of a sender needs no
new tuple, and a reply to it no parsing. Only the loop's thread uses the cache; any thread may use
the rest.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport uint32_t, uintptr_t
from libc.string cimport memcmp, memcpy, memset

from uringloop._kernel.libc cimport (
    AF_INET,
    AF_INET6,
    inet_ntop,
    ntohl,
    ntohs,
    sockaddr_in,
    sockaddr_in6,
)


@cython.final
cdef class LocalEnd:
    """The local end of accepted connections: family, type, protocol and address.

    Connections with the same local address share this object.
    """

    def __cinit__(self, family, type, proto):
        self.family = family
        self.type = type
        self.proto = proto
        memset(&self.name, 0, sizeof(self.name))

    cdef bint is_named(self, const sockaddr_in6 *name, unsigned int size) noexcept:
        return size == self.size and memcmp(name, &self.name, size) == 0

    cdef LocalEnd with_name(self, const sockaddr_in6 *name, unsigned int size):
        cdef LocalEnd other = LocalEnd(self.family, self.type, self.proto)
        memcpy(&other.name, name, size)
        other.size = size
        return other

    cdef object sockname(self):
        """Return what socket.getsockname() returns; None if getsockname(2) failed."""
        if self.address is None:
            self.address = python_address(&self.name)
        return self.address


# ── recent senders ───────────────────────────────────────────────────────────────────────────


@cython.final
cdef class SenderCache:

    def __dealloc__(self):
        cdef int index
        if self.known != NULL:
            for index in range(KNOWN_MAX):
                Py_XDECREF(self.known.entries[index].address)
            PyMem_Free(self.known)

    cdef object address_of(self, const sockaddr_in6 *name, unsigned int size):
        """Return Python's address for *name*: the same object as before while it is cached."""
        cdef Known *entry
        cdef object address
        if self.known == NULL:
            self.known = <KnownSenders*>PyMem_Calloc(1, sizeof(KnownSenders))
            if self.known == NULL:
                raise MemoryError
        entry = &self.known.entries[place_of_name(name)]
        if size == entry.size and memcmp(name, &entry.name, size) == 0:
            return <object>entry.address
        address = python_address(name)
        if size <= sizeof(entry.name):
            Py_INCREF(address)
            Py_XDECREF(entry.address)
            entry.address = <PyObject*>address
            entry.size = size
            memcpy(&entry.name, name, size)
            self.known.places[place_of_object(address)] = entry - self.known.entries
        return address

    cdef const sockaddr_in6 *name_of(self, object address, unsigned int *size) noexcept:
        """Return the kernel's form of a tuple of `address_of`; NULL if it is not cached.

        A tuple is immutable, and while the cache refers to it no other object has its memory
        address.
        """
        cdef Known *entry
        if self.known == NULL:
            return NULL
        entry = &self.known.entries[self.known.places[place_of_object(address)]]
        if entry.address != <PyObject*>address:
            return NULL
        size[0] = entry.size
        return &entry.name


cdef unsigned int place_of_name(const sockaddr_in6 *name) noexcept:
    """Return the entry for a name; consecutive ports, and consecutive hosts, do not collide."""
    cdef const uint32_t *words = <const uint32_t*>name
    cdef uint32_t mixed = ntohs(name.sin6_port)
    if name.sin6_family == AF_INET:
        mixed += ntohl(words[1]) * 31
    else:
        mixed += ntohl(words[2] ^ words[3] ^ words[4] ^ words[5]) * 31
    return (mixed ^ (mixed >> 10)) & (KNOWN_MAX - 1)


cdef unsigned int place_of_object(object address) noexcept:
    # The allocator aligns tuples to 16 bytes.
    cdef uintptr_t where = <uintptr_t><PyObject*>address >> 4
    return (where ^ (where >> 10)) & (KNOWN_MAX - 1)


# ── Python's addresses ───────────────────────────────────────────────────────────────────────


cdef object python_address(const sockaddr_in6 *name):
    """Return the address tuple of the socket module; None for any other family, and for zeroes."""
    cdef char text[64]
    if name.sin6_family == AF_INET:
        return four_numbers(<const sockaddr_in*>name), ntohs(name.sin6_port)
    if name.sin6_family != AF_INET6:
        return None
    inet_ntop(AF_INET6, &name.sin6_addr, text, sizeof(text))
    return (
        text.decode("ascii"), ntohs(name.sin6_port), ntohl(name.sin6_flowinfo),
        name.sin6_scope_id)


cdef str four_numbers(const sockaddr_in *name):
    """Format an IPv4 address. inet_ntop(3) uses printf(3), and takes four times as long."""
    cdef const unsigned char *numbers = <const unsigned char*>&name.sin_addr
    cdef char text[16]
    cdef int length = 0
    cdef int index
    cdef unsigned char number
    for index in range(4):
        number = numbers[index]
        if number >= 100:
            text[length] = 48 + number // 100
            length += 1
        if number >= 10:
            text[length] = 48 + number // 10 % 10
            length += 1
        text[length] = 48 + number % 10
        # The last dot is cut off.
        text[length + 1] = 46
        length += 2
    return text[:length - 1].decode("ascii")
