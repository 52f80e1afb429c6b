"""How a run, a ring and a loop's use of the kernel's ring end."""

SETTLE_MAX: int
