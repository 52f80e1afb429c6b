"""The seam for protocols that take received bytes in C, without a call of data_received().

A class outside the core derives from CompiledProtocol and overrides all three methods. Transports,
with and without TLS, call them on the thread of the loop. In debug mode a transport without TLS
calls data_received() instead, and measures it. What the methods raise closes the transport, as
exceptions of data_received() do. The memory belongs to the transport, which uses it again when
`receive` has returned.
"""


cdef class CompiledProtocol:

    cdef bint replaces_data_received(self) except -1:
        """Return whether `receive` and `receive_object` may be called for this object.

        A derived class may have a data_received() of its own, which must be called.
        """
        return False

    cdef bint receive(self, const char *memory, Py_ssize_t size) except -1:
        """Take *size* bytes; return False if data_received() must be called for them."""
        return False

    cdef bint receive_object(self, bytes data) except -1:
        """Like `receive`, for an object, of which the protocol may keep a reference."""
        return False


cdef bint is_compiled(object protocol) except -1:
    """Return whether the transport may call `receive` in place of data_received()."""
    return (isinstance(protocol, CompiledProtocol)
            and (<CompiledProtocol>protocol).replaces_data_received())
