"""Ancillary data of messages, as the kernel has them and as Python has them."""

from libc.stdint cimport uint16_t


cdef list received_ancillary(const char *control, size_t size)
cdef bytes joined(object buffers)
cdef list checked_ancillary(object items)
cdef tuple segments_of(uint16_t size)
cdef int merged_size(list items) noexcept
cdef size_t packed_size(list items) noexcept
cdef void pack_ancillary(list items, char *control) noexcept
