"""What starts other servers' worker processes on this loop; each module needs a server's packages.

`gunicorn -k uringloop.workers.uvicorn.Worker`, `gunicorn -k uringloop.workers.aiohttp.Worker`, and
`python -m uringloop.workers.granian` in place of `granian`. Each worker logs, at its start, which
ring its loop is on. Nothing here is imported by the loop.
"""
