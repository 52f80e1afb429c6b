"""The states that `sock_wait` waits for."""

from __future__ import annotations

import enum
import errno
import os
import select


class Event(enum.IntFlag):
    """States of a socket, several of which can hold at the same time."""

    READ = 1  # there are data, a connection to accept, or the end of the stream
    WRITE = 2  # there is room for data, or the connection is made
    HANGUP = 4  # the peer sends no more, or both directions have ended
    ERROR = 8  # the socket has an error, or a message in its error queue


# HANGUP is two events of poll(2): for one direction, which must be asked for, and for both.
_MASKS = {
    Event.READ: select.POLLIN,
    Event.WRITE: select.POLLOUT,
    Event.HANGUP: select.POLLHUP | select.POLLRDHUP,
    Event.ERROR: select.POLLERR,
}
_ALL = Event.READ | Event.WRITE | Event.HANGUP | Event.ERROR


def mask_of(events: int) -> int:
    """Return the events of poll(2) for *events*. Raises TypeError and ValueError."""
    if not isinstance(events, int):
        raise TypeError(f"events must be an Event, not {type(events).__name__!r}")
    if not events or events & ~int(_ALL):
        raise ValueError(f"events must be READ, WRITE, HANGUP, ERROR or some of them: {events!r}")
    return sum(mask for event, mask in _MASKS.items() if events & event)


def found_now(fd: int, mask: int) -> Event:
    """Return which events hold at *fd*, without waiting, and HANGUP and ERROR even if unasked.

    Raises OSError for a closed socket.
    """
    found = select.POLLNVAL
    if fd >= 0:
        poll = select.poll()
        poll.register(fd, mask)
        found = dict(poll.poll(0)).get(fd, 0)
    if found & select.POLLNVAL:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    events = Event(0)
    for event, part in _MASKS.items():
        if found & part:
            events |= event
    return events
