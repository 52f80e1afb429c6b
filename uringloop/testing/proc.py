"""Reads what the kernel tells in /proc.

It calls functions of the module posix. Tests may replace those of `os`, and methods of files, by
functions that refuse to block a running loop, as blockbuster does; they must not refuse what the
loop itself reads.
"""

from __future__ import annotations

import os
import posix

# Bytes of one read(2).
READ_SIZE = 1 << 16


def names(folder: str) -> list[str]:
    """Return the names in *folder*. Raises OSError."""
    return posix.listdir(folder)


def target(path: str) -> str:
    """Return what the symbolic link at *path* names. Raises OSError."""
    return posix.readlink(path)


def read(path: str) -> str:
    """Return what is in the file at *path*. Raises OSError."""
    fd = posix.open(path, os.O_RDONLY | os.O_CLOEXEC)
    parts = []
    try:
        while part := posix.read(fd, READ_SIZE):
            parts.append(part)
    finally:
        posix.close(fd)
    return b"".join(parts).decode(errors="replace")
