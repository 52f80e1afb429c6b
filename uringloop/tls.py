"""TLS sessions that clients keep, so that later connections need no full handshake.

A resumed handshake checks no certificate. A session is therefore offered only to the name and port
of the server that it came from, only by connections with the same context and the same checks, and
only until the certificate that was checked expires, for a day at most. With TLS 1.3, a server sends
sessions as tickets after the handshake; each is used once, so that an observer cannot link two
connections. With TLS 1.2, the session comes with the handshake and is used again.

The context makes its SSLObjects with a class of its own, which has the sessions. Programs that do
TLS themselves, with SSLContext.wrap_bio(), therefore resume sessions as well. Loops in several
threads may share a context: a lock guards its sessions. A forked process begins without sessions.
"""

from __future__ import annotations

import math
import os
import ssl
import threading
import time
import weakref
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar

__all__ = ["reuse_sessions"]

Key = tuple[Any, ...]

# How long, in seconds, a server is trusted after its certificate has been checked.
TRUSTED_S = 24 * 3600

# How often a connection asks for its first session after bytes have come: a relay may pass on the
# tickets in pieces.
ASKS = 4

# Errors after which the server's sessions are as good as before.
PASSING = (
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
    ssl.SSLEOFError,
)


def reuse_sessions(context: ssl.SSLContext, *, size: int = 1024) -> None:
    """Have the clients that use *context* resume TLS sessions, which saves most of a handshake.

    The session that a connection gets from its server is kept, and a later connection to the same
    name and port offers this session. If the server refuses it, the handshake is a full one.
    `transport.get_extra_info("ssl_object").session_reused` says whether a session was resumed. A
    TLS 1.3 session is used once. At most *size* sessions are kept, the newest ones; each takes
    about 10 KiB. All sessions of a server are dropped if the server no longer knows one of them, or
    if TLS fails on a connection to that server.

    A resumed handshake does not check the server's certificate again, and shows the server the
    client certificate of the first connection. A session is therefore used only while the server's
    certificate is valid, for a day at most, and only while *context* has the `verify_mode`,
    `verify_flags`, `check_hostname` and `hostname_checks_common_name` of the first connection.
    These four attributes must not change while another thread calls `context.wrap_bio()`. After
    other changes to *context*, such as load_verify_locations(), load_cert_chain() or set_ciphers(),
    call this function again: it forgets all sessions of *context*.

    Libraries that do TLS themselves with `context.wrap_bio()`, such as anyio and httpx, also resume
    sessions, on any loop. They do not say which port they connect to, so their sessions belong to
    the name alone. The blocking sockets of `context.wrap_socket()` keep no sessions.

    Older versions of CPython copy each session: all versions up to 3.11, 3.12 up to 3.12.6, and
    3.13.0. On these versions, a resumed connection takes the client more time than a full
    handshake. It takes the server less time on every version.

    Any thread may call this. Raises TypeError if *context* is not an SSLContext, or does not make
    its SSLObjects with its `sslobject_class`. Raises ValueError if *size* is less than 1, or if
    *context* is for servers.
    """
    if not isinstance(context, ssl.SSLContext):
        raise TypeError(f"context must be an ssl.SSLContext, not {type(context).__name__}")
    size = index(size)
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if context.protocol == ssl.PROTOCOL_TLS_SERVER:
        raise ValueError("the context is for servers: only clients resume sessions")
    before = context.sslobject_class
    base = vars(before).get("_uringloop_base", before)
    if not issubclass(base, ssl.SSLObject):
        raise TypeError(f"{base.__name__}, the context's sslobject_class, is no ssl.SSLObject")
    bases = (base,) if issubclass(base, ResumingObject) else (ResumingObject, base)
    names = {
        "sessions": Sessions(size),
        "owner": weakref.ref(context),
        "_uringloop_base": base,
    }
    context.sslobject_class = type(base.__name__, bases, names)
    try:
        made = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
        if not isinstance(made, ResumingObject):
            raise TypeError(f"{type(context).__name__} does not use its sslobject_class")
    except BaseException:
        context.sslobject_class = before
        raise


@dataclass(frozen=True, eq=False)
class Kept:
    """A session, and the time until which its server is trusted."""

    key: Key
    session: ssl.SSLSession
    deadline: float

    def has_expired(self) -> bool:
        session = self.session
        lifetime = session.timeout
        if session.ticket_lifetime_hint:
            lifetime = min(lifetime, session.ticket_lifetime_hint)
        return time.time() >= min(self.deadline, session.time + lifetime)


class Sessions:
    """The sessions of one context, at most *size*."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.clear()
        every.add(self)

    def clear(self) -> None:
        # Reentrant, because a finalizer may close a connection while it is held.
        self.lock = threading.RLock()
        # All sessions, and those of each key; the oldest come first.
        self.kept: dict[Kept, None] = {}
        self.by_key: dict[Key, list[Kept]] = {}

    def take(self, key: Key) -> Kept | None:
        """Remove and return the newest session of *key*; None if there is none, or it is too old.

        The server is most likely to still know the newest one.
        """
        with self.lock:
            found = self.by_key.get(key)
            if not found:
                return None
            newest = found[-1]
            if newest.has_expired():
                self._forget(key)
                return None
            self._remove(newest)
            return newest

    def put(self, one: Kept) -> None:
        with self.lock:
            self.kept[one] = None
            self.by_key.setdefault(one.key, []).append(one)
            if len(self.kept) > self.size:
                self._remove(next(iter(self.kept)))

    def forget(self, key: Key) -> None:
        with self.lock:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        for one in self.by_key.pop(key, ()):
            self.kept.pop(one, None)

    def _remove(self, one: Kept) -> None:
        self.kept.pop(one, None)
        of_key = self.by_key.get(one.key, [])
        if one in of_key:
            of_key.remove(one)
        if not of_key:
            self.by_key.pop(one.key, None)


every: weakref.WeakSet[Sessions] = weakref.WeakSet()


def clear_all() -> None:
    """Begin without sessions in a forked process: its parent uses them."""
    for sessions in tuple(every):
        sessions.clear()


os.register_at_fork(after_in_child=clear_all)


class ResumingObject(ssl.SSLObject):
    """The TLS object of a client's connection, which offers a session and keeps one.

    The methods of SSLObject do both by themselves. The loop's SSLProtocol calls `keep_session`,
    `check_failure` and `end_session` itself, since it reads without `read` (_tls/records.pyx).
    """

    # Each context has a class of its own. _uringloop_base is the class without sessions.
    sessions: ClassVar[Sessions]
    owner: ClassVar[weakref.ref[ssl.SSLContext]]
    _uringloop_base: ClassVar[type[ssl.SSLObject]]

    # The server's port, or the path of its socket. The loop sets it before the handshake.
    port: object = None
    # What the context checked when this object was made; None without sessions.
    checks: Key | None = None
    has_begun = False
    # Set when the handshake begins; None without sessions: for a server, or without a name.
    key: Key | None = None
    offered: Kept | None = None
    # Of the session that will be kept.
    deadline = 0.0
    # How often to ask for it after bytes have come, and whether to ask at all.
    asks_left = 0
    wants_session = False

    @classmethod
    def _create(cls, *args: Any, **kwargs: Any) -> ResumingObject:
        # For wrap_bio(). OpenSSL takes over the checks when the object is made.
        before = checks_of(cls.owner())
        made: ResumingObject = super()._create(*args, **kwargs)  # type: ignore[misc]
        if checks_of(cls.owner()) == before:
            made.checks = before
        return made

    def do_handshake(self) -> None:
        if not self.has_begun:
            self.has_begun = True
            self.offer_session()
        try:
            super().do_handshake()
        except ssl.SSLError as exc:
            self.check_failure(exc)
            raise
        if self.key is not None and not self.deadline:
            self.complete_handshake(self.key)

    def read(self, *args: Any, **kwargs: Any) -> Any:
        try:
            data = super().read(*args, **kwargs)
        except ssl.SSLError as exc:
            self.check_failure(exc)
            raise
        if self.asks_left > 0:
            self.keep_session()
        return data

    def unwrap(self) -> None:
        self.end_session()
        return super().unwrap()

    def offer_session(self) -> None:
        """Offer a session to the server, if there is one."""
        name, context = self.server_hostname, self.owner()
        if self.server_side or not name or self.context is not context:
            return
        if self.checks is None or checks_of(context) != self.checks or self.has_session():
            # The checks have changed since OpenSSL took them over, or the program resumes itself.
            return
        self.key = (name.lower(), self.port, *self.checks)
        self.offered = self.sessions.take(self.key)
        if self.offered is not None:
            self.session = self.offered.session

    def has_session(self) -> bool:
        try:
            return self.session is not None
        except ValueError:
            # A read has begun the handshake, and CPython before 3.14 copies the session.
            return True

    def complete_handshake(self, key: Key) -> None:
        """Learn how long the server is trusted, and keep the session that came with the handshake.

        A resumed connection has checked no certificate: its session ends when the first one does.
        """
        if self.session_reused:
            if self.offered is None:
                # Nobody knows when the certificate was checked.
                self.key = None
                return
            self.deadline = self.offered.deadline
        else:
            self.deadline = min(time.time() + TRUSTED_S, self.certificate_end())
            if self.offered is not None:
                # The server does not know this session, nor those before it.
                self.sessions.forget(key)
        self.wants_session = True
        self.asks_left = ASKS
        if self.version() != "TLSv1.3":
            self.offered = None
            self.keep_session()

    def certificate_end(self) -> float:
        """Return when the server's certificate expires; without one that was checked, never."""
        certificate = self.getpeercert()
        if not certificate:
            return math.inf
        try:
            return ssl.cert_time_to_seconds(str(certificate["notAfter"]))
        except (KeyError, ValueError):
            return 0.0

    def keep_session(self) -> bool:
        """Keep the connection's session, if the server has sent one; return whether to ask again.

        In TLS 1.3 it is the one that was offered until the server sends another.
        """
        self.asks_left -= 1
        session = self.session
        # Without a ticket, a server of TLS 1.2 has the session if it has given it a name.
        if (
            self.wants_session
            and self.key is not None
            and self.context is self.owner()
            and session is not None
            and (session.has_ticket or session.id)
            and (self.offered is None or session.id != self.offered.session.id)
        ):
            self.sessions.put(Kept(self.key, session, self.deadline))
            self.wants_session = False
        if not self.wants_session:
            self.asks_left = 0
        return self.asks_left > 0

    def end_session(self) -> None:
        """Keep a session that came late."""
        if self.wants_session:
            self.keep_session()

    def check_failure(self, exc: ssl.SSLError) -> None:
        """Forget the sessions of a server if TLS has failed."""
        if self.key is not None and not isinstance(exc, PASSING):
            self.wants_session = False
            self.sessions.forget(self.key)


def checks_of(context: ssl.SSLContext | None) -> Key:
    """Return what *context* checks of a certificate."""
    if context is None:
        return ()
    return (
        context.verify_mode,
        context.verify_flags,
        context.check_hostname,
        context.hostname_checks_common_name,
    )
