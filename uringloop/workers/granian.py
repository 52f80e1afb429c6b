"""granian's command with uringloop in its workers: `python -m uringloop.workers.granian app:app`.

It accepts the options of `granian`. A program that creates a `granian.Granian` itself imports this
module, which registers the loop as "auto" and as "uringloop". The registration is needed in the
main process, and in workers that multiprocessing spawns; these import the main module.
"""

from __future__ import annotations

import asyncio

from uringloop._ring import backends
from uringloop.loop import Loop
from uringloop.policy import new_event_loop
from uringloop.workers.serving import prepare

try:
    from granian import loops
    from granian.cli import entrypoint
    from granian.log import logger
except ImportError as exc:
    raise ImportError("uringloop.workers.granian needs granian: pip install granian") from exc


@loops.register("auto")
@loops.register("uringloop")
def build_loop() -> Loop:
    """Create a worker's loop, set it as the current event loop, and return it."""
    loop = new_event_loop()
    logger.info(backends.startup_line(loop.backend, loop.backend_reason))
    asyncio.set_event_loop(loop)
    return loop


if __name__ == "__main__":
    prepare()
    entrypoint()
