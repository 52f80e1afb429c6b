"""Notifies systemd that a service is alive, as `WatchdogSec=` in a unit demands.

systemd kills and restarts a service that has sent no notification for that time; sd_notify(3) has
the protocol. The health thread uses this.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

MESSAGE = b"WATCHDOG=1"


class Watchdog:
    """The socket of systemd, and how often systemd wants a notification."""

    def __init__(self, address: str, time_us: int) -> None:
        self.address = address.replace("@", "\0", 1) if address[0] == "@" else address
        # systemd recommends half of the time; a quarter survives one message that is late.
        self.interval_s = time_us / 4e6
        self.told = 0.0

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Watchdog | None:
        """Return the watchdog that systemd asks for in the environment, or None.

        systemd may have asked another process: the main process of several workers.
        """
        address = variables.get("NOTIFY_SOCKET", "")
        time_us = variables.get("WATCHDOG_USEC", "")
        if address[:1] not in ("/", "@") or not time_us.isdecimal() or not int(time_us):
            return None
        return cls(address, int(time_us))

    def is_due(self) -> bool:
        # The thread looks at these intervals, not exactly.
        return time.monotonic() - self.told >= 0.9 * self.interval_s

    def tell(self) -> None:
        """Tell systemd that the service is alive. Raises OSError."""
        self.told = time.monotonic()
        # systemd may be behind: the next message does.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            sock.sendto(MESSAGE, self.address)
