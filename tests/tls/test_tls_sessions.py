"""TLS sessions: clients resume them, and never with another server, name, port or context."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from support.protocols import Collector, Echo
from support.roles import on_loop
from support.tls_contexts import CERTIFICATES, Contexts, client_context, server_context
from support.tls_peers import tls_stream

import uringloop
from uringloop import tls

LOCALHOST = "127.0.0.1"
VERSIONS = pytest.mark.parametrize(
    "version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"]
)


@contextlib.asynccontextmanager
async def serving(
    loop: uringloop.Loop, context: ssl.SSLContext, port: int = 0
) -> AsyncIterator[int]:
    """Serve an echo over TLS, and yield its port."""
    server = await loop.create_server(Echo, LOCALHOST, port, ssl=context, backlog=100)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def is_resumed(context: ssl.SSLContext, port: int, name: str = "localhost") -> bool:
    """Connect, have a message echoed, and return whether the session was resumed."""
    reader, writer = await asyncio.open_connection(
        LOCALHOST, port, ssl=context, server_hostname=name
    )
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    reused: bool = writer.get_extra_info("ssl_object").session_reused
    writer.close()
    await writer.wait_closed()
    return reused


def client(version: ssl.TLSVersion | None = None, **options: Any) -> ssl.SSLContext:
    """Return a client's context that reuses sessions, of TLS *version* only if it is given."""
    context = client_context()
    if version is not None:
        context.minimum_version = context.maximum_version = version
    tls.reuse_sessions(context, **options)
    return context


def sessions_of(context: ssl.SSLContext) -> tls.Sessions:
    made = context.sslobject_class
    assert issubclass(made, tls.ResumingObject)
    return made.sessions


def kept(context: ssl.SSLContext) -> list[tls.Kept]:
    """Return the sessions that the context has, the oldest first."""
    found = sessions_of(context)
    assert {one for of_key in found.by_key.values() for one in of_key} == set(found.kept)
    return list(found.kept)


def exchange(client: ssl.SSLContext, server: ssl.SSLContext, name: str = "localhost") -> bool:
    """Have a server send a byte, by wrap_bio(); return whether the session was resumed."""
    near, far = ends(client, server, name)
    finish(near, far)
    far.write(b"x")
    assert near.read(1) == b"x"
    with contextlib.suppress(ssl.SSLWantReadError):
        near.unwrap()
    assert near.session_reused == far.session_reused
    return bool(near.session_reused)


def exchange_together(
    client: ssl.SSLContext, server: ssl.SSLContext, name: str = "localhost"
) -> None:
    """Do it with two connections, both of which begin before the first has a session."""
    pairs = [ends(client, server, name) for _ in range(2)]
    for near, _ in pairs:
        with contextlib.suppress(ssl.SSLWantReadError):
            near.do_handshake()
    for near, far in pairs:
        finish(near, far)
        far.write(b"x")
        assert near.read(1) == b"x"


def ends(
    client: ssl.SSLContext, server: ssl.SSLContext, name: str = "localhost", **options: Any
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return a client and a server that are connected by memory."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(back, there, server_hostname=name, **options)
    return near, server.wrap_bio(there, back, server_side=True)


def finish(*both: ssl.SSLObject) -> None:
    """Do the handshake."""
    waiting = list(both)
    while waiting:
        for one in tuple(waiting):
            with contextlib.suppress(ssl.SSLWantReadError):
                one.do_handshake()
                waiting.remove(one)


@VERSIONS
@on_loop
async def test_a_second_connection_resumes(loop: uringloop.Loop, version: ssl.TLSVersion) -> None:
    context = client(version)
    async with serving(loop, server_context()) as port:
        assert [await is_resumed(context, port) for _ in range(4)] == [False, True, True, True]
        assert len(kept(context)) == 1


@on_loop
async def test_a_context_that_was_not_chosen_resumes_nothing(loop: uringloop.Loop) -> None:
    context = client_context()
    client()
    async with serving(loop, server_context()) as port:
        assert not any([await is_resumed(context, port) for _ in range(3)])


@on_loop
async def test_each_ticket_is_used_once(loop: uringloop.Loop) -> None:
    context = client(ssl.TLSVersion.TLSv1_3)
    async with serving(loop, server_context()) as port:
        assert not await is_resumed(context, port)
        together = await asyncio.gather(*(is_resumed(context, port) for _ in range(5)))
        assert sorted(together) == [False] * 4 + [True]
        # Each of the five has got a ticket.
        assert len(kept(context)) == 5
        assert all(await asyncio.gather(*(is_resumed(context, port) for _ in range(5))))


@VERSIONS
@on_loop
async def test_a_session_crosses_neither_names_nor_ports_nor_contexts(
    loop: uringloop.Loop, version: ssl.TLSVersion
) -> None:
    context, other, server = client(version), client(version), server_context()
    async with serving(loop, server) as port, serving(loop, server) as second:
        assert not await is_resumed(context, port)
        assert not await is_resumed(context, port, "127.0.0.1")
        assert not await is_resumed(context, second)
        assert not await is_resumed(other, port)
        for again in ((context, port), (context, port, "127.0.0.1"), (context, second)):
            assert await is_resumed(*again)
        assert await is_resumed(other, port, "LOCALHOST")


@VERSIONS
@on_loop
async def test_a_context_that_checks_more_does_not_resume(
    loop: uringloop.Loop, version: ssl.TLSVersion
) -> None:
    # A resumed handshake would check no certificate.
    context = client(version)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with serving(loop, server_context()) as port:
        assert not await is_resumed(context, port)
        context.verify_mode = ssl.CERT_REQUIRED
        assert not await is_resumed(context, port)
        context.check_hostname = True
        assert not await is_resumed(context, port)
        assert await is_resumed(context, port)


@VERSIONS
@on_loop
async def test_a_server_that_has_forgotten_its_sessions_gets_a_full_handshake(
    loop: uringloop.Loop, version: ssl.TLSVersion
) -> None:
    context = client(version)
    async with serving(loop, server_context()) as port:
        await asyncio.gather(*(is_resumed(context, port) for _ in range(3)))
        before = len(kept(context))
    async with serving(loop, server_context(), port):
        assert not await is_resumed(context, port)
        # The old ones are forgotten: the next connection does not offer another of them.
        assert before == 3
        assert len(kept(context)) == 1
        assert await is_resumed(context, port)


@pytest.mark.parametrize("damaged", [False, True], ids=["alert", "damaged-record"])
@on_loop
async def test_an_error_of_tls_drops_the_sessions(
    loop: uringloop.Loop, contexts: Contexts, damaged: bool
) -> None:
    context = client(ssl.TLSVersion.TLSv1_3)
    left = Collector(loop)
    async with tls_stream(loop, left, Contexts(contexts.server, context)) as (_, peer):
        await peer.send(b"data")
        await left.received(4)
        assert len(kept(context)) == 1
        if damaged:
            peer.tls.write(b"damaged")
            record = bytearray(peer.outgoing.read())
            record[-1] ^= 1
            await loop.sock_sendall(peer.sock, record)
        else:
            peer.refuse()
            await peer.flush()
        assert isinstance(await left.lost, ssl.SSLError)
        assert len(kept(context)) == 0


class Leaving(Collector):
    """Aborts the connection at its second message."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if len(self.data) > 4:
            self.transport.abort()


@on_loop
async def test_an_alert_behind_data_drops_the_sessions_of_a_program_that_leaves(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    context = client(ssl.TLSVersion.TLSv1_3)
    left = Leaving(loop)
    async with tls_stream(loop, left, Contexts(contexts.server, context)) as (_, peer):
        await peer.send(b"data")
        await left.received(4)
        assert len(kept(context)) == 1
        peer.tls.write(b"more")
        peer.refuse()
        await peer.flush()
        assert await left.lost is None
        assert left.data == b"datamore"
        assert len(kept(context)) == 0


def test_the_newest_sessions_are_kept() -> None:
    context, server = client(ssl.TLSVersion.TLSv1_3, size=2), server_context()
    for name in ("localhost", "127.0.0.1"):
        assert not exchange(context, server, name)
    oldest, other = kept(context)
    # Of one server, two at a time: neither resumes the session of the other.
    exchange_together(context, server, "127.0.0.1")
    assert [one.key for one in kept(context)] == [other.key] * 2
    assert other not in kept(context)
    assert not exchange(context, server)
    assert oldest not in kept(context)


@pytest.mark.parametrize("expires", ["session", "trust", "certificate"])
@VERSIONS
def test_an_expired_session_is_not_offered(
    monkeypatch: pytest.MonkeyPatch, version: ssl.TLSVersion, expires: str
) -> None:
    now = time.time()
    monkeypatch.setattr(tls, "TRUSTED_S", 50.0 if expires == "trust" else 1e6)
    if expires == "certificate":
        monkeypatch.setattr(ssl, "cert_time_to_seconds", lambda text: now + 50)
    context, server = client(version), server_context()
    # The newest one and those before it: all are forgotten.
    exchange_together(context, server)
    after = 49.0 if expires != "session" else 0.0
    monkeypatch.setattr(time, "time", lambda: now + after)
    assert exchange(context, server)
    session = kept(context)[-1].session
    if expires == "session":
        after = float(min(session.timeout, session.ticket_lifetime_hint)) + 1
    else:
        # The resumed connection has checked no certificate.
        after = 51.0
    assert not exchange(context, server)
    assert len(kept(context)) == 1


@on_loop
async def test_calling_it_again_forgets_all_sessions(loop: uringloop.Loop) -> None:
    context = client()
    async with serving(loop, server_context()) as port:
        await is_resumed(context, port)
        tls.reuse_sessions(context)
        assert not await is_resumed(context, port)
        assert await is_resumed(context, port)


@on_loop
async def test_a_session_that_comes_during_the_shutdown_is_kept(loop: uringloop.Loop) -> None:
    context = client(ssl.TLSVersion.TLSv1_3)
    async with serving(loop, server_context()) as port:
        for found in (False, True):
            _, writer = await asyncio.open_connection(
                LOCALHOST, port, ssl=context, server_hostname="localhost"
            )
            assert writer.get_extra_info("ssl_object").session_reused is found
            writer.close()
            await writer.wait_closed()
            assert len(kept(context)) == 1


@on_loop
async def test_a_server_without_tickets_gets_full_handshakes(loop: uringloop.Loop) -> None:
    context, server = client(ssl.TLSVersion.TLSv1_3), server_context()
    server.num_tickets = 0
    async with serving(loop, server) as port:
        assert not any([await is_resumed(context, port) for _ in range(2)])
    assert len(kept(context)) == 0


class Counting(ssl.SSLObject):
    """Counts the reads of all objects."""

    reads = 0

    def read(self, *args: Any) -> Any:
        type(self).reads += 1
        return super().read(*args)


@on_loop
async def test_a_context_keeps_a_class_of_its_own(loop: uringloop.Loop) -> None:
    context = client_context()
    context.sslobject_class = Counting
    for _ in range(2):
        tls.reuse_sessions(context)
        assert context.sslobject_class.__mro__[1:3] == (tls.ResumingObject, Counting)
    async with serving(loop, server_context()) as port:
        assert [await is_resumed(context, port) for _ in range(2)] == [False, True]
    assert context.sslobject_class.reads > 0


@VERSIONS
def test_a_program_that_does_tls_itself_resumes(version: ssl.TLSVersion) -> None:
    context, server = client(version), server_context()
    assert [exchange(context, server, "localhost") for _ in range(3)] == [False, True, True]
    assert not exchange(context, server, "127.0.0.1")
    assert not exchange(context, server_context(), "localhost")
    assert exchange(context, server, "127.0.0.1")


@pytest.mark.filterwarnings("ignore:ssl.PROTOCOL_TLS is deprecated")
def test_a_context_for_both_sides_serves_without_sessions() -> None:
    both = ssl.SSLContext(ssl.PROTOCOL_TLS)
    both.load_cert_chain(CERTIFICATES / "server.pem")
    tls.reuse_sessions(both)
    context = client()
    assert [exchange(context, both, "localhost") for _ in range(2)] == [False, True]
    assert len(kept(both)) == 0


def change_flags(context: ssl.SSLContext) -> None:
    # Clients of Python 3.13 and later are strict.
    context.verify_flags ^= ssl.VERIFY_X509_STRICT


def change_name(context: ssl.SSLContext) -> None:
    context.hostname_checks_common_name = not context.hostname_checks_common_name


def change_mode(context: ssl.SSLContext) -> None:
    strict = context.verify_mode == ssl.CERT_REQUIRED
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE if strict else ssl.CERT_REQUIRED


CHANGES = pytest.mark.parametrize("change", [change_flags, change_name, change_mode])


@CHANGES
def test_other_checks_make_another_session(change: Callable[[ssl.SSLContext], None]) -> None:
    context, server = client(), server_context()
    change_mode(context)
    assert not exchange(context, server)
    change(context)
    assert not exchange(context, server)
    assert exchange(context, server)


@CHANGES
def test_checks_that_change_before_the_handshake_make_no_session(
    change: Callable[[ssl.SSLContext], None],
) -> None:
    # OpenSSL takes over the checks when the object is made.
    context, server = client(), server_context()
    near, far = ends(context, server)
    change(context)
    finish(near, far)
    far.write(b"x")
    assert near.read(1) == b"x"
    assert not kept(context)


def test_a_ticket_is_not_kept_again(loop: uringloop.Loop) -> None:
    context, server = client(ssl.TLSVersion.TLSv1_3), server_context()
    assert not exchange(context, server)
    [first] = kept(context)
    server.num_tickets = 0
    assert exchange(context, server)
    assert not kept(context)
    server.num_tickets = 2
    assert not exchange(context, server)
    [second] = kept(context)
    assert exchange(context, server)
    [third] = kept(context)
    assert len({one.session.id for one in (first, second, third)}) == 3


def test_a_ticket_that_comes_in_pieces_is_kept() -> None:
    context, server = client(ssl.TLSVersion.TLSv1_3), server_context()
    for found in (False, True):
        back, there = ssl.MemoryBIO(), ssl.MemoryBIO()
        near = context.wrap_bio(back, there, server_hostname="localhost")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        far = server.wrap_bio(incoming, outgoing, server_side=True)
        for step in (near, far, near, far):
            with contextlib.suppress(ssl.SSLWantReadError):
                step.do_handshake()
            back.write(outgoing.read() if step is far and far.version() is None else b"")
            incoming.write(there.read())
            if step is far and near.version() is None:
                back.write(outgoing.read())
        assert near.session_reused is found
        far.write(b"data")
        records = outgoing.read()
        received = b""
        for at in range(0, len(records), 200):
            back.write(records[at : at + 200])
            with contextlib.suppress(ssl.SSLWantReadError):
                received += near.read(100)
        assert received == b"data"
        with contextlib.suppress(ssl.SSLWantReadError):
            near.unwrap()
        [one] = kept(context)
        assert near.session is not None
        assert one.session.id == near.session.id


def test_a_session_that_a_class_of_the_program_resumes_is_not_kept() -> None:
    context, server = client_context(), server_context()
    given: list[ssl.SSLSession] = []

    class Resuming(ssl.SSLObject):
        def do_handshake(self) -> None:
            if given and not self.session_reused:
                with contextlib.suppress(ValueError):
                    self.session = given[0]
            super().do_handshake()

    context.sslobject_class = Resuming
    tls.reuse_sessions(context)
    assert not exchange(context, server)
    [one] = kept(context)
    given.append(one.session)
    sessions_of(context).forget(one.key)
    assert exchange(context, server)
    # Nobody knows when the certificate was checked.
    assert not kept(context)


def test_sessions_are_chosen_again_for_a_derived_class() -> None:
    context = client()

    class Derived(context.sslobject_class):  # type: ignore[name-defined,misc]
        pass

    context.sslobject_class = Derived
    assert not exchange(context, server_context())
    tls.reuse_sessions(context)
    assert issubclass(context.sslobject_class, Derived)
    assert not kept(context)
    server = server_context()
    assert [exchange(context, server) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_read_may_begin_the_handshake(way: str) -> None:
    context = client()
    near, far = ends(context, server_context())
    with pytest.raises(ssl.SSLWantReadError):
        near.read(len=10) if way == "read" else near.write(b"x")
    finish(near, far)
    far.write(b"data")
    assert near.read(len=10) == b"data"


def test_a_session_of_the_program_is_left_alone() -> None:
    context, server = client(), server_context()
    assert not exchange(context, server, "127.0.0.1")
    [other] = kept(context)
    assert not exchange(context, server)
    near, far = ends(context, server, session=other.session)
    assert near.session is not None
    assert near.session.id == other.session.id
    finish(near, far)
    assert len(kept(context)) == 2


def test_an_end_without_close_notify_keeps_the_sessions() -> None:
    context, server = client(), server_context()
    back, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    assert not exchange(context, server)
    near = context.wrap_bio(back, there, server_hostname="localhost")
    far = server.wrap_bio(there, back, server_side=True)
    finish(near, far)
    far.write(b"x")
    near.read(1)
    back.write_eof()
    with pytest.raises(ssl.SSLEOFError):
        near.read(1)
    assert len(kept(context)) == 1


@pytest.mark.parametrize("in_handshake", [False, True])
def test_an_alert_drops_the_sessions(in_handshake: bool) -> None:
    context, server = client(), server_context()
    exchange_together(context, server)
    assert len(kept(context)) == 2
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = context.wrap_bio(back, there, server_hostname="localhost")
    far = server.wrap_bio(there, back, server_side=True)
    if not in_handshake:
        finish(near, far)
        far.write(b"x")
        near.read(1)
    else:
        with pytest.raises(ssl.SSLWantReadError):
            near.do_handshake()
    assert kept(context)
    # The alert handshake_failure, in the clear.
    back.write(b"\x15\x03\x03\x00\x02\x02\x28")
    with pytest.raises(ssl.SSLError):
        near.do_handshake() if in_handshake else near.read(1)
    assert not kept(context)


@on_loop
async def test_a_class_that_a_program_derives_reads_itself(loop: uringloop.Loop) -> None:
    context = client()

    class Derived(context.sslobject_class):  # type: ignore[name-defined,misc]
        reads = 0

        def read(self, *args: Any) -> Any:
            Derived.reads += 1
            return super().read(*args)

    context.sslobject_class = Derived
    async with serving(loop, server_context()) as port:
        assert [await is_resumed(context, port) for _ in range(2)] == [False, True]
    assert Derived.reads > 0


@on_loop
async def test_an_error_of_a_session_does_not_keep_the_end_from_the_program(
    loop: uringloop.Loop,
) -> None:
    context = client()

    class Broken(context.sslobject_class):  # type: ignore[name-defined,misc]
        def end_session(self) -> None:
            raise ZeroDivisionError

    context.sslobject_class = Broken
    reported = []
    loop.set_exception_handler(lambda loop, found: reported.append(found["exception"]))
    async with serving(loop, server_context()) as port:
        left = Collector(loop)
        transport, _ = await loop.create_connection(
            lambda: left, LOCALHOST, port, ssl=context, server_hostname="localhost"
        )
        transport.abort()
        assert await left.lost is None
        await asyncio.sleep(0)
    assert [type(exc) for exc in reported] == [ZeroDivisionError]


@pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")
def test_a_forked_process_begins_without_sessions() -> None:
    context, server = client(), server_context()
    assert not exchange(context, server)
    with sessions_of(context).lock:
        child = os.fork()
    if not child:
        try:
            found = sessions_of(context)
            # The lock is a new one, too.
            os._exit(0 if found.lock.acquire(blocking=False) and not found.kept else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert exchange(context, server)


def test_threads_choose_one_context_at_a_time() -> None:
    context = client_context()
    errors = []

    def choose() -> None:
        try:
            for _ in range(200):
                tls.reuse_sessions(context)
        except Exception as exc:
            errors.append(exc)

    threads = [threading.Thread(target=choose) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not kept(context)


@on_loop
async def test_start_tls_resumes(loop: uringloop.Loop) -> None:
    context, server = client(), server_context()

    class Upgrading(Echo):
        def data_received(self, data: bytes) -> None:
            if data != b"upgrade":
                super().data_received(data)
                return
            self.transport.write(b"go on")
            loop.create_task(self.upgrade())

        async def upgrade(self) -> None:
            secured = await loop.start_tls(self.transport, self, server, server_side=True)
            assert secured is not None
            self.transport = secured

    listener = await loop.create_server(Upgrading, LOCALHOST, 0)
    found = []
    for _ in range(2):
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        writer.write(b"upgrade")
        assert await reader.readexactly(5) == b"go on"
        await writer.start_tls(context, server_hostname="localhost")
        writer.write(b"secret")
        assert await reader.readexactly(6) == b"secret"
        found.append(writer.get_extra_info("ssl_object").session_reused)
        writer.close()
        await writer.wait_closed()
    listener.close()
    await listener.wait_closed()
    assert found == [False, True]


@pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")
@on_loop
async def test_a_forked_process_knows_the_sessions_of_its_context(loop: uringloop.Loop) -> None:
    context, server = client(), server_context()
    with socket.create_server((LOCALHOST, 0)) as listener:
        port = listener.getsockname()[1]
        async with await loop.create_server(Echo, sock=listener.dup(), ssl=server):
            assert not await is_resumed(context, port)

        async def serve() -> None:
            of_child = asyncio.get_running_loop()
            await (await of_child.create_server(Echo, sock=listener, ssl=server)).serve_forever()

        child = multiprocessing.get_context("fork").Process(
            target=lambda: uringloop.run(serve()), daemon=True
        )
        child.start()
        try:
            assert await is_resumed(context, port)
        finally:
            child.kill()
            child.join()


def test_loops_in_several_threads_share_a_context() -> None:
    context, server = client(), server_context()
    found: list[bool] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, uringloop.Loop)
        async with serving(loop, server) as port:
            for _ in range(20):
                found.extend(await asyncio.gather(*(is_resumed(context, port) for _ in range(4))))

    threads = [threading.Thread(target=uringloop.run, args=(main(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 320
    assert found.count(False) == 16
    assert len(kept(context)) == 16


def of_class(kind: type) -> ssl.SSLContext:
    context = client_context()
    context.sslobject_class = kind
    return context


class Other(ssl.SSLContext):
    """A context whose objects another context makes."""

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return client_context().wrap_bio(*args, **kwargs)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tls.reuse_sessions(True), TypeError, "ssl.SSLContext, not bool"),  # type: ignore[arg-type]
        (lambda: client(size=0), ValueError, "at least 1, got 0"),
        (lambda: client(size=1.5), TypeError, "float"),
        (lambda: tls.reuse_sessions(server_context()), ValueError, "for servers"),
        (lambda: tls.reuse_sessions(of_class(object)), TypeError, "object, the context's"),
        (lambda: tls.reuse_sessions(Other(ssl.PROTOCOL_TLS_CLIENT)), TypeError, "sslobject_class"),
    ],
)
def test_bad_arguments_are_refused(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("fails", [False, True])
def test_a_context_that_is_refused_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    other = Other(ssl.PROTOCOL_TLS_CLIENT)
    if fails:
        monkeypatch.setattr(Other, "wrap_bio", lambda *args, **kwargs: 1 // 0)
    with pytest.raises(ZeroDivisionError if fails else TypeError):
        tls.reuse_sessions(other)
    assert other.sslobject_class is ssl.SSLObject
