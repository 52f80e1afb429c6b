"""The monitor: a thread that reports the state of this process's loops at a UNIX socket.

Off by default; the environment variable URINGLOOP_MONITOR or `start()` switches it on.
`python -m uringloop.top` is its client; docs/monitoring.md describes the protocol.
"""

from uringloop.monitor.server import start, stop

__all__ = ["start", "stop"]
