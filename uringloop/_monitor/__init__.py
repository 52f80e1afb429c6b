"""The monitor: what a running loop tells, and the programs that show it."""
