"""class Faults: what goes wrong on a loop for tests, and how often."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults:
    """The probability of each kind of fault, 0 to 1, at every opportunity.

    A correct program does not notice the first group: kernels do each of these, though rarely.
    """

    # An event of a descriptor is reported later than it could be.
    late: float = 0.0
    # A send or receive of a stream, or a read or write of a file, transfers fewer bytes than it
    # could: at least one, and in half of the cases at most seven. On a connection between the
    # program and its own servers, a piece of data is received in that way.
    short: float = 0.0
    # The process gets no processor for a while: the clock advances by up to 17 s.
    stall: float = 0.0
    # Events are reported in a different order from that in which they came.
    reordered: float = 0.0
    # Faults that only this package's own code sees, in the order of the fields: no receive buffer
    # is free, a multishot operation ends, the completion queue is full, a wait is interrupted, an
    # enter is refused, a cancelled operation goes on for a while, a receive misses the end of a
    # connection that comes with bytes.
    starved: float = 0.0
    ended: float = 0.0
    overflow: float = 0.0
    interrupted: float = 0.0
    busy: float = 0.0
    overtaken: float = 0.0
    missed_end: float = 0.0

    # On connections between the program and its own servers, a piece of data is under way for up to
    # half a second longer, or arrives in parts, in single bytes if it is short. A datagram between
    # the program's own endpoints is under way longer, too.
    delay: float = 0.0
    split: float = 0.0
    # A connection to one of the program's own servers is refused, or takes 1, 3 or 7 s longer, as
    # if packets were lost.
    refused: float = 0.0
    slow_connect: float = 0.0
    # A connection dies with a piece of data, and nobody is told: nothing arrives any more. A send
    # fails with ETIMEDOUT after a quarter of an hour, or when TCP_USER_TIMEOUT or keep-alive ends
    # the connection.
    half_open: float = 0.0
    # A datagram to one of the program's own endpoints is lost, or arrives twice; or its sender gets
    # ENOBUFS.
    lost: float = 0.0
    doubled: float = 0.0
    no_buffers: float = 0.0
    # A name is not resolved (EAI_AGAIN), or resolving it takes up to 5 s.
    no_name: float = 0.0
    slow_name: float = 0.0
    # A send or receive of a stream fails with ECONNRESET. On a connection between the program and
    # its own servers a piece of data is lost, and both ends get ECONNRESET.
    reset: float = 0.0
    # A send or receive of a stream fails with ENOMEM. On a connection between the program and its
    # own servers a piece of data is lost; its receiver gets ENOMEM, and its sender ECONNRESET.
    no_memory: float = 0.0
    # accept(2) fails with EMFILE.
    no_files: float = 0.0
    # On a disk, an operation that needs space fails with ENOSPC; a read, a write or an fsync fails
    # with EIO; an operation takes up to 2 s.
    no_space: float = 0.0
    bad_disk: float = 0.0
    slow_disk: float = 0.0
    # A call of run_in_executor() is cancelled: its executor is shut down. Or its result comes up to
    # 2 s later.
    cancelled_call: float = 0.0
    slow_call: float = 0.0

    def __post_init__(self) -> None:
        for name, chance in dataclasses.asdict(self).items():
            if not 0 <= chance <= 1:
                raise ValueError(f"{name} must be between 0 and 1, not {chance!r}")

    def chance(self, kind: str) -> float:
        """Return the probability of a *kind*, the name of a field."""
        probability: float = getattr(self, kind)
        return probability
