"""The peer of a TLS connection, and its faults.

The peer is a blocking socket and an SSLObject in a thread of its own, and so determines each
record: it brings the connection to the state of a case, and then calls the fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib
import socket
import ssl
import termios
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .common import MB, reset

if TYPE_CHECKING:
    from .tls_cases import Program

HELLO = b"hello"
# More than a TLS connection may have unread: the transport below is paused, too.
BEFORE = 300_000
# What a socket takes although nobody reads.
LITTLE = 30_000
DATA = hashlib.shake_128(b"faults").digest(BEFORE)
HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
GARBAGE = b"\xa5 is no type of a record" * 40
# handshake_failure, in the clear.
ALERT = b"\x15\x03\x03\x00\x02\x02\x28"
DAMAGED = b"\x17\x03\x03\x01\x00" + bytes(256)

# The states: connected, a hello has been sent, half of one has been sent; in connection_made(), in
# use, with a pause; close() with a full socket, close_notify is sent.
HANDSHAKE = ("connected", "hello", "half")
PAUSED = ("reading paused", "writing paused")
USED = ("made", "open", *PAUSED)
CLOSED = ("flushing", "shutdown")
CONNECTED = (*USED, *CLOSED)


class Peer:
    """The other end of a connection: an SSLObject over a blocking socket."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, program: Program) -> None:
        sock.settimeout(5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.program = program
        self.case = program.case
        self.is_server = self.case.side == "client"
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = None if self.is_server else "localhost"
        self.tls = context.wrap_bio(self.incoming, self.outgoing, self.is_server, name)
        self.got = 0
        self.last_flight = b""

    def send(self, data: bytes = b"") -> None:
        data = self.outgoing.read() + data
        step = 1 if self.case.single else len(data) or 1
        for at in range(0, len(data), step):
            self.sock.sendall(data[at : at + step])

    def receive(self) -> None:
        data = self.sock.recv(MB)
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()

    def do(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Call OpenSSL, and send and receive until it is done."""
        while True:
            try:
                return call(*arguments)
            except ssl.SSLWantReadError:
                self.send()
                self.receive()

    def records(self, call: Callable[..., object], *arguments: object) -> bytes:
        """Return the records that an OpenSSL call produces."""
        with contextlib.suppress(ssl.SSLError):
            call(*arguments)
        return self.outgoing.read()

    def read(self) -> bytes:
        data: bytes = self.do(self.tls.read, MB)
        self.got += len(data)
        return data

    def openssl(self, name: str, *arguments: int) -> int:
        """Call an OpenSSL function that the `ssl` module does not offer."""
        # The pointer of the SSL is behind the object's head and another pointer.
        offset = object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)
        engine: Any = self.tls._sslobj  # type: ignore[attr-defined]
        pointer = ctypes.c_void_p.from_address(id(engine) + offset)
        function = ctypes.CDLL(importlib.import_module("_ssl").__file__)[name]
        return int(function(pointer, *arguments))

    def reach(self) -> None:
        """Bring the connection to the state of the case."""
        state = self.case.state
        if state == "refused":
            return
        if state == "connected":
            time.sleep(0.05)
            return
        if state in HANDSHAKE:
            if self.is_server:
                self.receive()
            flight = self.records(self.tls.do_handshake)
            if state == "half":
                self.send(flight[: len(flight) // 2])
            elif not self.is_server:
                self.send(flight)
                self.receive()
            time.sleep(0.05)
            return
        self.do(self.tls.do_handshake)
        if state == "made":
            self.last_flight = self.outgoing.read()
            self.tls.write(HELLO)
            return
        self.send()
        # Later than start_tls() returns.
        time.sleep(0.05)
        self.tls.write(HELLO)
        self.send()
        if state in ("open", "reading paused"):
            self.read()
        elif state == "shutdown":
            self.read_notify()
        self.program.reached.wait(5)
        time.sleep(0.1)

    def read_notify(self) -> None:
        with contextlib.suppress(ssl.SSLZeroReturnError):
            while self.read():
                pass

    def read_for(self, seconds: float) -> None:
        self.sock.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            while self.read():
                pass
        self.sock.settimeout(5)
        self.program.began = time.monotonic()

    def wait_for_act(self) -> None:
        """Read nothing until the program has called close() or abort()."""
        if self.case.act in ("close", "abort") and self.case.state in CONNECTED:
            self.program.acted.wait(5)
            time.sleep(0.1)

    def first(self) -> bytes:
        """Return the records before the fault: the end of the handshake, and data."""
        if self.case.before and self.case.state in CONNECTED:
            self.tls.write(DATA[: self.case.before])
        return self.last_flight + self.outgoing.read()

    def drain(self) -> None:
        """Wait until the program's socket has everything that was sent."""
        while fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)) != bytes(4):
            time.sleep(0.001)

    def read_to_end(self) -> str:
        """Read until the connection has ended; return how it ended."""
        how = "end"
        if self.case.state in ("writing paused", "flushing"):
            # The program gets the fault before there is room for more.
            time.sleep(0.1)
        try:
            self.read_notify()
            how = "close_notify"
        except ssl.SSLEOFError:
            # The end.
            pass
        except ssl.SSLError as exc:
            how = str(exc.reason)
        except TimeoutError:
            return "no end"
        except OSError:
            # The end, too.
            pass
        with contextlib.suppress(ConnectionError):
            while self.sock.recv(MB):
                pass
        return how


# ── faults ────────────────────────────────────────────────────────────────────────────────


def resets(peer: Peer) -> None:
    peer.send(peer.first())
    peer.drain()
    reset(peer.sock)


def ends(peer: Peer) -> None:
    peer.send(peer.first())
    peer.sock.shutdown(socket.SHUT_WR)


def ends_in_a_record(peer: Peer) -> None:
    peer.send(peer.first() + peer.records(peer.tls.write, HELLO)[:-5])
    peer.sock.shutdown(socket.SHUT_WR)


def sends_garbage(peer: Peer) -> None:
    peer.send(peer.first() + GARBAGE)


def sends_http(peer: Peer) -> None:
    peer.send(peer.first() + HTTP)


def damages_a_record(peer: Peer) -> None:
    peer.send(peer.first() + DAMAGED)


def alerts(peer: Peer) -> None:
    """Send a fatal alert, which is OpenSSL's answer to a record that it cannot decrypt."""
    data = peer.first()
    if peer.case.state in HANDSHAKE:
        peer.send(data + ALERT)
        return
    # SSL_set_shutdown(): forget the program's close_notify.
    peer.openssl("SSL_set_shutdown", 0)
    peer.incoming.read()
    peer.incoming.write(DAMAGED)
    peer.send(data + peer.records(peer.tls.read, 1))


def silent(peer: Peer) -> None:
    peer.send(peer.first())
    if peer.case.state in HANDSHAKE:
        # Without OpenSSL, which would go on with the handshake.
        while peer.sock.recv(MB):
            pass
    peer.wait_for_act()


def deaf(peer: Peer) -> None:
    """Read nothing until the program has given up."""
    peer.send(peer.first())
    deadline = time.monotonic() + 4
    while not peer.program.ended and time.monotonic() < deadline:
        time.sleep(0.02)


def notifies(peer: Peer) -> None:
    peer.send(peer.first() + peer.records(peer.tls.unwrap))


def notifies_and_ends(peer: Peer) -> str:
    notifies(peer)
    peer.sock.shutdown(socket.SHUT_WR)
    peer.read_to_end()
    # A program that sees the end before close_notify does not answer that.
    return "close_notify or end"


def notifies_and_resets(peer: Peer) -> None:
    notifies(peer)
    peer.drain()
    reset(peer.sock)


def notifies_and_goes_on(peer: Peer) -> None:
    data = peer.first() + peer.records(peer.tls.unwrap)
    # SSL_set_shutdown(): forget that close_notify was sent.
    peer.openssl("SSL_set_shutdown", 0)
    peer.send(data + peer.records(peer.tls.write, b"more"))


def notifies_and_sends_garbage(peer: Peer) -> None:
    peer.send(peer.first() + peer.records(peer.tls.unwrap) + GARBAGE)


def answers(peer: Peer) -> None:
    """Behave well: answer close_notify."""
    peer.send(peer.first())
    peer.wait_for_act()
    with contextlib.suppress(OSError):
        peer.read_notify()
        peer.send(peer.records(peer.tls.unwrap))


def updates_keys(peer: Peer) -> None:
    """Send a KeyUpdate, which asks for the program's KeyUpdate, before and after the data."""
    for data in (DATA, b""):
        peer.openssl("SSL_key_update", 1)
        peer.send(peer.records(peer.tls.do_handshake) + peer.records(peer.tls.write, data))
    peer.read_for(0.5)
    peer.send(peer.records(peer.tls.unwrap))


def renegotiates(peer: Peer) -> str | None:
    """Ask for another handshake, which servers refuse and clients do; then send data."""
    peer.openssl("SSL_renegotiate")
    peer.send(peer.records(peer.tls.do_handshake))
    try:
        peer.do(peer.tls.do_handshake)
        peer.read_for(0.5)
        peer.do(peer.tls.write, DATA)
        peer.send(peer.records(peer.tls.unwrap))
    except ssl.SSLError as exc:
        peer.send()
        return str(exc.reason)
    return None


def shakes_hands(peer: Peer) -> str | None:
    """Return the alert with which the program has refused the handshake, if it has."""
    try:
        peer.do(peer.tls.do_handshake)
    except ssl.SSLEOFError:
        # The program has ended the connection without an alert.
        pass
    except ssl.SSLError as exc:
        peer.send()
        return str(exc.reason)
    peer.send()
    return None
