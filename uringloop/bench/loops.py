"""The event loops by name: the factory, whether it is installed, the version.

A loop is imported only in its own server process.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import importlib.util
import platform
import subprocess
import sys
from collections.abc import Callable

from .settings import BenchError

Factory = Callable[[], asyncio.AbstractEventLoop]

# Names that are valid even if the module is not installed: the table then has a row that says so.
# Any other missing name is an error.
KNOWN = {
    "asyncio": "asyncio:SelectorEventLoop",
    "uringloop": "uringloop:new_event_loop",
    "uringloop-soft": "uringloop.bench.loops:software_loop",
    "uvloop": "uvloop:new_event_loop",
    "rloop": "rloop:new_event_loop",
    "rsloop": "rsloop:new_event_loop",
    "zuvloop": "zuvloop:new_event_loop",
    "blazio": "blazio:new_event_loop",
    "winloop": "winloop:new_event_loop",
    "uringcore": "uringcore:UringEventLoop",
}

# Packages that add their own transports to another loop, named `aiofastnet+uvloop`, and their
# function that wraps that loop's factory.
LAYERS = {"aiofastnet": "loop_factory"}


def software_loop() -> asyncio.AbstractEventLoop:
    """Return a loop on the software ring, whatever the kernel supports."""
    uringloop = importlib.import_module("uringloop")
    loop: asyncio.AbstractEventLoop = uringloop.Loop(backend="soft")
    return loop


def target_of(name: str) -> str:
    """Return `module:factory` for the name of a loop."""
    if ":" in name:
        return name
    return KNOWN.get(name, f"{name}:new_event_loop")


def installed(name: str) -> bool:
    """Return whether the module of a loop can be found."""
    layer, _, name = name.rpartition("+")
    if layer and not installed(layer):
        return False
    module = target_of(name).partition(":")[0]
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def check(name: str) -> None:
    """Raise BenchError for a name that is neither known nor an importable factory."""
    layer, plus, base = name.rpartition("+")
    if plus and layer not in LAYERS:
        raise BenchError(f"unknown layer {layer!r}: known are {', '.join(LAYERS)}")
    if plus:
        check(base)
    if plus or name in KNOWN:
        return
    module, _, attribute = target_of(name).partition(":")
    known = ", ".join(KNOWN)
    if not installed(name):
        raise BenchError(f"unknown loop {name!r}: known are {known}, or module:factory")
    # In a process of its own: some loops patch asyncio when they are imported.
    code = f"import importlib; getattr(importlib.import_module({module!r}), {attribute!r})"
    probe = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if probe.returncode != 0:
        reason = (probe.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise BenchError(f"loop {name!r} has no factory {attribute!r}: {reason}")


def load(name: str) -> Factory:
    """Import the module of a loop and return its factory."""
    layer, _, name = name.rpartition("+")
    module, _, attribute = target_of(name).partition(":")
    factory: Factory = getattr(importlib.import_module(module), attribute)
    if layer:
        over: Callable[[Factory], Factory] = getattr(importlib.import_module(layer), LAYERS[layer])
        return over(factory)
    return factory


def version(name: str) -> str:
    """Return the version of a loop, or why there is none."""
    if name == "asyncio":
        return platform.python_version()
    if not installed(name):
        return "not installed"
    layer, _, base = name.rpartition("+")
    if layer:
        return f"{version(layer)} over {version(base)}"
    module = target_of(name).partition(":")[0].partition(".")[0]
    if module == "uringloop":
        # The distribution has another name.
        return _own_version()
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"


def _own_version() -> str:
    """Return the version of this package, which may run from a source tree without metadata."""
    found: object = getattr(importlib.import_module("uringloop"), "__version__", None)
    return found if isinstance(found, str) else "unknown version"
