"""FastAPI on every core, in one process: `python examples/threads_fastapi.py`.

Then `curl http://127.0.0.1:8000/`. A uvicorn.Server for each thread, with a socket of its own
(SO_REUSEPORT). All share the application: what its handlers change needs a lock.
"""

import argparse
import asyncio
import contextlib
import functools
import socket
import threading

import fastapi
import uvicorn

import uringloop

app = fastapi.FastAPI()


@app.get("/")
async def hello() -> dict[str, str]:
    return {"thread": threading.current_thread().name}


async def main(config: uvicorn.Config) -> None:
    """Serve in this thread until run_threads() cancels it: at Ctrl-C, SIGTERM or a failure."""
    server = uvicorn.Server(config)
    address = (config.host, config.port)
    with socket.create_server(address, backlog=config.backlog, reuse_port=True) as sock:
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        print("{} listening on {}:{}".format(threading.current_thread().name, *address), flush=True)
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            # uvicorn answers what it has begun, closes its connections and ends the lifespan.
            server.should_exit = True
            await serving
            raise


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    config = uvicorn.Config(app, options.host, options.port, log_level="warning", access_log=False)
    config.load()  # Once, before the threads share it.
    with contextlib.suppress(KeyboardInterrupt):
        uringloop.run_threads(functools.partial(main, config), options.threads)
