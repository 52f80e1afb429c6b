"""The allocator of a measured process, in the state that it has in a long-running process."""

from __future__ import annotations

# Larger than any loop's receive buffer, and smaller than the trim threshold that its free() sets.
_LARGE_BLOCK = 4 * 2**20


def warm() -> None:
    """Free one large block, as every program that runs for a while does.

    glibc calls mmap() for each block of 128 KiB or more until the first such block is freed: from
    then on blocks of its size, up to 32 MiB, come from the heap (mallopt(3), M_MMAP_THRESHOLD). A
    receive into 256 KiB never causes that, because its block shrinks before it is freed. Loops with
    such receives cost five times as much before as after. In a small server, chance decides which
    of the two is measured, for example whether a module was compiled when it was imported.
    """
    bytearray(_LARGE_BLOCK)
