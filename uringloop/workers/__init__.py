"""Worker classes and commands that run other servers on uringloop.

Use one of the worker classes, `gunicorn -k uringloop.workers.uvicorn.Worker` or
`gunicorn -k uringloop.workers.aiohttp.Worker`, or one of the commands:
`python -m uringloop.workers.uvicorn_server` in place of `uvicorn`,
`python -m uringloop.workers.granian` in place of `granian`, and
`python -m uringloop.workers.hypercorn` in place of `hypercorn`. Each module needs the packages of
its server. A worker of gunicorn, uvicorn or granian logs at its start which ring its loop uses. The
loop imports none of these modules.
"""
