"""A simulated kernel: which faults happen, and how often, decided by a seed.

Only a build with URINGLOOP_CFLAGS=-DURINGLOOP_SIMULATOR contains it; `make simulate` makes one.
"""

from __future__ import annotations

import ctypes
import random

from uringloop._cpython.loading import FILE

# The kinds of _softring/faults.h, in the same order.
HARMLESS = (
    "late",
    "short",
    "starved",
    "ended",
    "overflow",
    "interrupted",
    "busy",
    "overtaken",
    "reordered",
    "jump",
)
HARMFUL = ("reset", "no_memory", "no_files")
KINDS = HARMLESS + HARMFUL


class Simulated(ctypes.Structure):
    """The library's `soft_simulated`."""

    _fields_ = (
        ("state", ctypes.c_uint64),
        ("one_in", ctypes.c_uint32 * len(KINDS)),
        ("happened", ctypes.c_uint32 * len(KINDS)),
        ("clock_ns", ctypes.c_int64),
        ("jumps", ctypes.c_uint32),
    )


def simulation() -> Simulated | None:
    """Return the simulation of this process; None if the library was built without it."""
    try:
        return Simulated.in_dll(ctypes.CDLL(FILE), "soft_simulation")
    except ValueError:
        return None


def choose(rng: random.Random) -> dict[str, int]:
    """Return the rate of each kind of fault as one in so many; a seed has only some kinds."""
    rates = {}
    for kind in HARMLESS:
        if rng.random() < 0.5:
            rates[kind] = rng.choice((2, 3, 8, 32))
    if rng.random() < 0.4:
        for kind in HARMFUL:
            if rng.random() < 0.5:
                rates[kind] = rng.choice((8, 64, 256))
    return rates


def begin(simulated: Simulated, seed: int, rates: dict[str, int]) -> None:
    """Start the faults."""
    simulated.state = seed
    for index, kind in enumerate(KINDS):
        simulated.one_in[index] = rates.get(kind, 0)
    simulated.jumps = 1


def end(simulated: Simulated) -> None:
    """Stop the faults; the simulated clock stays ahead."""
    begin(simulated, 0, {})
    simulated.jumps = 0
