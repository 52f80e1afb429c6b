"""Ancillary data of messages, as the kernel has them and as Python has them."""

from libc.stdint cimport uint16_t


cdef list received_ancillary(const char *control, size_t size)
cdef bytes joined(object buffers)
cdef bytes packed_ancillary(object items)
cdef bytes segments_of(uint16_t size)
cdef int merged_size(list items) noexcept
