"""The other end of each kind of connection: a plain socket or pipe, used without a loop.

What a peer does has happened in the kernel when its method returns. UNIX sockets and pipes are
so by nature; over TCP a peer waits until the other socket has got what was sent, by the counters of
that socket, which also count what a loop has taken from it already.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable

from support.roles import reset

# Everything that is sent is a part of this.
PATTERN = bytes(range(251)) * 2000

# Within this time loopback delivers, unless the receiver's window is full.
ARRIVES_S = 0.2

# struct tcp_info: the state is the first byte, tcpi_bytes_received a __u64 at 128.
TCP_INFO_SIZE = 136
RECEIVED_AT = 128
OPEN_STATES = (1, 4, 5)
RESET_STATE = 7


class Peer:
    """A socket or a descriptor of a pipe."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sent = 0
        self.sent_eof = False
        self.has_reset = False
        self.ended = False
        # The other end over TCP, once the loop has told it.
        self.other: Callable[[], int] = lambda: -1
        sock.setblocking(False)

    def send(self, size: int) -> None:
        start = self.sent % 251
        self._send(PATTERN[start : start + size])
        self._arrived(lambda state, received: received >= self.sent)

    def _send(self, data: bytes) -> None:
        # The other end may be closed, or its buffer full: what then is under way is not counted.
        with contextlib.suppress(OSError):
            self.sent += self.sock.send(data)

    def send_eof(self) -> None:
        self.sent_eof = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        self._arrived(lambda state, received: state not in OPEN_STATES)

    def close(self) -> None:
        self.sock.close()
        self.ended = True
        self._arrived(lambda state, received: state not in OPEN_STATES)

    def reset(self) -> None:
        reset(self.sock)
        self.has_reset = True
        self.ended = True
        self._arrived(lambda state, received: state == RESET_STATE)

    def receive(self) -> str:
        """Receive all that has come; return how much it was and how it ended."""
        total = 0
        try:
            while piece := self.sock.recv(1 << 20):
                total += len(piece)
        except BlockingIOError:
            return f"{total} bytes"
        except OSError as exc:
            return f"{total} bytes, {type(exc).__name__}"
        return f"{total} bytes, eof"

    def _arrived(self, has: Callable[[int, int], bool]) -> None:
        if self.sock.family != socket.AF_INET or self.sock.type != socket.SOCK_STREAM:
            return
        deadline = time.monotonic() + ARRIVES_S
        while (number := self.other()) != -1 and time.monotonic() < deadline:
            with socket.socket(fileno=os.dup(number)) as other:
                info = other.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_SIZE)
            if has(info[0], struct.unpack_from("=Q", info, RECEIVED_AT)[0]):
                return
            time.sleep(0.0002)


class PipePeer(Peer):
    """The other end of a pipe, as a file descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.sent = 0
        self.sent_eof = False
        self.has_reset = False
        self.ended = False
        os.set_blocking(fd, False)

    def _arrived(self, has: Callable[[int, int], bool]) -> None:
        # A pipe has everything at once.
        return

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.sent += os.write(self.fd, data)

    def send_eof(self) -> None:
        self.close()

    def close(self) -> None:
        if not self.ended:
            os.close(self.fd)
        self.ended = True

    def reset(self) -> None:
        self.close()

    def receive(self) -> str:
        total = 0
        try:
            while piece := os.read(self.fd, 1 << 20):
                total += len(piece)
        except BlockingIOError:
            return f"{total} bytes"
        except OSError:
            return "the end for writing"
        return f"{total} bytes, eof"


class TlsPeer(Peer):
    """TLS by an SSLObject over a socket; `turn` goes on with the handshake."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_side: bool) -> None:
        super().__init__(sock)
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        name = None if server_side else "localhost"
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side, name)
        self.connected = False

    def turn(self) -> None:
        """Take what has come, and answer."""
        self._take()
        if not self.connected:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
                self.connected = True
        self._flush()

    def _take(self) -> str:
        try:
            while piece := self.sock.recv(1 << 20):
                self.incoming.write(piece)
        except BlockingIOError:
            return ""
        except OSError as exc:
            return f", {type(exc).__name__}"
        self.incoming.write_eof()
        return ", eof"

    def _flush(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.send(self.outgoing.read())

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(ssl.SSLError):
            self.sent += self.tls.write(data)
        self._flush()

    def send_eof(self) -> None:
        """Send close_notify and EOF."""
        with contextlib.suppress(ssl.SSLError):
            self.tls.unwrap()
        self._flush()
        super().send_eof()

    def close(self) -> None:
        with contextlib.suppress(ssl.SSLError):
            self.tls.unwrap()
        self._flush()
        super().close()

    def receive(self) -> str:
        end = self._take()
        total = 0
        # It wants more, or there is no more: which classes say so differs between versions.
        with contextlib.suppress(ssl.SSLError):
            while piece := self.tls.read(1 << 20):
                total += len(piece)
        return f"{total} bytes{end}"
