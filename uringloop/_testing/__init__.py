"""Loops for tests: virtual time, chosen orders, faults."""
