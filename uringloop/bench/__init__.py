"""The benchmark: one asyncio echo server under several event loops.

`python -m uringloop.bench` is the entry. In reading order: `cli` (the options), `rows` (interleaved
rounds), `runner` (a new server and load generator for each measurement), `server` and `echo` (the
measured process), `client` and `loadgen` (the load generator), `counters` (CPU time, memory,
system calls), `summary` and `report` (medians and tables). The loop imports none of these modules.
"""
