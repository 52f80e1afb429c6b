"""Functions for a program's own sockets: messages with ancillary data, descriptors, and waits.

On a uringloop.Loop each function calls the loop's method of the same name with the prefix `sock_`.
On any other loop the function does the same work, and waits with `add_reader()` for an epoll
instance of its own: a reader or a writer that the program has added for the socket stays in place.

Each call tries the system call first, and waits only if the socket is not ready. A call that is
cancelled has therefore received nothing: bytes, messages and descriptors are still in the socket.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from uringloop._net.argument_checks import check_nonblocking, check_socket
from uringloop._net.sock_calls import PAUSE_MAX, PAUSE_MIN
from uringloop._net.socket_events import Event, found_now, mask_of
from uringloop._net.socket_messages import (
    Ancillary,
    ReceivedFds,
    mask_for,
    message_of,
    received_fds,
    repeatable,
    space_for,
)

__all__ = [
    "ERROR",
    "HANGUP",
    "READ",
    "WRITE",
    "Event",
    "recv_fds",
    "recvmsg",
    "recvmsg_into",
    "send_fds",
    "sendmsg",
    "wait",
]

READ = Event.READ
WRITE = Event.WRITE
HANGUP = Event.HANGUP
ERROR = Event.ERROR

Loop = asyncio.AbstractEventLoop


async def recvmsg(
    loop: Loop, sock: socket.socket, bufsize: int, ancbufsize: int = 0, flags: int = 0
) -> tuple[bytes, list[Ancillary], int, Any]:
    """Return data, ancillary data, flags and the sender's address, as `socket.recvmsg` does."""
    result: tuple[bytes, list[Ancillary], int, Any] = await _call(
        loop, sock, mask_for(flags), "recvmsg", bufsize, ancbufsize, flags
    )
    return result


async def recvmsg_into(
    loop: Loop, sock: socket.socket, buffers: Iterable[Any], ancbufsize: int = 0, flags: int = 0
) -> tuple[int, list[Ancillary], int, Any]:
    """Receive into *buffers* as `socket.recvmsg_into` does, which returns a size, not data."""
    result: tuple[int, list[Ancillary], int, Any] = await _call(
        loop, sock, mask_for(flags), "recvmsg_into", repeatable(buffers), ancbufsize, flags
    )
    return result


async def sendmsg(
    loop: Loop,
    sock: socket.socket,
    buffers: Iterable[Any],
    ancdata: Iterable[Ancillary] = (),
    flags: int = 0,
    address: Any = None,
) -> int:
    """Send as `socket.sendmsg` does; return how many bytes were sent, which may be a part."""
    arguments = (repeatable(buffers), repeatable(ancdata), flags, address)
    sent: int = await _call(loop, sock, select.POLLOUT, "sendmsg", *arguments)
    return sent


async def send_fds(
    loop: Loop,
    sock: socket.socket,
    buffers: Iterable[Any],
    fds: Sequence[int],
    flags: int = 0,
    address: Any = None,
) -> int:
    """Send the descriptors *fds* with *buffers*. They must stay open until this returns."""
    return await sendmsg(loop, sock, buffers, message_of(fds), flags, address)


async def recv_fds(
    loop: Loop, sock: socket.socket, bufsize: int, maxfds: int, flags: int = 0
) -> ReceivedFds:
    """Receive data and up to *maxfds* descriptors, which the caller must close.

    Returns the data, the descriptors, flags and the sender's address.
    """
    data, ancdata, told, address = await recvmsg(loop, sock, bufsize, space_for(maxfds), flags)
    return data, received_fds(ancdata), told, address


async def wait(loop: Loop, sock: socket.socket, events: int) -> Event:
    """Wait until *sock* is in one of the states *events*; return the states that it is in.

    HANGUP and ERROR are returned even if *events* does not have them. Raises ValueError if *events*
    is empty or has an unknown bit.
    """
    own = _own(loop, "sock_wait")
    if own is not None:
        return Event(await own(sock, events))
    mask = mask_of(events)
    _check(loop, sock)
    while not (found := found_now(sock.fileno(), mask)):
        await _ready(loop, sock, mask)
    return found


def _own(loop: Loop, name: str) -> Callable[..., Awaitable[Any]] | None:
    """Return the loop's method *name*, if it has one."""
    return getattr(loop, name, None)


async def _call(loop: Loop, sock: socket.socket, mask: int, method: str, *arguments: Any) -> Any:
    """Call the loop's method, or else *method* of *sock* until it need not wait."""
    own = _own(loop, f"sock_{method}")
    if own is not None:
        return await own(sock, *arguments)
    return await _attempt(loop, sock, mask, method, *arguments)


# ── other loops ──────────────────────────────────────────────────────────────────────────────


def _check(loop: Loop, sock: socket.socket) -> None:
    check_socket(sock)
    if loop.get_debug():
        check_nonblocking(sock)


async def _attempt(loop: Loop, sock: socket.socket, mask: int, method: str, *arguments: Any) -> Any:
    """Call *method* of *sock* until it need not wait."""
    _check(loop, sock)
    pause = 0.0
    while True:
        try:
            return getattr(sock, method)(*arguments)
        except (BlockingIOError, InterruptedError):
            pass  # Wait below, outside the handler.
        if pause:
            # The poll has reported a socket on which the call must wait, as for room at a receiver.
            await asyncio.sleep(pause)
        await _ready(loop, sock, mask)
        pause = min(max(2 * pause, PAUSE_MIN), PAUSE_MAX)


async def _ready(loop: Loop, sock: socket.socket, mask: int) -> None:
    """Wait until poll(2) would report one of the events *mask* of *sock*."""
    ready = loop.create_future()
    with select.epoll() as poll:
        poll.register(sock, mask)
        loop.add_reader(poll.fileno(), _resolve, ready)
        try:
            await ready
        finally:
            loop.remove_reader(poll.fileno())


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
