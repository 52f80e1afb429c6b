"""How a ring ends."""
