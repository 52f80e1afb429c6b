"""Tells whether the interpreter runs with a GIL: ordinary builds always do, free-threaded ones may.

A free-threaded build starts without the GIL. `-X gil=1`, `PYTHON_GIL=1` or the import of a compiled
module that does not declare support for free threads switches it on for the process.
"""

from __future__ import annotations

import sys


def free_threaded() -> bool:
    """Return whether the interpreter was built to run without a GIL."""
    # sysconfig would read a file, which another user may not be allowed to read.
    return "t" in sys.abiflags


def enabled() -> bool:
    """Return whether threads of this process run Python code one at a time."""
    # The function is new in Python 3.13, which has the first free-threaded builds.
    state = getattr(sys, "_is_gil_enabled", None)
    return state is None or bool(state())


def state() -> str:
    """Return the state of the GIL in words; a build that cannot run without it says `on` only."""
    word = "on" if enabled() else "off"
    return f"{word} (free-threaded build)" if free_threaded() else word
