"""The benchmark: one asyncio echo server under several event loops, compared honestly.

`python -m uringloop.bench` is the entry. In reading order: `cli` (what a user may ask), `runner`
(one fresh server and one load generator per measurement, loops interleaved), `server` and
`workloads` (what is measured), `client` and `loadgen` (what measures), `counters` (what a server
costs), `summary` and `report` (what it comes to). Nothing here is imported by the loop.
"""
