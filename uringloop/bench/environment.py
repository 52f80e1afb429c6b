"""The machine and the software of a run; figures must not be quoted without them."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from pathlib import Path

from uringloop._cpython import gil

from . import loops

# Variables that change the allocators of glibc and CPython, and thereby the figures.
_ALLOCATOR_VARIABLES = ("GLIBC_TUNABLES", "PYTHONMALLOC", "LD_PRELOAD")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        # x86 kernels name the model; most ARM kernels have only the number of the part.
        if name.strip() in ("model name", "CPU part"):
            return value.strip()
    return platform.processor() or "unknown"


def _mitigations() -> str:
    """Return the processor's vulnerabilities, grouped by what the kernel does about them."""
    states: dict[str, list[str]] = {}
    root = Path("/sys/devices/system/cpu/vulnerabilities")
    if not root.is_dir():
        return "unknown"
    for entry in sorted(root.iterdir()):
        text = entry.read_text().strip()
        state = text.partition(":")[0] if text.startswith("Mitigation") else text.split(":")[0]
        states.setdefault(state.lower(), []).append(entry.name)
    parts = [
        f"{state}: {', '.join(names)}" for state, names in states.items() if state != "not affected"
    ]
    unaffected = len(states.get("not affected", []))
    if unaffected:
        parts.append(f"{unaffected} not affected")
    return "; ".join(parts)


def _allocator() -> str:
    library, number = platform.libc_ver()
    settings = [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("MALLOC_") or name in _ALLOCATOR_VARIABLES
    ]
    return f"{library or 'libc'} {number}, {' '.join(settings) or 'default settings'}"


def _tcp() -> str:
    """Return the congestion control of the server's sockets, unless the loop sets another."""
    try:
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    except OSError:
        return "unknown"


def _interpreter() -> str:
    """Return implementation and version; of a free-threaded build also the state of the GIL."""
    named = f"{platform.python_implementation()} {platform.python_version()}"
    if gil.free_threaded():
        named += f" free-threading, GIL {'on' if gil.enabled() else 'off'}"
    return f"{named} ({sys.version.split('[', 1)[-1].rstrip(']')})"


def describe(names: list[str], pinning: str, idle: str) -> dict[str, str]:
    """Return the facts that a reader needs to judge the figures, in the order of the report."""
    versions = ", ".join(f"{name} {loops.version(name)}" for name in names)
    return {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "python": _interpreter(),
        "loops": versions,
        "allocator": _allocator(),
        "tcp": f"congestion control {_tcp()}",
        "pinning": pinning,
        "idle processors": idle,
        "mitigations": _mitigations(),
    }
