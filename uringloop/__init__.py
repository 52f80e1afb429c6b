"""An asyncio event loop for Linux on io_uring.

uringloop.run(main())                                       instead of asyncio.run
asyncio.Runner(loop_factory=uringloop.new_event_loop)       where a loop is made
async with uringloop.open(path) as f                        files, under any loop of asyncio's
await uringloop.fs.read_bytes(path)                         and what is done with paths
async with uringloop.tempfile.TemporaryFile() as f          and temporary ones
uringloop.install()                                         for programs that set policies
"""

import importlib
from typing import Any

# Loads the compiled modules, which everything below imports.
import uringloop._cpython.loading  # noqa: F401
from uringloop._files.binary import BufferedFile, RawFile
from uringloop._files.open import open
from uringloop._files.stream import connect_file
from uringloop._files.text import TextFile
from uringloop._loop.base import Stats
from uringloop._net.servers import Server
from uringloop.loop import Loop
from uringloop.policy import EventLoopPolicy, install, new_event_loop, run

# What is imported on request: the loop takes a fraction of their time.
SUBMODULES = (
    "bench",
    "doctor",
    "fs",
    "monitor",
    "prometheus",
    "pytest_plugin",
    "tempfile",
    "top",
    "workers",
)

__all__ = [
    "BufferedFile",
    "EventLoopPolicy",
    "Loop",
    "RawFile",
    "Server",
    "Stats",
    "TextFile",
    "__version__",
    "connect_file",
    "install",
    "new_event_loop",
    "open",
    "run",
]

# The build reads it from here, without importing the package.
__version__ = "0.1.0"

# What repr(), pickles and tracebacks name, in place of the module in which each is defined.
for _name in __all__:
    if _name != "__version__":
        globals()[_name].__module__ = __name__


def __getattr__(name: str) -> Any:
    """Import a submodule when it is asked for."""
    if name not in SUBMODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as exc:
        # It needs a package that is not installed, as the plugin needs pytest: hasattr() is False.
        raise AttributeError(f"{__name__}.{name} can not be imported: {exc}") from exc


def __dir__() -> list[str]:
    """Return the public names: what dir() lists, and editors and shells complete."""
    return sorted((*__all__, *SUBMODULES))
