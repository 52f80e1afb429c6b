"""How long turns and callbacks take, measured while somebody wants to know."""

BOUNDS: tuple[float, ...]
