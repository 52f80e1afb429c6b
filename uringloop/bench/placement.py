"""Where and how processes run: cores, scheduling policy, and processors kept awake."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# While this is open with a latency of 0 us, idle processors enter no sleep state.
_LATENCY = Path("/dev/cpu_dma_latency")


@dataclass(frozen=True)
class Placement:
    """Where the two processes of a measurement run."""

    server_cpu: int
    client_cpu: int
    note: str

    @property
    def shared(self) -> bool:
        """Return whether server and load generator share a core."""
        return self.server_cpu == self.client_cpu


def _siblings(cpu: int) -> set[int]:
    """Return the hardware threads of the core that *cpu* belongs to."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        text = path.read_text().strip()
    except OSError:
        return {cpu}
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def choose(same_core: bool) -> Placement:
    """Return a placement on the CPUs that this process may use."""
    cpus = sorted(os.sched_getaffinity(0))
    batch = "under SCHED_BATCH, so that no wake-up preempts"
    # Interrupts tend to arrive at the first core, so the server gets the last one.
    server = cpus[-1]
    if same_core:
        return Placement(server, server, f"server and load generator both on CPU {server}, {batch}")
    if len(cpus) == 1:
        return Placement(server, server, f"only CPU {server} is available: both run on it, {batch}")
    others = [cpu for cpu in cpus if cpu not in _siblings(server)]
    if others:
        return Placement(
            server, others[0], f"server on CPU {server}, load generator on CPU {others[0]}"
        )
    return Placement(
        server,
        cpus[0],
        f"server on CPU {server}, load generator on CPU {cpus[0]}: two threads of one core",
    )


@contextlib.contextmanager
def inherited(cpu: int, batch: bool) -> Iterator[None]:
    """Give processes that this thread starts within the block their core and their policy.

    Both are set before the child exists, so that threads that a loop starts on import inherit them.
    """
    cpus = os.sched_getaffinity(0)
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setaffinity(0, {cpu})
    try:
        if batch:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        yield
    finally:
        if batch:
            os.sched_setscheduler(0, policy, parameter)
        os.sched_setaffinity(0, cpus)


@contextlib.contextmanager
def awake() -> Iterator[str]:
    """Keep idle processors awake within the block, if that is allowed; yield a note about it.

    A sleeping processor takes long to wake, milliseconds on some virtual machines. A workload that
    waits for another process or for a worker thread would measure mostly that.
    """
    try:
        device = _LATENCY.open("wb", buffering=0)
    except OSError as exc:
        yield f"may sleep ({_LATENCY}: {exc.strerror})"
        return
    with device:
        device.write((0).to_bytes(4, sys.byteorder))
        yield f"kept awake by {_LATENCY}"
