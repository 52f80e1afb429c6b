"""Worker classes and commands that run other servers on uringloop.

Use `gunicorn -k uringloop.workers.uvicorn.Worker`, `gunicorn -k uringloop.workers.aiohttp.Worker`,
or `python -m uringloop.workers.granian` in place of `granian`. Each module needs the packages of
its server. Each worker logs at its start which ring its loop uses. The loop imports none of these.
"""
