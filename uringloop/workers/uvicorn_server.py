"""uvicorn's command with uringloop: `python -m uringloop.workers.uvicorn_server app:app`.

It accepts the options of `uvicorn`; `--loop auto`, the default, is uringloop. A server that shuts
down, because a worker is replaced or uvicorn reloads, answers one last request on each connection.
A program that calls `uvicorn.run` itself imports this module for the same effects. The import is
needed in the main process, and in workers that multiprocessing spawns; these import the main
module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

try:
    import uvicorn
    import uvicorn.config
    import uvicorn.main
    import uvicorn.supervisors.multiprocess

    from uringloop.loop import Loop
    from uringloop.workers.serving import prepare
    from uringloop.workers.uvicorn_serving import Server, new_event_loop
except ImportError as exc:
    raise ImportError(
        "uringloop.workers.uvicorn_server needs uvicorn: pip install uvicorn"
    ) from exc


def loop_factory(use_subprocess: bool = False) -> Callable[[], Loop]:
    """Return the factory of a worker's loop, as uvicorn asks for it."""
    return new_event_loop


# uvicorn finds its server and its loop by these names: there is no option for the server. A
# function also has the name uvicorn.main.
sys.modules["uvicorn.main"].Server = Server  # type: ignore[attr-defined]
uvicorn.supervisors.multiprocess.Server = Server
uvicorn.config.LOOP_FACTORIES["auto"] = "uringloop.workers.uvicorn_server:loop_factory"

if __name__ == "__main__":
    prepare()
    uvicorn.main()
