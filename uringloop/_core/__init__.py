"""The compiled modules, which share one file: with a file for each an import took 2 ms longer.

Each is a module of its own all the same: only ``__file__`` is the same. All are loaded at once, for
a process may have no file system or no descriptors when it needs one.
"""

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec

# From the bottom of the ladder up: what a module imports is there before it.
MODULES = (
    "features",
    "ring",
    "draining",
    "handles",
    "addresses",
    "feeding",
    "fileviews",
    "spares",
    "buffers",
    "timers",
    "timing",
    "ready",
    "wakeup",
    "owners",
    "records",
    "tlsshape",
    "writequeue",
    "loop",
    "counting",
    "marks",
    "tracing",
    "transport",
    "poll",
    "watchers",
    "fileops",
    "pathops",
    "reader",
    "nested",
    "fileturns",
    "filerequests",
    "flow",
    "openfile",
    "lines",
    "writer",
    "secure",
    "tlsprotocol",
    "stream",
    "datagram",
    "pipe",
    "socketops",
    "listener",
)
FILE = f"{__path__[0]}/compiled{EXTENSION_SUFFIXES[0]}"

# Python looks into the current directory first, and finds a clone before what is installed.
if not os.path.exists(FILE):
    raise ImportError(
        f"{os.path.dirname(__path__[0])} has no compiled modules for this Python, as a clone of "
        "the sources has none: start Python in another directory or with -P, or compile them "
        "here with `pip install --editable .`",
        name=__name__,
        path=FILE,
    )


def _load(name: str) -> None:
    qualified = f"{__name__}.{name}"
    loader = ExtensionFileLoader(qualified, FILE)
    spec = ModuleSpec(qualified, loader, origin=FILE)
    spec.has_location = True
    module = loader.create_module(spec)
    module.__spec__ = spec
    sys.modules[qualified] = globals()[name] = module
    loader.exec_module(module)


for _name in MODULES:
    _load(_name)
