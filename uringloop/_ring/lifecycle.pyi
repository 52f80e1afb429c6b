"""The start and end of a run, the switch to the software ring, and the end of a ring."""

CANCEL_ROUNDS_MAX: int
OPEN_ROUNDS_MAX: int
