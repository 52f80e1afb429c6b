"""Bytes objects that nobody holds any more, for the next messages of their size."""
