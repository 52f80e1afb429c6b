"""An asyncio event loop for Linux on io_uring.

uringloop.run(main())                                       instead of asyncio.run
asyncio.Runner(loop_factory=uringloop.new_event_loop)       where a loop is made
uringloop.install()                                         for programs that set policies
"""

from uringloop._version import __version__

try:
    from uringloop.loop import Loop
except ImportError as exc:
    # Python looks into the current directory first, and finds a clone before what is installed.
    # A module that is there and can not be loaded is another matter.
    if not str(exc.name).startswith(f"{__name__}._core") or str(exc.path).endswith(".so"):
        raise
    raise ImportError(
        f"{__path__[0]} has no compiled modules for this Python, as a clone of the sources has "
        "none: start Python in another directory or with -P, or compile them here with "
        "`pip install --editable .`"
    ) from exc
from uringloop.policy import EventLoopPolicy, install, new_event_loop, run

__all__ = ["EventLoopPolicy", "Loop", "__version__", "install", "new_event_loop", "run"]
