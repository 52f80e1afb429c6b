"""Tests which features of asyncio each loop has: programs in `probes`, run by `cli`."""
