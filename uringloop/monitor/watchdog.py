"""Tells systemd that a service is alive, as `WatchdogSec=` of a unit asks for.

systemd kills and restarts a service that has not told it for that time; sd_notify(3) has the
protocol. The thread of health uses this.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

MESSAGE = b"WATCHDOG=1"


class Watchdog:
    """The socket of systemd, and how often it wants to be told."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        """Read what systemd has set in the environment.

        Raises ValueError if it has not asked for a watchdog, or asks another process than this one
        and its parent, which is the master of a service with several workers.
        """
        address = variables.get("NOTIFY_SOCKET", "")
        time_us = variables.get("WATCHDOG_USEC", "")
        if address[:1] not in ("/", "@") or not time_us.isdecimal() or not int(time_us):
            raise ValueError("systemd has not asked for a watchdog: the unit needs WatchdogSec=")
        pid = variables.get("WATCHDOG_PID", "") or str(os.getpid())
        if pid not in (str(os.getpid()), str(os.getppid())):
            raise ValueError(f"systemd asks process {pid} for a watchdog, not this one")
        self.address = address.replace("@", "\0", 1) if address[0] == "@" else address
        # systemd recommends half of the time; a quarter survives one that was late.
        self.interval_s = int(time_us) / 4e6
        self.told = 0.0

    def is_due(self) -> bool:
        return time.monotonic() - self.told >= self.interval_s

    def tell(self) -> None:
        """Tell systemd that the service is alive. Raises OSError."""
        self.told = time.monotonic()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            # systemd may be behind: the next message does.
            sock.sendto(MESSAGE, socket.MSG_DONTWAIT, self.address)
