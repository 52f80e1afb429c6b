"""Durations of turns and callbacks, measured on request."""

BOUNDS: tuple[float, ...]
