"""The settings of a run of the benchmark, and its errors, which are printed as one line."""

from __future__ import annotations

from dataclasses import dataclass

# The path of a UNIX socket, or an IPv4 address and a port.
Address = str | tuple[str, int]

DEFAULT_LOOPS = ("asyncio", "uvloop", "uringloop")
DEFAULT_SIZES = (1000,)
DEFAULT_CLIENTS = (1, 50, 300)
# 27 measurements of 1.6 s each, start-up included, take three quarters of a minute.
DEFAULT_DURATION = 0.8
DEFAULT_ROUNDS = 3

# The sizes and numbers of clients of --full, those of other published echo benchmarks.
FULL_SIZES = (128, 512, 1000)
FULL_CLIENTS = (1, 50, 150, 300, 500, 1000)

HOST = "127.0.0.1"


class BenchError(Exception):
    """Ends the benchmark with its message on one line and exit status 2."""


class Refused(Exception):
    """There is no figure of a loop; *kind* is the status of its cell."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason

    def json(self) -> dict[str, str]:
        """Return the answer of a process that has no figure, see `Child.read_answer`."""
        return {"error": self.reason, "kind": self.kind}


def refusal_of(exc: Exception) -> Refused:
    """Return the Refused that reports an exception of a measurement."""
    if isinstance(exc, Refused):
        return exc
    if isinstance(exc, ModuleNotFoundError):
        return Refused("missing", f"{exc.name} is not installed")
    if isinstance(exc, NotImplementedError):
        return Refused("not supported", str(exc) or "NotImplementedError")
    named = "" if isinstance(exc, BenchError) else f"{type(exc).__name__}: "
    return Refused("failed", f"{named}{exc}")


@dataclass(frozen=True)
class EchoLoad:
    """The load of an echo server: bytes per message and simultaneous connections."""

    size: int
    clients: int

    def __str__(self) -> str:
        return f"{self.size} B x {self.clients}"


@dataclass(frozen=True)
class Settings:
    """The options of the command line, checked."""

    mode: str = "protocol"
    sizes: tuple[int, ...] = DEFAULT_SIZES
    clients: tuple[int, ...] = DEFAULT_CLIENTS
    duration: float = DEFAULT_DURATION
    rounds: int = DEFAULT_ROUNDS
    loops: tuple[str, ...] = DEFAULT_LOOPS
    unix: bool = False
    port: int = 0
    rate: float = 0.0
    same_core: bool = False

    @property
    def loads(self) -> list[EchoLoad]:
        """The rows of the table, in the order in which they are measured."""
        return [EchoLoad(size, clients) for size in self.sizes for clients in self.clients]

    @property
    def warm_up(self) -> float:
        """Seconds under load before each measurement: caches, allocator, specialised bytecode."""
        return min(max(self.duration / 4, 0.05), 1.0)

    @property
    def counting(self) -> float:
        """Seconds of the pass that counts kernel entries, after the measurement."""
        return min(max(self.duration / 4, 0.05), 0.5)
