"""The start and end of a run, the switch to the software ring, and the end of a ring."""
