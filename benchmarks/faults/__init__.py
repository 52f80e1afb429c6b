"""Faults to which every loop is exposed: hostile peers, forks, signals, limits, process exits."""
