"""Event loops compared row by row. In reading order: `rows`, `methods`, `report`, `cli`."""
