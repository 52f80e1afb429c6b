"""An asyncio event loop for Linux on io_uring.

uringloop.run(main())                                       instead of asyncio.run
asyncio.Runner(loop_factory=uringloop.new_event_loop)       where a loop is made
async with uringloop.open(path) as f                        files, under any loop of asyncio's
await uringloop.fs.read_bytes(path)                         and what is done with paths
uringloop.install()                                         for programs that set policies
"""

from typing import Any

from uringloop.files import open
from uringloop.filestream import connect_file
from uringloop.loop import Loop
from uringloop.policy import EventLoopPolicy, install, new_event_loop, run

__all__ = [
    "EventLoopPolicy",
    "Loop",
    "__version__",
    "connect_file",
    "install",
    "new_event_loop",
    "open",
    "run",
]

# The build reads it from here, without importing the package.
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `fs` when it is first asked for: what it needs takes longer than all of the loop."""
    if name != "fs":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import uringloop.fs

    return uringloop.fs
