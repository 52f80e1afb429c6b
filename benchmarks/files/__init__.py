"""Asynchronous files compared: `work` runs in a measured process, `cli` starts it and reports."""
