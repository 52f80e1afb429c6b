"""Runs the model under many seeds: nox -s simulate -- --seeds 10000

A seed decides what the program does, which faults the simulated kernel has, and where. A seed that
fails is printed with the command that runs it again.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import concurrent.futures.process
import contextlib
import faulthandler
import gc
import logging
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.leaks import open_fds

from simulation import faults
from simulation.model import CROWDS, FORMS, KINDS, LAST, SERVED, SIZES, Difference, Model
from simulation.streams import READS

# Time limit of a seed in seconds; most take milliseconds. A seed that hangs prints its traceback.
PATIENCE_S = 60
STEPS_MAX = 60
CHUNK = 50


async def act(model: Model, rng: random.Random) -> None:
    """Do a random step, mostly on an existing connection."""
    usable = model.ends(lambda end: end.usable)
    what = rng.random()
    if not usable or what < 0.08:
        if rng.random() < 0.1:
            await model.crowd(rng.choice(SERVED), rng.choice(CROWDS))
        else:
            await model.connect(rng.choice(KINDS))
        return
    end = rng.choice(usable)
    if what < 0.43:
        await model.write(end, rng.choice(SIZES), rng.choice(FORMS))
        if rng.random() < 0.05:
            await model.write_eof(end)
    elif what < 0.49:
        await model.tls()
    elif what < 0.5:
        await model.start_tls(end)
    elif what < 0.52:
        await model.last_words(rng.randrange(10), rng.choice(LAST), tcp=rng.random() < 0.5)
    elif what < 0.6:
        await model.pause(end)
    elif what < 0.72:
        await model.resume(end)
    elif what < 0.74:
        await model.write_eof(end)
    elif what < 0.75:
        await model.hand_over(end, settled=rng.random() < 0.5)
    elif what < 0.78:
        await model.close(end)
    elif what < 0.79:
        await model.abort(end)
    elif what < 0.82:
        await model.limit(end, rng.choice((0, 1000, 100_000)))
    else:
        await act_aside(model, rng, what)


async def act_aside(model: Model, rng: random.Random, what: float) -> None:
    """Do a step that needs no connection."""
    if what < 0.85:
        await model.soon(rng.randrange(1, 20))
    elif what < 0.88:
        await model.timers(rng.randrange(1, 10))
    elif what < 0.89:
        await model.thread(rng.randrange(1, 5))
    elif what < 0.895:
        if rng.random() < 0.5:
            await model.descriptors(rng.randrange(1, 6), rng.randrange(4))
        else:
            await model.limited(rng.randrange(1, 4), rng.randrange(1, 12))
    elif what < 0.9:
        await model.calls(rng.randrange(1, 20), rng.randrange(4))
    elif what < 0.93:
        if rng.random() < 0.5:
            await model.sockets(rng.choice(SIZES), rng.randrange(4))
        else:
            await model.streams(rng.choice(tuple(READS)), compiled=rng.random() < 0.8)
    elif what < 0.94:
        await model.datagrams(rng.randrange(1, 10), with_ancillary=rng.random() < 0.5)
    elif what < 0.95:
        await model.fifo(rng.randrange(4), joined=rng.random() < 0.3)
    elif what < 0.96:
        await model.terminal(rng.randrange(4))
    elif what < 0.965:
        await model.write_atomic(rng.choice(SIZES))
    elif what < 0.985:
        await model.file_write(rng.randrange(100_000), rng.choice(SIZES), sync=rng.random() < 0.3)
    else:
        await model.file_read(rng.randrange(100_000), rng.choice(SIZES))


def play(model: Model, rng: random.Random) -> None:
    """Do steps, several of them in each run of the loop; then end everything."""

    async def some(count: int) -> None:
        for _ in range(count):
            await act(model, rng)
            await model.turns(rng.choice((0, 0, 1, 2, 5)))

    for _ in range(rng.randrange(1, STEPS_MAX // 4)):
        model.run(some(rng.randrange(1, 8)))
    model.run(model.finish())


def run_seed(seed: int, folder: Path) -> dict[str, int]:
    """Run a seed and return how often each fault has happened; raise Difference on a failure."""
    rng = random.Random(seed)
    chosen = faults.choose(rng)
    before = open_fds()
    model = Model(seed, folder, faults=chosen)
    model.note("faults", chosen)
    try:
        play(model, rng)
        happened = model.end_faults()
        model.leave()
        left = open_fds() - before
        if left:
            raise Difference(f"descriptors left open: {sorted(left)}")
    except BaseException as exc:
        exc.add_note("\n".join(model.log[-60:]))
        with contextlib.suppress(Exception):
            model.loop.close()
        raise
    return happened


@contextlib.contextmanager
def patience() -> Iterator[None]:
    def give_up(number: int, frame: Any) -> None:
        raise Difference(f"has not ended in {PATIENCE_S} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_S)
    faulthandler.dump_traceback_later(PATIENCE_S + 10, exit=True)
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()


def run_some(
    seeds: range, stop: bool = False
) -> tuple[list[tuple[int, str]], collections.Counter[str]]:
    """Run seeds in this process; return the failures, or with *stop* the first, and the faults."""
    logging.disable()
    gc.freeze()
    failures = []
    happened: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        folder = Path(tempfile.mkdtemp(prefix="uringloop-simulation-"))
        try:
            with patience():
                happened.update(run_seed(seed, folder))
        except Exception as exc:
            failures.append((seed, "".join(traceback.format_exception(exc))))
            if stop:
                break
        finally:
            shutil.rmtree(folder)
    return failures, happened


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (%(default)s)")
    parser.add_argument("--seed", type=int, help="run this seed only, in this process")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (%(default)s)")
    options = parser.parse_args()
    began = time.monotonic()
    if options.seed is not None:
        options.first, options.seeds = options.seed, 1
    seeds = range(options.first, options.first + options.seeds)
    if options.seeds == 1:
        results = iter([run_some(seeds, options.stop)])
        return report(seeds, results, began, options.stop)
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.jobs, spawn) as pool:
        running = {pool.submit(run_some, chunk, options.stop): chunk for chunk in chunks}
        status = report(seeds, results_of(running), began, options.stop)
        if options.stop:
            pool.shutdown(cancel_futures=True)
        return status


def results_of(running: dict[concurrent.futures.Future[Any], range]) -> Iterator[Any]:
    for future in concurrent.futures.as_completed(running):
        try:
            yield future.result()
        except concurrent.futures.process.BrokenProcessPool:
            chunk = running[future]
            yield [(chunk[0], f"a process died, in one of {chunk} or beside it\n")], {}
            return


def report(seeds: range, results: Iterator[Any], began: float, stop: bool = False) -> int:
    """Print failures as they come, or with *stop* the first; return the exit status."""
    failed = 0
    happened: collections.Counter[str] = collections.Counter()
    for failures, faults_of_some in results:
        happened.update(faults_of_some)
        for seed, text in failures:
            failed += 1
            if failed <= 20:
                print(f"{text}\nagain: nox -s simulate -- --seed {seed}\n", flush=True)
        if failures and stop:
            seed, text = failures[0]
            known = [line for line in text.splitlines() if "Difference" in line or "Error" in line]
            print(f"found: seed {seed}: {(known or [text])[-1][:100]}")
            return 1
    counts = ", ".join(f"{kind} {count}" for kind, count in happened.items())
    print(f"faults: {counts}")
    print(f"{len(seeds)} seeds, {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
