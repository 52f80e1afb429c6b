"""hypercorn's command with uringloop: `python -m uringloop.workers.hypercorn app:app`.

It accepts the options of `hypercorn`. As `--worker-class` takes only three names, "asyncio", the
default, stands for uringloop in this command. A program that calls `hypercorn.run` itself imports
this module for the same effect. The import is needed in the main process, and in workers that
multiprocessing spawns; these import the main module.
"""

from __future__ import annotations

import asyncio
import sys

from uringloop.policy import new_event_loop
from uringloop.workers.serving import prepare

try:
    import hypercorn.__main__
    import hypercorn.asyncio.run as servers
except ImportError as exc:
    raise ImportError("uringloop.workers.hypercorn needs hypercorn: pip install hypercorn") from exc


def runner(**options: object) -> asyncio.Runner:
    """Return the runner of a worker. A loop factory that *options* names is ignored."""
    return asyncio.Runner(debug=bool(options.get("debug")), loop_factory=new_event_loop)


# hypercorn's workers find the runner of their server by this name: there is no option for it.
servers.Runner = runner

if __name__ == "__main__":
    prepare()
    # The name of the command in its usage. From 3.14 on, argparse takes it from the interpreter.
    sys.argv[0] = "python -m uringloop.workers.hypercorn"
    sys.exit(hypercorn.__main__.main())
