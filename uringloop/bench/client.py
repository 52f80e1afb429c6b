"""The process of the load generator: `python -m uringloop.bench.client TASK`.

TASK is JSON, and so is the one line of output: the measurement of one server in one round. The
order is fixed: connect, warm up, measure, count kernel entries, drain. Kernel entries have a pass
of their own because the tracepoint makes every system call of the server more expensive.
"""

from __future__ import annotations

import errno
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from . import counters, process
from .loadgen import LoadGenerator
from .settings import Address


@dataclass(frozen=True)
class Task:
    """The load generator's task; times are in seconds."""

    address: Address
    server_pid: int
    clients: int
    size: int
    rate: float
    warm_up: float
    duration: float
    counting: float
    spinning: bool
    stall: float = 10.0


@dataclass(frozen=True)
class Measurement:
    """One round of one cell; the latencies are histogram buckets as Histogram.items returns.

    *requests* is the number of answers that the client has taken, and *answers* the number that the
    server has made. With thousands of connections both always have work, and a time slice ends with
    answers that are not taken yet.
    """

    requests: int
    answers: int
    unanswered: int
    elapsed_ns: int
    latencies: list[tuple[int, int]]
    server_cpu_ns: int
    client_cpu_ns: int
    kernel_entries: int | None
    kernel_entries_requests: int
    kernel_entries_refused: str
    peak_rss_bytes: int
    failures: dict[str, int]
    failure: str | None


def explain_ring(exc: OSError) -> str:
    """Return one line about why the kernel refuses the load generator's ring."""
    if exc.errno == errno.ENOSYS:
        return "io_uring is not available: the kernel lacks it, or a seccomp filter hides it"
    if exc.errno == errno.EPERM:
        try:
            disabled = Path("/proc/sys/kernel/io_uring_disabled").read_text().strip()
        except OSError:
            disabled = "unknown"
        return (
            "io_uring is not available: a seccomp filter refuses it, or"
            f" kernel.io_uring_disabled does (it is {disabled})"
        )
    if exc.errno == errno.EINVAL:
        return "io_uring of this kernel is too old: the load generator needs Linux 6.0"
    return f"io_uring is not available: {exc.strerror or exc}"


def count_entries(task: Task, generator: LoadGenerator) -> tuple[int | None, int, str]:
    """Return kernel entries and answers of a short pass, or the reason why there are none."""
    try:
        entries = counters.KernelEntries(task.server_pid)
    except OSError as exc:
        return None, 0, str(exc)
    try:
        untaken, before = generator.untaken(), entries.total()
        requests, _, _, _ = generator.run(task.counting)
        counted = entries.total() - before
        return counted, requests + generator.untaken() - untaken, ""
    finally:
        entries.close()


class ServerWork:
    """The CPU time that a server has used and the answers that it has made, since a moment."""

    def __init__(self, task: Task, generator: LoadGenerator) -> None:
        self.pid = task.server_pid
        self.generator = generator
        self.cpu_ns, self.untaken = self._read()

    def _read(self) -> tuple[int, int]:
        # The server may go on while the answers are counted, so take the mean of its CPU times.
        before = counters.cpu_ns(self.pid)
        untaken = self.generator.untaken()
        return (before + counters.cpu_ns(self.pid)) // 2, untaken

    def since(self, taken: int) -> tuple[int, int]:
        """Return nanoseconds and answers since then; the client has taken *taken* of these."""
        cpu_ns, untaken = self._read()
        return cpu_ns - self.cpu_ns, taken + untaken - self.untaken


def measure(task: Task, generator: LoadGenerator) -> Measurement:
    """Run *task* against the server and return the measurement."""
    generator.connect()
    generator.run(task.warm_up)
    work = ServerWork(task, generator)
    client_cpu = time.process_time_ns()
    requests, unanswered, elapsed_ns, latencies = generator.run(task.duration)
    client_cpu = time.process_time_ns() - client_cpu
    server_cpu, answers = work.since(requests)
    entries, entries_requests, refused = count_entries(task, generator)
    peak_rss = counters.peak_rss_bytes(task.server_pid)
    generator.drain(task.stall)
    return Measurement(
        requests=requests,
        answers=answers,
        unanswered=unanswered,
        elapsed_ns=elapsed_ns,
        latencies=latencies.items(),
        server_cpu_ns=server_cpu,
        client_cpu_ns=client_cpu,
        kernel_entries=entries,
        kernel_entries_requests=entries_requests,
        kernel_entries_refused=refused,
        peak_rss_bytes=peak_rss,
        failures=generator.failures(),
        failure=generator.first_failure(),
    )


def main(argv: list[str] | None = None) -> int:
    """Measure; the exit status is 0 after a measurement and 1 after JSON with `error`."""
    (encoded,) = sys.argv[1:] if argv is None else argv
    task = Task(**json.loads(encoded))
    process.end_with_parent()
    process.raise_descriptor_limit()
    try:
        generator = LoadGenerator(
            # JSON has no tuples.
            task.address if isinstance(task.address, str) else (task.address[0], task.address[1]),
            task.clients,
            task.size,
            rate=task.rate,
            spinning=task.spinning,
            stall=task.stall,
        )
    except OSError as exc:
        print(json.dumps({"error": explain_ring(exc), "kind": "no io_uring"}))
        return 1
    try:
        measurement = measure(task, generator)
    except OSError as exc:
        reason = generator.first_failure() or exc.strerror or str(exc)
        print(json.dumps({"error": reason, "kind": "failed"}))
        return 1
    finally:
        generator.close()
    print(json.dumps(asdict(measurement)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
