"""The sock_* methods: socket calls on the program's own sockets.

Each method tries the system call first. If the socket is not ready, it waits for a one-shot poll
and tries again. No operation refers to a buffer of the program, and cancelling a call cancels a
poll: no byte is lost. The sockets remain the program's: nothing here closes one. A socket that the
program closes while a call waits stays open until the call has ended.

The loop's methods `sock_recv`, `sock_recv_into` and `sock_sendall`, which programs call for every
message, and `sock_connect` are these functions, one coroutine each. The first three use plain
system calls if the socket is exactly a socket.socket; after an interruption the socket's own method
repeats the call, and runs signal handlers in between.
"""

import asyncio
import socket

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongAndOverflow
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.string cimport strlen

from uringloop._cpython.pyapi cimport get_attribute
from uringloop._kernel.errors cimport EAGAIN, EINTR, errno, os_error
from uringloop._kernel.libc cimport (
    AF_INET,
    AF_INET6,
    AF_UNIX,
    AF_UNSPEC,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    POLLIN,
    POLLOUT,
    inet_pton,
    recv,
    send,
)
from uringloop._kernel.sockets cimport uring_may_send
from uringloop._transport.poll_once cimport PollOnce, poll_once
from uringloop._transport.transport cimport own
from uringloop._turn.turn cimport SCRATCH_SIZE, LoopCore

from uringloop._net.resolver import ensure_resolved


# Seconds until the next attempt on a UNIX socket whose peer has no room, for a connection or a
# datagram: no poll reports when there is room again. The second pause is twice as long, and so on.
PAUSE_MIN = 0.001
PAUSE_MAX = 0.05

# The class whose methods the system calls replace; a subclass may override them.
cdef object PLAIN = socket.socket
# The attribute of the C base class, which socket.socket hides by a property of the same name.
cdef object FAMILY = socket.SocketType.family


# ── receiving and sending ────────────────────────────────────────────────────────────────────


@cython.binding(True)
async def sock_recv(LoopCore self not None, sock, n):
    """Receive up to *n* bytes."""
    cdef PollOnce waiter = None
    try:
        while (data := try_recv(self, sock, n)) is None:
            waiter = wait_for(self, sock, POLLIN, waiter)
            await waiter.future
        return data
    finally:
        finish(waiter)


@cython.binding(True)
async def sock_recv_into(LoopCore self not None, sock, buf):
    """Receive into *buf*; return the number of bytes."""
    cdef PollOnce waiter = None
    try:
        while (count := try_recv_into(self, sock, buf)) is None:
            waiter = wait_for(self, sock, POLLIN, waiter)
            await waiter.future
    finally:
        finish(waiter)
    return count


@cython.binding(True)
async def sock_sendall(LoopCore self not None, sock, data):
    """Send all of *data*, which must not change until this returns."""
    cdef PollOnce waiter = None
    cdef Py_ssize_t sent = 0
    cdef Py_ssize_t size
    check(self, sock)
    if type(data) is bytes and type(sock) is PLAIN:
        view = data
        size = len(data)
    else:
        try:
            view = memoryview(data).cast("B")
        except TypeError:
            # As in asyncio, the TypeError is the socket's own.
            sock.send(data)
            raise
        size = len(view)
    # An empty message is sent, too: asyncio's first attempt is unconditional.
    try:
        while True:
            count = try_send(sock, view, sent)
            if count is not None:
                sent += count
                if sent >= size:
                    return
                continue
            waiter = wait_for(self, sock, POLLOUT, waiter)
            await waiter.future
    finally:
        finish(waiter)


cdef int check(LoopCore loop, object sock) except -1:
    """Raise asyncio's exceptions for an SSL socket and, in debug mode, for a blocking one."""
    loop.check_owner()
    loop.ring.check_not_forked()
    if type(sock) is not PLAIN or loop.in_debug_mode():
        loop._check_sock(sock)
    return 0


cdef int checked_fd(LoopCore loop, object sock) except -2:
    """Return the descriptor of a socket.socket, or -1 for another class, whose methods are used."""
    check(loop, sock)
    return sock.fileno() if type(sock) is PLAIN else -1


cdef int finish(PollOnce waiter) except -1:
    """End the wait of a call, if it has one."""
    return 0 if waiter is None else waiter.finish()


cdef object try_recv(LoopCore loop, object sock, object n):
    """Return the bytes that the socket holds, or None if it holds none yet."""
    cdef Py_ssize_t res
    cdef long wanted = 0
    cdef int too_large = 0
    cdef int fd = checked_fd(loop, sock)
    cdef char *scratch
    if type(sock) is PLAIN and type(n) is int:
        wanted = PyLong_AsLongAndOverflow(n, &too_large)
    # A larger receive is passed to socket.recv().
    if 0 < wanted <= SCRATCH_SIZE:
        scratch = loop.scratch_memory()
        res = recv(fd, scratch, wanted, MSG_DONTWAIT)
        if res >= 0:
            return PyBytes_FromStringAndSize(scratch, res)
        if errno == EAGAIN:
            return None
        if errno != EINTR:
            raise os_error(-errno, "")
    try:
        return sock.recv(n)
    except (BlockingIOError, InterruptedError):
        return None


cdef bint is_plain_buffer(object buf) except -1:
    """Return whether recv(2) can write into *buf*; for other objects sock.recv_into() raises."""
    if type(buf) is memoryview:
        return buf.c_contiguous and not buf.readonly
    return type(buf) is bytearray


cdef object try_recv_into(LoopCore loop, object sock, object buf):
    """Return the number of bytes received, or None if the socket holds none yet."""
    cdef Py_buffer view
    cdef Py_ssize_t res = -1
    cdef int error = EINTR
    cdef int fd = checked_fd(loop, sock)
    if type(sock) is PLAIN and is_plain_buffer(buf):
        PyObject_GetBuffer(buf, &view, PyBUF_WRITABLE)
        if view.len:
            res = recv(fd, view.buf, view.len, MSG_DONTWAIT)
            error = errno if res < 0 else 0
        PyBuffer_Release(&view)
        if res >= 0:
            return res
        if error == EAGAIN:
            return None
        if error != EINTR:
            raise os_error(-error, "")
    try:
        return sock.recv_into(buf)
    except (BlockingIOError, InterruptedError):
        return None


cdef object try_send(object sock, object data, Py_ssize_t sent):
    """Return how many bytes of *data* behind *sent* were sent, or None if the socket is full."""
    cdef Py_buffer view
    cdef Py_ssize_t res = -1
    cdef int error = EINTR
    if type(sock) is PLAIN:
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        res = send(
            sock.fileno(), <char*>view.buf + sent, view.len - sent, MSG_DONTWAIT | MSG_NOSIGNAL)
        error = errno if res < 0 else 0
        PyBuffer_Release(&view)
        if res >= 0:
            return res
        if error == EAGAIN:
            return None
        if error != EINTR:
            raise os_error(-error, "")
    try:
        return sock.send(data[sent:])
    except (BlockingIOError, InterruptedError):
        return None


# ── accepting, connecting, waiting ───────────────────────────────────────────────────────────


def when_readable(LoopCore loop not None, sock, method, *args):
    """Return a coroutine that calls *method* of *sock* when it is readable."""
    return attempt(loop, sock, POLLIN, method, args)


def when_writable(LoopCore loop not None, sock, method, *args):
    """Return a coroutine that calls *method* of *sock* when it is writable."""
    return attempt(loop, sock, POLLOUT, method, args)


async def attempt(LoopCore loop, sock, unsigned int mask, method, tuple args):
    """Call *method* of *sock*; while it would block, wait until a poll reports *mask*."""
    cdef PollOnce waiter = None
    cdef double pause = PAUSE_MIN
    try:
        while True:
            try:
                # Looked up for each attempt, as in asyncio.
                return getattr(sock, method)(*args)
            except (BlockingIOError, InterruptedError):
                pass  # Wait below, outside the handler.
            if waiter is not None and mask != POLLIN:
                # The poll has reported room in the socket, but its receiver's queue is full; or an
                # error, but its queue of errors is empty.
                await asyncio.sleep(pause)
                pause = longer(pause)
            waiter = wait_for(loop, sock, mask, waiter)
            await waiter.future
    finally:
        finish(waiter)


cdef double longer(double pause) noexcept:
    return min(2 * pause, PAUSE_MAX)


async def sock_accept(LoopCore loop not None, sock):
    conn, address = await attempt(loop, sock, POLLIN, "accept", ())
    conn.setblocking(False)
    return conn, address


@cython.binding(True)
async def sock_connect(LoopCore self not None, sock, address):
    """Connect *sock* to *address*, whose host and port are resolved if they are not numeric."""
    cdef PollOnce waiter
    cdef double pause = PAUSE_MIN
    cdef int family
    check(self, sock)
    family = family_of(sock)
    if (family == AF_INET or family == AF_INET6) and not is_numeric(family, address):
        infos = await ensure_resolved(
            self, address, family=sock.family, type=sock.type, proto=sock.proto)
        if not infos:
            # asyncio raises IndexError here; this is the message of create_connection().
            raise OSError("getaddrinfo() returned empty list")
        address = infos[0][4]
    while True:
        try:
            sock.connect(address)
            return
        except InterruptedError:
            # The kernel goes on connecting, as after EINPROGRESS.
            break
        except BlockingIOError as exc:
            if exc.errno != EAGAIN:
                break
            # Nothing has begun: the listener's backlog is full, or no local port is free.
            if family != AF_UNIX:
                raise
        await asyncio.sleep(pause)
        pause = longer(pause)
    waiter = wait_for(self, sock, POLLOUT, None)
    try:
        await waiter.future
        while sock.fileno() >= 0 and not uring_may_send(sock.fileno()):
            # The ring believes the wake-up of a vsock, which comes when the request has left.
            waiter.wait_again()
            await waiter.future
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    finally:
        waiter.finish()
    if error:
        raise OSError(error, f"Connect call failed {address}")


cdef bint is_numeric(int family, object address) except -1:
    """Return whether *address* is as getaddrinfo() would return it: a numeric host, and a port."""
    cdef Py_ssize_t size = 0
    cdef const char *host
    cdef char parsed[16]
    cdef Py_ssize_t index
    if type(address) is not tuple or len(<tuple>address) != (2 if family == AF_INET else 4):
        return False
    for index in range(1, len(<tuple>address)):
        if type((<tuple>address)[index]) is not int:
            return False
    if type((<tuple>address)[0]) is not str:
        return False
    host = PyUnicode_AsUTF8AndSize((<tuple>address)[0], &size)
    # A host with a null character is not numeric.
    return strlen(host) == <size_t>size and inet_pton(family, host, parsed) == 1


cdef int family_of(object sock) except -1:
    """Return the address family of *sock*: AF_INET, AF_INET6, AF_UNIX or another number.

    The property `family` of socket.socket turns the number into an enum, which takes 1 us.
    """
    if type(sock) is PLAIN:
        return own(get_attribute(FAMILY, sock))
    family = sock.family
    for known in (AF_INET, AF_INET6, AF_UNIX):
        if family == known:
            return known
    return AF_UNSPEC


async def when_found(LoopCore loop not None, sock, unsigned int mask, find):
    """Return what *find* returns for *sock* and *mask*, as soon as that is not 0."""
    cdef PollOnce waiter = None
    try:
        while not (found := find(sock.fileno(), mask)):
            waiter = wait_for(loop, sock, mask, waiter)
            await waiter.future
        return found
    finally:
        finish(waiter)


async def writable(LoopCore loop not None, int fd):
    """Wait until *fd* has room. A transport may own it."""
    cdef PollOnce waiter = poll_once(loop, fd, POLLOUT)
    try:
        await waiter.future
    finally:
        waiter.finish()


cdef PollOnce wait_for(LoopCore loop, object sock, unsigned int mask, PollOnce waiter):
    """Begin to wait for *sock*, with the *waiter* of this call if it has one.

    Raises RuntimeError if a transport owns the socket.
    """
    cdef int fd = sock.fileno()
    if loop.fd_table.has(fd):
        loop._check_no_transport(fd)
    if waiter is not None:
        waiter.wait_again()
        return waiter
    waiter = poll_once(loop, fd, mask)
    waiter.keep_open(sock)
    return waiter
