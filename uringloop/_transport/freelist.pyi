"""A free list of bytes objects, by size."""
