"""Runs many seeds of each kind, and prints each difference with the smallest program that has it.

nox -s order -- --seeds 2000, or: PYTHONPATH=tests python -m order --seeds 2000 --kinds "tcp server"
"""

from __future__ import annotations

import argparse
import collections
import logging
import time

from order.differences import LOOPS, difference, differs, smallest
from order.programs import ACTIONS, CROWDED, Program, generate, generate_crowd

CROWD_OF = "crowd of "
ALL = [*ACTIONS, *(CROWD_OF + kind for kind in CROWDED)]
RINGS = ["io_uring", "soft"]


def program_of(kind: str, seed: int) -> Program:
    single = kind.removeprefix(CROWD_OF)
    return generate(kind, seed) if single == kind else generate_crowd(single, seed)


def show(kind: str, seed: int, loop: str) -> None:
    """Print a difference, with the smallest program that has it."""
    small = smallest(program_of(kind, seed), loop)
    print(f"── {kind}, seed {seed}, {loop}\n{small}\n{difference(small, loop)}\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200, help="of each kind (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (%(default)s)")
    parser.add_argument("--kinds", nargs="*", default=ALL, choices=ALL, metavar="KIND")
    parser.add_argument("--loops", nargs="*", default=RINGS, choices=list(LOOPS), metavar="LOOP")
    parser.add_argument("--shown", type=int, default=3, help="of each kind and loop (%(default)s)")
    options = parser.parse_args()
    # asyncio warns where eof_received() cannot keep a connection open.
    logging.disable()
    began = time.monotonic()
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for kind in options.kinds:
        for seed in range(options.first, options.first + options.seeds):
            for loop in options.loops:
                if differs(program_of(kind, seed), loop):
                    counts[kind, loop] += 1
                    if counts[kind, loop] <= options.shown:
                        show(kind, seed, loop)
    print(f"{options.seeds} seeds of {len(options.kinds)} kinds, {time.monotonic() - began:.0f} s")
    for (kind, loop), count in counts.items():
        print(f"{kind} on {loop}: {count} differ")
    return 1 if counts else 0


if __name__ == "__main__":
    raise SystemExit(main())
