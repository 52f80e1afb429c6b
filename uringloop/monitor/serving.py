"""Serves clients in a thread of its own, for the monitor and for health over HTTP.

The thread is independent of the loops, so it answers while a loop is blocked. It sleeps while no
client wants anything and nothing is to be done from time to time. It takes a tenth of a processor
from the loops at most, however many clients there are and whatever they send, unless a single
answer takes more than 0.03 s of it.

A connection is in one state:

    READING ──a whole request, or one that is too long──> WRITING ──another is allowed──> READING
                                                             └──it was the last──> ENDING

A connection that is ENDING has sent everything. It discards what arrives until the client closes:
a close with unread bytes would destroy the answer on its way.

Each system call of this thread releases the GIL; if another thread computes, getting the GIL back
takes 5 ms. A request therefore takes few system calls: the sockets stay blocking, and each call
says that it does not wait.

The thread that serves owns the connections. Any thread may create and close a Server.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import logging
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterable

# The pause after each round of answers: a client that asks without pause costs 3 % of a core.
PAUSE_S = 0.005
# The part of a processor that the thread may use, and how many seconds of one at a time: a probe is
# answered at once, a flood is not.
SHARE = 0.1
BURST_S = 0.1
# The most that it pays back at a time, so that a probe is not kept waiting after a flood.
DEBT_S = 0.03
# Bytes of answers that clients have not read, of all together: the oldest such client is closed.
UNSENT_BYTES_MAX = 600_000
# New clients in one round: the loops run in the pause after it.
ACCEPTS_PER_ROUND = 8
# After so much work the other clients wait for the next round, for the same reason.
ROUND_S = 0.0005
# Bytes that are read at once.
READ_BYTES = 4096
DISCARD_BYTES = 65536
# How long a connection waits for the client's close.
ENDING_S = 1.0
# Time for the thread to end: it waits only for the GIL.
END_S = 5.0

logger = logging.getLogger("uringloop")

# struct ucred of SO_PEERCRED: process, user, group.
PEER = struct.Struct("3i")


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end of a UNIX socket."""
    pid, user, _ = PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return pid, user


class Answer:
    """What a client gets for a request, and whether it may send another."""

    def __init__(self, data: bytes, *, last: bool) -> None:
        self.data = data
        self.last = last


class Service:
    """What the clients of one listening socket may ask, and what they get."""

    # A longer request is refused.
    request_bytes_max: int
    # How long a client may take to send a request, and to read the answer.
    timeout_s: float
    clients_max: int

    def refusal_of(self, sock: socket.socket) -> bytes | None:
        """Return the answer to a client that may ask nothing; None if it may."""
        raise NotImplementedError

    def length_of(self, received: bytes) -> int:
        """Return the length of the first request in *received*, with its end; 0 if it is not whole.

        Raises nothing, whatever was received.
        """
        raise NotImplementedError

    def answer(self, request: bytes) -> Answer:
        """Return the answer to *request*, and raise nothing."""
        raise NotImplementedError

    def too_long(self) -> Answer:
        """Return the answer to a request of more than `request_bytes_max`."""
        raise NotImplementedError

    def too_many(self) -> bytes | None:
        """Return the answer to a client beyond `clients_max`; None disconnects the oldest one."""
        raise NotImplementedError


class State(enum.Enum):
    """What a connection does; the module's docstring has the transitions."""

    READING = 1
    WRITING = 2
    ENDING = 3


class Connection:
    """One client: its requests that are not answered, and the rest of the answer."""

    def __init__(self, service: Service, sock: socket.socket) -> None:
        self.service = service
        self.sock = sock
        self.state = State.READING
        self.received = b""
        self.unsent = b""
        self.last = False
        self.deadline = time.monotonic() + service.timeout_s

    @property
    def events(self) -> int:
        """What the connection waits for."""
        # Another request of a client that does not wait for answers may be here already.
        if self.state is State.WRITING or self.service.length_of(self.received):
            return select.POLLOUT
        return select.POLLIN

    def serve(self) -> bool:
        """Read or write once without blocking. Return whether the connection stays open."""
        try:
            if self.state is State.READING:
                return self._read()
            if self.state is State.WRITING:
                return self._write()
            return bool(self.sock.recv(DISCARD_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _read(self) -> bool:
        length = self.service.length_of(self.received)
        if not length:
            data = self.sock.recv(READ_BYTES, socket.MSG_DONTWAIT)
            if not data:
                return False
            self.received += data
            length = self.service.length_of(self.received)
        if (length or len(self.received)) > self.service.request_bytes_max:
            self._start_writing(self.service.too_long())
        elif length:
            request, self.received = self.received[:length], self.received[length:]
            self._start_writing(self.service.answer(request))
        else:
            return True
        return self._write()

    def _start_writing(self, answer: Answer) -> None:
        assert self.state is State.READING
        self.state = State.WRITING
        self.unsent, self.last = answer.data, answer.last
        self.deadline = time.monotonic() + self.service.timeout_s

    def _write(self) -> bool:
        sent = self.sock.send(self.unsent, socket.MSG_DONTWAIT)
        self.unsent = self.unsent[sent:]
        if not self.unsent:
            self._end_writing()
        return True

    def _end_writing(self) -> None:
        assert self.state is State.WRITING
        if not self.last:
            self.state = State.READING
            return
        self.state = State.ENDING
        self.received = b""
        self.deadline = time.monotonic() + ENDING_S
        self.sock.shutdown(socket.SHUT_WR)


class Server:
    """Listening sockets, each with its service, and the thread that serves their clients.

    *tick_s* is how often the thread calls `tick`; None is never.
    """

    def __init__(self, name: str, tick_s: float | None = None) -> None:
        self.pid = os.getpid()
        self.name = name
        self.listeners: dict[socket.socket, Service] = {}
        # In the order in which they came.
        self.clients: dict[int, Connection] = {}
        self.tick_s = tick_s
        self.next_tick = time.monotonic() + (tick_s or 0)
        self.ending = False
        self.ended = threading.Event()
        # A descriptor that is given up for a client when no other is left.
        self.spare: int | None = None
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if that is not possible; call `close` then."""
        self._keep_spare()
        self.thread.start()

    def tick(self) -> None:
        """Do what the server does from time to time, in its thread."""

    def close(self) -> None:
        """End the thread, and close all sockets."""
        self.ending = True
        self.ended.set()
        for sock in list(self.listeners):
            # Wakes the thread from poll(). The thread may have closed it meanwhile.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if self.thread.ident is not None:
            self.thread.join(END_S)
        self.close_descriptors()

    def close_descriptors(self) -> None:
        """Close the descriptors. A forked child does only this, for the rest is its parent's."""
        for sock in self.listeners:
            sock.close()
        self.listeners.clear()
        self.disconnect_all()
        spare, self.spare = self.spare, None
        if spare is not None:
            os.close(spare)

    def disconnect_all(self) -> None:
        """Close all connections."""
        for client in list(self.clients.values()):
            client.sock.close()
        self.clients.clear()

    def _serve(self) -> None:
        # The kernel must deliver the program's signals to the program's own threads.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        credit_s = BURST_S
        at, used = time.monotonic(), time.thread_time()
        while not self.ending:
            self._try_round()
            at, before = time.monotonic(), at
            used, used_before = time.thread_time(), used
            credit_s += (at - before) * SHARE - (used - used_before)
            credit_s = max(-DEBT_S, min(BURST_S, credit_s))
            self.ended.wait(max(PAUSE_S, -credit_s / SHARE))

    def _try_round(self) -> None:
        try:
            self._round()
        except BaseException:
            # A method of the program's own classes, or of a log handler, can raise anything. The
            # end of this thread would look like the end of the process.
            if not self.ending:
                self.disconnect_all()
                with contextlib.suppress(BaseException):
                    logger.exception("%s goes on after an error", self.name)

    def _round(self) -> None:
        """Wait for a client or a timeout, and serve those that are ready once."""
        self._keep_spare()
        ready = self._wait()
        now = time.monotonic()
        latest = now + ROUND_S
        for fd in ready:
            if fd in self.clients and not self.clients[fd].serve():
                self.clients.pop(fd).sock.close()
            if time.monotonic() > latest:
                break
        self._limit_unsent()
        for fd, client in list(self.clients.items()):
            if client.deadline <= now:
                self.clients.pop(fd).sock.close()
        # Accept last: a new client may get the descriptor number of one that was closed above.
        for sock in [one for one in self.listeners if one.fileno() in ready]:
            self._accept(sock, self.listeners[sock], latest)
        if self.tick_s is not None and now >= self.next_tick:
            self.next_tick = now + self.tick_s
            self.tick()

    def _wait(self) -> list[int]:
        """Return the descriptors that are ready."""
        poll = select.poll()
        for sock in self.listeners:
            poll.register(sock, select.POLLIN)
        for fd, client in self.clients.items():
            poll.register(fd, client.events)
        times = [client.deadline for client in self.clients.values()]
        if self.tick_s is not None:
            times.append(self.next_tick)
        delay = max(0.0, min(times) - time.monotonic()) * 1000 if times else None
        return [fd for fd, _ in poll.poll(delay)]

    def _accept(self, listener: socket.socket, service: Service, latest: float) -> None:
        # One at least: beside a loop that computes a single system call may take longer.
        for _ in range(ACCEPTS_PER_ROUND):
            sock = self._accepted(listener)
            if sock is None:
                return
            self._admit(sock, service)
            if self.ending or time.monotonic() > latest:
                return

    def _accepted(self, listener: socket.socket) -> socket.socket | None:
        """Return the socket of the next client, or None if there is none."""
        try:
            return listener.accept()[0]
        except OSError as exc:
            if exc.errno not in (errno.EMFILE, errno.ENFILE) or self.spare is None:
                return None
        # No descriptor is left, though the loops may be well: use the one that is kept for this.
        os.close(self.spare)
        self.spare = None
        with contextlib.suppress(OSError):
            return listener.accept()[0]
        return None

    def _keep_spare(self) -> None:
        if self.spare is None:
            with contextlib.suppress(OSError):
                self.spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _admit(self, sock: socket.socket, service: Service) -> None:
        """Make a connection of the new client, and read what it has sent already."""
        if sock.gettimeout() is not None:
            # The program's default: Python would wait for so long, whatever a call says.
            sock.settimeout(None)
        client = Connection(service, sock)
        refusal = service.refusal_of(sock)
        if refusal is None and self._count(service) >= service.clients_max:
            refusal = service.too_many()
            if refusal is None:
                self._disconnect_oldest(service)
        if refusal is None:
            self.clients[sock.fileno()] = client
            if not client.serve():
                self.clients.pop(sock.fileno()).sock.close()
            self._limit_unsent()
            return
        # The client may have disconnected.
        with sock, contextlib.suppress(OSError):
            sock.send(refusal, socket.MSG_DONTWAIT)

    def _limit_unsent(self) -> None:
        """Disconnect the oldest clients that do not read their answers, if these are too long."""
        unread = {fd: len(client.unsent) for fd, client in self.clients.items() if client.unsent}
        total = sum(unread.values())
        # The last one may be a single long answer that is about to be read.
        for fd in list(unread)[:-1]:
            if total > UNSENT_BYTES_MAX:
                total -= unread[fd]
                self.clients.pop(fd).sock.close()

    def _of(self, service: Service) -> Iterable[int]:
        return (fd for fd, one in self.clients.items() if one.service is service)

    def _count(self, service: Service) -> int:
        return sum(1 for _ in self._of(service))

    def _disconnect_oldest(self, service: Service) -> None:
        self.clients.pop(next(iter(self._of(service)))).sock.close()
