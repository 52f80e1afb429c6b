"""Compares asynchronous files: `work` runs in the measured processes, `cli` starts them."""
