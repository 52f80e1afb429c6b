"""Compares event loops row by row. In reading order: `rows`, `methods`, `report`, `cli`."""
