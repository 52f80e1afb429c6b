"""What lets others watch this process: a UNIX socket at which a thread tells what the loops do.

Off unless asked for, by the environment variable URINGLOOP_MONITOR or by `start()`.
`python -m uringloop.top` asks; docs/monitoring.md has the protocol.
"""

from uringloop._monitor.server import start, stop

__all__ = ["start", "stop"]
