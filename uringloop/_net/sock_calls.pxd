"""The sock_* methods."""


cdef int family_of(object sock) except -1


cdef bint is_numeric(int family, object address) except -1
