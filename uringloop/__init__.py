"""An asyncio event loop for Linux on io_uring.

uringloop.run(main())                                       instead of asyncio.run
uringloop.run_threads(main)                                 the same in many threads
asyncio.Runner(loop_factory=uringloop.new_event_loop)       wherever a loop factory is accepted
async with uringloop.open(path) as f                        files, under any asyncio event loop
await uringloop.fs.read_bytes(path)                         operations on paths
async with uringloop.tempfile.TemporaryFile() as f          temporary files
uringloop.install()                                         for programs that use policies
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

# Loads the compiled modules, which everything below imports.
import uringloop._cpython.loading  # noqa: F401
from uringloop._loop import base_loop as _base_loop
from uringloop._loop import options as _options
from uringloop._net.servers import Server
from uringloop.loop import Loop
from uringloop.policy import EventLoopPolicy, install, new_event_loop, run

if TYPE_CHECKING:
    from uringloop._loop.stats import Stats
    from uringloop._net.stream_transport import StreamTransport
    from uringloop.files.binary import BufferedFile, RawFile
    from uringloop.files.open import open
    from uringloop.files.stream import connect_file
    from uringloop.files.text import TextFile
    from uringloop.threads import run_threads

# Imported on first access: importing the loop alone takes a fraction of the time.
_SUBMODULES = (
    "bench",
    "doctor",
    "fs",
    "monitor",
    "prometheus",
    "pytest_plugin",
    "sockets",
    "streams",
    "tempfile",
    "testing",
    "tls",
    "top",
    "workers",
)
# The modules of other public names, which are also imported on first access.
_DEFERRED = {
    "BufferedFile": "uringloop.files.binary",
    "RawFile": "uringloop.files.binary",
    "Stats": "uringloop._loop.stats",
    "StreamTransport": "uringloop._net.stream_transport",
    "TextFile": "uringloop.files.text",
    "connect_file": "uringloop.files.stream",
    "open": "uringloop.files.open",
    "run_threads": "uringloop.threads",
}

__all__ = [
    "BufferedFile",
    "EventLoopPolicy",
    "Loop",
    "RawFile",
    "Server",
    "Stats",
    "StreamTransport",
    "TextFile",
    "__version__",
    "connect_file",
    "install",
    "new_event_loop",
    "open",
    "run",
    "run_threads",
]

# The build reads the version from this line without importing the package.
__version__ = "1.0.0"


def __getattr__(name: str) -> Any:
    """Import a submodule, or the module of a deferred name, on first access."""
    if name not in _DEFERRED and name not in _SUBMODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name in _DEFERRED:
            return getattr(importlib.import_module(_DEFERRED[name]), name)
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as exc:
        # The submodule needs a package that is not installed, as pytest_plugin needs pytest.
        # AttributeError makes hasattr() return False.
        raise AttributeError(f"{__name__}.{name} cannot be imported: {exc}") from exc


def __dir__() -> list[str]:
    """Return the public names, including submodules that are not imported yet."""
    return sorted((*__all__, *_SUBMODULES))


def _watch(loop: _base_loop.BaseLoop, stall_ms: int) -> None:
    """Start the monitor and health, and log stalls of a new *loop*, if an option asks for it."""
    place, address = _options.MONITOR.value(), _options.HEALTH.value()
    if place and (server := _part("server", _options.MONITOR.variable)):
        server.start_from_variable(place)
    if address and (health := _part("health", _options.HEALTH.variable)):
        health.start_from_variable(address)
    if stall_ms and (stalls := _part("stalls", _options.STALL_MS.variable)):
        stalls.watch(loop, stall_ms)


def _part(name: str, variable: str) -> Any:
    """Import a module of the monitor; return None and log it if that fails."""
    try:
        importlib.import_module("uringloop.monitor")
        return importlib.import_module(f"uringloop.monitor.{name}")
    except ImportError as exc:
        # For example in a daemon that has changed its root directory.
        logging.getLogger(__name__).warning("%s: %s", variable, exc)
        return None


def _watch_for_callbacks(loop: _base_loop.BaseLoop) -> None:
    """Have the callbacks of on_stall() called."""
    from uringloop.monitor import stalls

    stalls.watch_for_callbacks(loop)


_base_loop.when_created["monitor"] = _watch
_base_loop.when_stalls_are_watched["monitor"] = _watch_for_callbacks

if _options.STREAMS.value():
    importlib.import_module("uringloop.streams").install()
