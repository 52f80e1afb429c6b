"""How a run begins and ends, and how a ring and a loop's use of the kernel's end."""

SETTLE_MAX: int
