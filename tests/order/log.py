"""The log of a program, and what of it has to be the same on every loop.

A line belongs to a connection, or to the program as a whole. Which of several ready connections
comes first in a turn is the kernel's affair. So each connection has a view of its own: its lines
and the common ones, in their order. Pieces of data without another line between them are one line,
because where a stream is cut is nobody's promise.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Line:
    text: str
    # None: it is seen by all connections.
    connection: int | None = None
    size: int = 0

    def __str__(self) -> str:
        return f"{self.text} {self.size}" if self.size else self.text


@dataclass
class Log:
    lines: list[Line] = field(default_factory=list)

    def add(self, text: str, connection: int | None = None) -> None:
        self.lines.append(Line(text, connection))

    def add_piece(self, text: str, connection: int, size: int) -> None:
        """Add *size* bytes to the line before, if it is of the same kind."""
        for line in reversed(self.lines):
            if line.connection == connection and line.text == text and line.size:
                line.size += size
                return
            if line.connection in (None, connection):
                break
        self.lines.append(Line(text, connection, size))

    def view(self, connection: int) -> list[str]:
        return [str(line) for line in self.lines if line.connection in (None, connection)]

    def has_unread_tls(self) -> bool:
        """Return whether asyncio's TLS has lost a connection because close() left data unread.

        The TLS of this package waits for the end of the peer.
        """
        return any("SSLError" in line.text for line in self.lines)

    def outline(self) -> list[str]:
        """Return how connections begin and end, without an order: for what has none."""
        found = []
        where = ""
        for line in self.lines:
            if line.text == "end":
                where = ", as the program ends"
            for word in ("made", "lost", "received", "still"):
                if word in line.text.split() and line.connection is not None:
                    amount = line.text if word == "received" else ""
                    found.append(f"{line.connection} {word}{where}{amount}")
        return sorted(found)
