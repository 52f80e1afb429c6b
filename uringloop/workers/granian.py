"""granian's command, with this loop for its workers: `python -m uringloop.workers.granian app:app`.

It takes what `granian` takes. An import alone registers the loop as the one that `--loop auto`
stands for, and by the name "uringloop", for programs that make a `granian.Granian` themselves: both
in the main process and in workers that multiprocessing starts anew, which import the main module.
"""

from __future__ import annotations

import asyncio

from uringloop._ring import backends
from uringloop.loop import Loop
from uringloop.policy import new_event_loop

try:
    from granian import loops
    from granian.cli import entrypoint
    from granian.log import logger
except ImportError as exc:
    raise ImportError("uringloop.workers.granian needs granian: pip install granian") from exc


@loops.register("auto")
@loops.register("uringloop")
def build_loop() -> Loop:
    """Return the loop of a worker, which is the current one of its thread."""
    loop = new_event_loop()
    logger.info(backends.described(loop.backend, loop.backend_reason))
    asyncio.set_event_loop(loop)
    return loop


if __name__ == "__main__":
    backends.ask()
    entrypoint()
