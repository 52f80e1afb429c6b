"""Faults that are tried on every loop: hostile peers, forks and signals, limits, process ends."""
