"""Compares event loops row by row.

In reading order: `rows`, `methods`, `workloads`, `report`, `cli`. What is measured runs in the
processes `server` and `task`.
"""
