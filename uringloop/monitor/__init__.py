"""Reports of a process about its loops, even busy ones; docs/reference/monitor.md describes them.

start() answers `python -m uringloop.top` at a UNIX socket, as does the variable URINGLOOP_MONITOR.
serve() answers probes and Prometheus over HTTP, as does the variable URINGLOOP_HEALTH. Each of the
two has a thread of its own. opentelemetry() registers the loops' figures with OpenTelemetry.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from uringloop.monitor.server import start, stop

if TYPE_CHECKING:
    from uringloop.monitor.health import serve, stop_serving
    from uringloop.monitor.otel import opentelemetry

# The module of each name that is imported on first access: the monitor needs no HTTP.
_DEFERRED = {
    "opentelemetry": "uringloop.monitor.otel",
    "serve": "uringloop.monitor.health",
    "stop_serving": "uringloop.monitor.health",
}

__all__ = ["opentelemetry", "serve", "start", "stop", "stop_serving"]


def __getattr__(name: str) -> Any:
    if name not in _DEFERRED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_DEFERRED[name]), name)
