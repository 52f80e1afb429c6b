"""sendfile(2): from a file to a socket without a copy through the program.

The checks, the fallback without sendfile(2) and all messages come from asyncio's own methods. They
call this module, which sends in slices and waits for room between them.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
from asyncio import SendfileNotAvailableError
from asyncio.trsock import TransportSocket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from uringloop._cpython import stdlib
from uringloop._net import page_cache, sock_calls
from uringloop._net.stream_transport import StreamTransport

if TYPE_CHECKING:
    from uringloop.loop import Loop

Descriptor = socket.socket | TransportSocket

# Bound at import, before a tool that detects blocking calls replaces it (see servers.py).
_sendfile = os.sendfile

# Bytes of one sendfile(2): other connections are served in between.
SLICE = 1024 * 1024


async def to_socket(
    loop: Loop, sock: socket.socket, file: Any, offset: int, count: int | None
) -> int:
    """Send a file to a socket of the program; see `to_descriptor`."""
    loop._check_no_transport(sock.fileno())
    return await to_descriptor(
        loop,
        sock,
        file,
        offset,
        count,
        wait_for_room=lambda: sock_calls.writable(loop, sock.fileno()),
    )


async def to_transport(
    loop: Loop, transport: StreamTransport, file: Any, offset: int, count: int | None
) -> int:
    """Send a file to a transport, behind all data written before; see `to_descriptor`."""
    sock = transport.get_extra_info("socket")
    assert isinstance(sock, TransportSocket)
    loop._check_sendfile_params(sock, file, offset, count)
    reading = transport.is_reading()
    # Raises RuntimeError while another sendfile is in progress; nothing is changed then.
    written = transport._wait_empty()
    transport.pause_reading()
    try:
        await written
        return await to_descriptor(
            loop,
            sock,
            file,
            offset,
            count,
            wait_for_room=transport._wait_room,
            on_sent=loop._count_sent,
        )
    finally:
        transport._end_wait_empty()
        if reading:
            transport.resume_reading()


async def to_descriptor(
    loop: Loop,
    sock: Descriptor,
    file: Any,
    offset: int,
    count: int | None,
    *,
    wait_for_room: Callable[[], Awaitable[None]],
    on_sent: Callable[[int], None] | None = None,
) -> int:
    """Send *count* bytes of *file* from *offset*, or all; return the number of bytes sent.

    *wait_for_room* waits until the socket has room; *on_sent* is called with the number of bytes
    that each system call has sent.
    Raises SendfileNotAvailableError if the kernel refuses and nothing was sent.
    """
    fd, size = _descriptor_and_size(file)
    if not (count or size):
        return 0
    total = since_wait = 0
    process = os.getpid()
    try:
        while not count or total < count:
            wanted = min(SLICE, count - total) if count else SLICE
            if not page_cache.has(fd, offset + total, wanted):
                # A worker thread of the kernel waits for the disk, not the loop.
                await page_cache.read_ahead(loop, fd, offset + total, wanted)
            try:
                sent = _sendfile(sock.fileno(), fd, offset + total, wanted)
            except (BlockingIOError, InterruptedError):
                await wait_for_room()
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
            if on_sent is not None:
                on_sent(sent)
            since_wait += sent
            if since_wait >= SLICE:
                # A fast reader must not keep other connections waiting.
                await wait_for_room()
                since_wait = 0
    finally:
        # Also after an exception.
        if total or stdlib.SENDFILE_ALWAYS_MOVES:
            _set_position(fd, offset + total, process)
    return total


def _descriptor_and_size(file: Any) -> tuple[int, int]:
    try:
        fd: int = file.fileno()
    except (AttributeError, io.UnsupportedOperation):
        raise SendfileNotAvailableError("not a regular file") from None
    try:
        return fd, os.fstat(fd).st_size
    except OSError:
        raise SendfileNotAvailableError("not a regular file") from None


def _set_position(fd: int, position: int, process: int) -> None:
    """Set the position that says how much was sent. A pipe has none."""
    # A forked child destroys its copy of this call, but the file's position is its parent's, too.
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            os.lseek(fd, position, os.SEEK_SET)
