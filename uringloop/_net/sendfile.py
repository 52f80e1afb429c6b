"""sendfile(2): from a file to a socket without a copy through the program.

The checks, the fallback for what sendfile(2) refuses, and all the wording are asyncio's own
methods; here is what they call: the system call in slices, with waits for room in between.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
from asyncio import SendfileNotAvailableError, unix_events
from asyncio.trsock import TransportSocket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from uringloop._files import operation
from uringloop._net import sock_calls
from uringloop._net.stream import StreamTransport

if TYPE_CHECKING:
    from uringloop.loop import Loop

Descriptor = socket.socket | TransportSocket

# Bound here, before a tool that looks for blocking calls replaces it: as in servers.py.
_sendfile = os.sendfile

# What one sendfile(2) is asked for: the socket takes less, and the loop must have its turn.
SLICE = 1024 * 1024

# By this asyncio moves a file that it has sent. Since gh-150107 (3.16, 3.14.10) it does so even if
# nothing has gone, and the function is not told how much has.
_MOVE = getattr(unix_events._UnixSelectorEventLoop, "_sock_sendfile_update_filepos", None)
ALWAYS_MOVES = _MOVE is None or "total_sent" not in _MOVE.__code__.co_varnames


async def to_socket(
    loop: Loop, sock: socket.socket, file: Any, offset: int, count: int | None
) -> int:
    """Send a file to a socket of the program's; see `to_descriptor`."""
    loop._check_no_transport(sock.fileno())
    return await to_descriptor(
        sock, file, offset, count, room=lambda: sock_calls.writable(loop, sock.fileno())
    )


async def to_transport(
    loop: Loop, transport: StreamTransport, file: Any, offset: int, count: int | None
) -> int:
    """The same on a transport, after what was written before."""
    sock = transport.get_extra_info("socket")
    assert isinstance(sock, TransportSocket)
    loop._check_sendfile_params(sock, file, offset, count)
    reading = transport.is_reading()
    # Refused while another sendfile is in progress, which must not be disturbed.
    written = transport._wait_empty()
    transport.pause_reading()
    try:
        await written
        return await to_descriptor(
            sock, file, offset, count, room=transport._wait_room, gone=loop._count_sent
        )
    finally:
        transport._end_wait_empty()
        if reading:
            transport.resume_reading()


async def to_descriptor(
    sock: Descriptor,
    file: Any,
    offset: int,
    count: int | None,
    *,
    room: Callable[[], Awaitable[None]],
    gone: Callable[[int], None] | None = None,
) -> int:
    """Send *count* bytes of *file* from *offset*, or all there are; return how many went.

    *room* waits until the socket can take more, *gone* is told of what it has taken. Raises
    SendfileNotAvailableError when the kernel can not do it and nothing has gone.
    """
    try:
        number = file.fileno()
    except (AttributeError, io.UnsupportedOperation):
        raise SendfileNotAvailableError("not a regular file") from None
    try:
        size = os.fstat(number).st_size
    except OSError:
        raise SendfileNotAvailableError("not a regular file") from None
    if not (count or size):
        return 0
    total = since_wait = 0
    try:
        while not count or total < count:
            wanted = min(SLICE, count - total) if count else SLICE
            if not operation.is_cached(number, offset + total, wanted):
                # The disk is waited for by a worker of the kernel, not by the loop.
                await operation.read_ahead(number, offset + total, wanted)
            try:
                sent = _sendfile(sock.fileno(), number, offset + total, wanted)
            except (BlockingIOError, InterruptedError):
                await room()
                since_wait = 0
                continue
            except OSError as exc:
                if total == 0:
                    raise SendfileNotAvailableError("os.sendfile call failed") from exc
                if exc.errno == errno.ENOTCONN and type(exc) is not ConnectionError:
                    raise ConnectionError("socket is not connected", errno.ENOTCONN) from exc
                raise
            if sent == 0:
                break
            total += sent
            if gone is not None:
                gone(sent)
            since_wait += sent
            if since_wait >= SLICE:
                # A reader that keeps up must not keep the loop.
                await room()
                since_wait = 0
    finally:
        # Wherever this ends: the file's position tells how much has gone. A pipe has none.
        if total or ALWAYS_MOVES:
            with contextlib.suppress(OSError):
                os.lseek(number, offset + total, os.SEEK_SET)
    return total
