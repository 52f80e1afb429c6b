"""The benchmark: one asyncio echo server under several event loops.

`python -m uringloop.bench` is the entry. In reading order: `cli` (the options), `runner` (one fresh
server and one load generator per measurement, loops interleaved), `server` and `workloads` (the
measured programs), `client` and `loadgen` (the load), `counters` (the cost of a server), `summary`
and `report` (the results). The loop imports nothing from here.
"""
