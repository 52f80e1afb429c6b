"""Which faults a loop for tests has, and how often, decided by a seed."""

from __future__ import annotations

import random

from uringloop.testing import Faults

# What a correct program does not notice.
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
    "missed_end",
    "stall",
    "slow_disk",
    "slow_call",
)
HARMFUL = ("reset", "no_memory", "no_files")
# What ends calls of files.
DISK = ("no_space", "bad_disk")


def choose(rng: random.Random) -> Faults:
    """Return the probability of each kind of fault; a seed has only some kinds."""
    chances = {}
    for kind in HARMLESS:
        if rng.random() < 0.5:
            chances[kind] = 1 / rng.choice((2, 3, 8, 32))
    if rng.random() < 0.4:
        for kind in HARMFUL + DISK:
            if rng.random() < 0.5:
                chances[kind] = 1 / rng.choice((8, 64, 256))
    return Faults(**chances)


def is_harmful(faults: Faults) -> bool:
    """Return whether connections may end."""
    return any(faults.chance(kind) for kind in HARMFUL)
