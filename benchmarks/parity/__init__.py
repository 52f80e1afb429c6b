"""A small program for each feature of asyncio, in `probes`; `cli` runs them on every loop."""
