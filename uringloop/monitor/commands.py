"""The command of a process, as a person knows it, which `uringloop.top` shows with its loops.

Any thread may call this: it only reads /proc.
"""

from __future__ import annotations

import os
import sys

# Characters of a command line in an answer; some programs take all settings there.
LENGTH_MAX = 500
# A part of the program that multiprocessing passes to Python by -c, in a process that it spawns and
# in the server of `forkserver`. Other statements come before it in later releases of 3.14.
STARTED_BY_MULTIPROCESSING = "from multiprocessing."
# What service_of() has found, by process: the service may end before its worker. A forked child
# adds an entry of its own.
SERVICES: dict[int, str] = {}


def command_line(pid: int) -> str:
    """Return the command line of a process, or the title that it has set; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read()).replace("\0", " ").strip()[:LENGTH_MAX]
    except OSError:
        return ""


def service_of(pid: int) -> str:
    """Return the command of the process that started this one, *pid*, with multiprocessing."""
    if pid not in SERVICES:
        # Do not import it: a process that multiprocessing has started has the module.
        module = sys.modules.get("multiprocessing.process")
        parent = module.parent_process() if module is not None else None
        SERVICES[pid] = command_line(parent.pid) if parent is not None and parent.pid else ""
    return SERVICES[pid]


def own_command() -> str:
    """Return the command of this process or, in a worker of multiprocessing, of its service."""
    pid = os.getpid()
    own = command_line(pid) or " ".join(sys.orig_argv)[:LENGTH_MAX]
    return (service_of(pid) or own) if STARTED_BY_MULTIPROCESSING in own else own
