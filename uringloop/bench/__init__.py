"""The benchmark: one asyncio echo server under several event loops.

`python -m uringloop.bench` is the entry. In reading order: `cli` (what a user may ask), `rows`
(interleaved rounds), `runner` (one fresh server and load generator per measurement), `server` and
`workloads` (what is measured), `client` and `loadgen` (what measures), `counters` (what a server
costs), `summary` and `report` (what it comes to). Nothing here is imported by the loop.
"""
