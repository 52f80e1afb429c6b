"""aiohttp on every core, in one process: `python examples/threads_aiohttp.py`.

Then `curl http://127.0.0.1:8000/`. An application and a runner for each thread, since both belong
to a loop; the kernel distributes the connections (SO_REUSEPORT).
"""

import argparse
import asyncio
import contextlib
import functools
import threading

from aiohttp import web

import uringloop


async def hello(request: web.Request) -> web.Response:
    return web.json_response({"thread": threading.current_thread().name})


async def main(host: str, port: int) -> None:
    """Serve in this thread until run_threads() cancels it: at Ctrl-C, SIGTERM or a failure."""
    app = web.Application()
    app.router.add_get("/", hello)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=10.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, reuse_port=True).start()
        print(f"{threading.current_thread().name} listening on {host}:{port}", flush=True)
        await asyncio.Event().wait()
    finally:
        # Answers what it has begun, for at most shutdown_timeout seconds.
        await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uringloop.run_threads(functools.partial(main, options.host, options.port), options.threads)
