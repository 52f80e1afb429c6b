"""Worker classes and commands that run other servers on uringloop.

Use `gunicorn -k uringloop.workers.uvicorn.Worker`, `gunicorn -k uringloop.workers.aiohttp.Worker`,
`python -m uringloop.workers.uvicorn_server` in place of `uvicorn`, `python -m
uringloop.workers.granian` in place of `granian`, or `python -m uringloop.workers.hypercorn` in
place of `hypercorn`. Each module needs the packages of its server.
The workers of gunicorn and granian log at their start which ring their loop uses. The loop imports
none of these.
"""
