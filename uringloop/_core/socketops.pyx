"""The sock_* methods: socket calls on the user's own sockets.

Each one tries the system call first; when the socket is not ready it waits for a one-shot poll
and tries again. No buffer of the user's is ever lent to the kernel, and cancelling a call
cancels a poll: no byte is lost. The sockets stay the user's: nothing here closes one.
"""

import socket

from uringloop._core.loop cimport LoopCore
from uringloop._core.poll cimport PollOnce, poll_once
from uringloop._native.uring cimport POLLIN, POLLOUT


async def when_readable(LoopCore loop not None, sock, method, *args):
    """Return what *method* of *sock* does, as soon as there is something to read."""
    return await attempt(loop, sock, POLLIN, method, args)


async def when_writable(LoopCore loop not None, sock, method, *args):
    """Return what *method* of *sock* does, as soon as there is room to write."""
    return await attempt(loop, sock, POLLOUT, method, args)


async def attempt(LoopCore loop, sock, unsigned int mask, method, tuple args):
    cdef PollOnce waiter
    while True:
        try:
            # Looked up for each try, as asyncio does.
            return getattr(sock, method)(*args)
        except (BlockingIOError, InterruptedError):
            waiter = wait_for(loop, sock, mask)
        try:
            await waiter.future
        finally:
            waiter.finish()


async def sock_sendall(LoopCore loop not None, sock, data):
    cdef Py_ssize_t sent = 0
    try:
        view = memoryview(data).cast("B")
    except TypeError:
        # The socket says it in its own words, as in asyncio, which asks nobody else.
        sock.send(data)
        raise
    # An empty message is sent too: asyncio's first try is unconditional.
    while True:
        sent += await attempt(loop, sock, POLLOUT, "send", (view[sent:],))
        if sent >= len(view):
            return


async def sock_accept(LoopCore loop not None, sock):
    conn, address = await attempt(loop, sock, POLLIN, "accept", ())
    conn.setblocking(False)
    return conn, address


async def sock_connect(LoopCore loop not None, sock, address):
    """Connect *sock* to a resolved *address*."""
    cdef PollOnce waiter
    try:
        sock.connect(address)
        return
    except (BlockingIOError, InterruptedError):
        # In both cases the kernel goes on connecting.
        waiter = wait_for(loop, sock, POLLOUT)
    try:
        await waiter.future
    finally:
        waiter.finish()
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, f"Connect call failed {address}")


async def writable(LoopCore loop not None, int fd):
    """Wait until *fd*, whoever owns it, has room."""
    cdef PollOnce waiter = poll_once(loop, fd, POLLOUT)
    try:
        await waiter.future
    finally:
        waiter.finish()


cdef PollOnce wait_for(LoopCore loop, object sock, unsigned int mask):
    """Begin to wait for a socket, unless a transport owns it."""
    cdef int fd = sock.fileno()
    loop._check_no_transport(fd)
    return poll_once(loop, fd, mask)
