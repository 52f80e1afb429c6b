"""An asyncio event loop for Linux on io_uring.

uringloop.run(main())                                       instead of asyncio.run
asyncio.Runner(loop_factory=uringloop.new_event_loop)       where a loop is made
async with uringloop.open(path) as f                        files, under any loop of asyncio's
uringloop.install()                                         for programs that set policies
"""

from uringloop.files import open
from uringloop.loop import Loop
from uringloop.policy import EventLoopPolicy, install, new_event_loop, run

__all__ = ["EventLoopPolicy", "Loop", "__version__", "install", "new_event_loop", "open", "run"]

# The build reads it from here, without importing the package.
__version__ = "0.1.0"
