"""Helpers shared by tests of several folders; each module is imported by its name."""
