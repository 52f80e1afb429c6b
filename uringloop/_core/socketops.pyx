"""The sock_* methods: socket calls on the user's own sockets.

Each one tries the system call first; when the socket is not ready it waits for a one-shot poll
and tries again. No buffer of the user's is ever lent to the kernel, and cancelling a call
cancels a poll: no byte is lost. The sockets stay the user's: nothing here closes one.
"""

import socket

from uringloop._core.loop cimport LoopCore
from uringloop._core.poll cimport PollOnce, poll_once
from uringloop._native.uring cimport POLLIN, POLLOUT


async def wait_ready(LoopCore loop, int fd, unsigned int mask):
    """Wait until *fd* is ready for POLLIN or POLLOUT."""
    cdef PollOnce waiter
    loop._check_no_transport(fd)
    waiter = poll_once(loop, fd, mask)
    try:
        await waiter.future
    finally:
        waiter.finish()


async def sock_recv(LoopCore loop not None, sock, n):
    while True:
        try:
            return sock.recv(n)
        except (BlockingIOError, InterruptedError):
            pass
        await wait_ready(loop, sock.fileno(), POLLIN)


async def sock_recv_into(LoopCore loop not None, sock, buf):
    while True:
        try:
            return sock.recv_into(buf)
        except (BlockingIOError, InterruptedError):
            pass
        await wait_ready(loop, sock.fileno(), POLLIN)


async def sock_recvfrom(LoopCore loop not None, sock, bufsize):
    while True:
        try:
            return sock.recvfrom(bufsize)
        except (BlockingIOError, InterruptedError):
            pass
        await wait_ready(loop, sock.fileno(), POLLIN)


async def sock_recvfrom_into(LoopCore loop not None, sock, buf, nbytes):
    while True:
        try:
            return sock.recvfrom_into(buf, nbytes)
        except (BlockingIOError, InterruptedError):
            pass
        await wait_ready(loop, sock.fileno(), POLLIN)


async def sock_sendall(LoopCore loop not None, sock, data):
    cdef Py_ssize_t sent = 0
    cdef Py_ssize_t size
    view = memoryview(data).cast("B")
    size = len(view)
    # An empty message is sent too: asyncio's first try is unconditional.
    while True:
        try:
            sent += sock.send(view[sent:] if sent else view)
            if sent >= size:
                return
        except (BlockingIOError, InterruptedError):
            pass
        await wait_ready(loop, sock.fileno(), POLLOUT)


async def sock_sendto(LoopCore loop not None, sock, data, address):
    while True:
        try:
            return sock.sendto(data, address)
        except (BlockingIOError, InterruptedError):
            pass
        await wait_ready(loop, sock.fileno(), POLLOUT)


async def sock_accept(LoopCore loop not None, sock):
    while True:
        try:
            conn, address = sock.accept()
            conn.setblocking(False)
            return conn, address
        except (BlockingIOError, InterruptedError):
            pass
        await wait_ready(loop, sock.fileno(), POLLIN)


async def sock_connect(LoopCore loop not None, sock, address):
    """Connect *sock* to a resolved *address*."""
    try:
        sock.connect(address)
        return
    except (BlockingIOError, InterruptedError):
        # In both cases the kernel goes on connecting.
        pass
    await wait_ready(loop, sock.fileno(), POLLOUT)
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, f"Connect call failed {address}")
