"""TLS connections: ways to open them, arguments, handshakes, certificates, extra info, errors."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.leaks import open_fds
from support.protocols import Collector, Echo
from support.roles import (
    Guests,
    HandlerCall,
    Loop,
    abort_and_wait,
    needs_ipv6,
    on_loop,
    record_handler_calls,
    turns,
    until,
)
from support.sockets import tcp_pair
from support.tls_contexts import (
    CERTIFICATES,
    Contexts,
    client_context,
    known_client_context,
    server_context,
    stranger_context,
    strict_server_context,
)
from support.tls_peers import (
    Peer,
    accepting,
    ending,
    no_connections_left,
    sends_alerts,
    tls_client,
    tls_link,
    tls_serving,
    tls_stream,
)
from support.virtual_time import Stopwatch

import uringloop

LOCALHOST = "127.0.0.1"
DEBUG_REPORT = "Error on transport creation for incoming connection"


async def check_echo(transport: asyncio.Transport, collector: Collector) -> None:
    """Check that there is an echo server at the other end, and end the connection."""
    assert transport.get_extra_info("ssl_object") is not None
    async with ending(transport):
        before = len(collector.data)
        transport.write(b"ping")
        assert (await collector.received(before + 4))[before:] == b"ping"
        transport.close()
        assert await collector.lost is None


# ── opening connections ──────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_server_and_a_client_speak_tls(each_loop: Loop, contexts: Contexts) -> None:
    async with tls_serving(each_loop, Echo, contexts.server) as address:
        transport, collector = await tls_client(each_loop, address, contexts.client)
        assert collector.calls == ["connection_made"]
        assert collector.transport is transport
        assert isinstance(transport, asyncio.Transport)
        await check_echo(transport, collector)


@pytest.mark.parametrize("host", ["localhost", LOCALHOST, pytest.param("::1", marks=needs_ipv6)])
def test_the_host_is_the_server_hostname(each_loop: Loop, contexts: Contexts, host: str) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        server = await each_loop.create_server(Echo, host, 0, ssl=contexts.server)
        port = server.sockets[0].getsockname()[1]
        transport, collector = await each_loop.create_connection(
            lambda: Collector(each_loop), host, port, ssl=contexts.client
        )
        assert transport.get_extra_info("ssl_object").server_hostname == host
        await check_echo(transport, collector)
        server.close()
        await no_connections_left(server)

    check(each_loop=each_loop)


@on_loop
async def test_new_connections_get_a_certificate_that_was_loaded_later(each_loop: Loop) -> None:
    context, client = server_context(), client_context()
    # The other certificate is for clients, which a client's checks would refuse.
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    seen = []
    async with tls_serving(each_loop, Echo, context) as address:
        before = await tls_client(each_loop, address, client)
        context.load_cert_chain(CERTIFICATES / "client.pem")
        after = await tls_client(each_loop, address, client)
        for transport, collector in (before, after):
            peer = transport.get_extra_info("ssl_object")
            seen.append(ssl.DER_cert_to_PEM_cert(peer.getpeercert(binary_form=True)))
            await check_echo(transport, collector)
    for found, name in zip(seen, ("server.pem", "client.pem"), strict=True):
        assert found.strip() in (CERTIFICATES / name).read_text()


@on_loop
async def test_a_connected_socket_becomes_tls(each_loop: Loop, contexts: Contexts) -> None:
    async with tls_serving(each_loop, Echo, contexts.server) as address:
        sock = socket.create_connection(address)
        transport, collector = await each_loop.create_connection(
            lambda: Collector(each_loop),
            sock=sock,
            ssl=contexts.client,
            server_hostname="localhost",
        )
        await check_echo(transport, collector)
        assert sock.fileno() == -1


@on_loop
async def test_an_accepted_socket_becomes_tls(each_loop: Loop, contexts: Contexts) -> None:
    async with tls_stream(each_loop, Echo(), contexts, server_side=True) as (transport, peer):
        assert transport.get_extra_info("ssl_object").server_side
        await peer.send(b"ping")
        assert await peer.read_exactly(4) == b"ping"


@on_loop
async def test_unix_sockets_speak_tls(each_loop: Loop, contexts: Contexts) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "tls")
        server = await each_loop.create_unix_server(Echo, path, ssl=contexts.server)
        transport, collector = await each_loop.create_unix_connection(
            lambda: Collector(each_loop), path, ssl=contexts.client, server_hostname="localhost"
        )
        await check_echo(transport, collector)
        server.close()
        await no_connections_left(server)


@on_loop
async def test_streams_speak_tls(each_loop: Loop, contexts: Contexts) -> None:
    served = each_loop.create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        served.set_result(None)

    server = await asyncio.start_server(serve, LOCALHOST, 0, ssl=contexts.server)
    address = server.sockets[0].getsockname()
    reader, writer = await asyncio.open_connection(
        *address, ssl=contexts.client, server_hostname="localhost"
    )
    writer.write(b"hello\n")
    assert await reader.read() == b"HELLO\n"
    writer.close()
    await writer.wait_closed()
    await served
    server.close()
    await no_connections_left(server)


@on_loop
async def test_ssl_true_is_a_default_context(each_loop: Loop, contexts: Contexts) -> None:
    async with tls_serving(each_loop, Echo, contexts.server) as address:
        # It has the authorities of the system, which do not include the tests' own.
        with pytest.raises(ssl.SSLCertVerificationError, match="CERTIFICATE_VERIFY_FAILED"):
            await each_loop.create_connection(Echo, "localhost", address[1], ssl=True)


# ── arguments ────────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_tls_client_without_a_host_must_name_the_server(
    each_loop: Loop, contexts: Contexts
) -> None:
    ours, theirs = tcp_pair()
    connect, connect_unix = each_loop.create_connection, each_loop.create_unix_connection
    with ours, theirs:
        with pytest.raises(ValueError, match=r"^You must set server_hostname when using ssl with"):
            await connect(Echo, sock=ours, ssl=contexts.client)
        with pytest.raises(ValueError, match=r"^You must set server_hostname when using ssl with"):
            await connect(Echo, "", 80, ssl=contexts.client)
        with pytest.raises(ValueError, match=r"^you have to pass server_hostname when using ssl$"):
            await connect_unix(Echo, "/nowhere", ssl=contexts.client)
        assert ours.fileno() != -1


@on_loop
async def test_tls_options_without_tls_are_refused(each_loop: Loop) -> None:
    ours, theirs = tcp_pair()
    with ours, theirs:
        for option in ("ssl_handshake_timeout", "ssl_shutdown_timeout"):
            message = rf"^{option} is only meaningful with ssl$"
            options: dict[str, Any] = {option: 1.0}
            with pytest.raises(ValueError, match=message):
                await each_loop.create_connection(Echo, sock=ours, **options)
            with pytest.raises(ValueError, match=message):
                await each_loop.connect_accepted_socket(Echo, ours, **options)
            with pytest.raises(ValueError, match=message):
                await each_loop.create_unix_connection(Echo, "/nowhere", **options)
            with pytest.raises(ValueError, match=message):
                await each_loop.create_unix_server(Echo, "/nowhere", **options)
        with pytest.raises(ValueError, match=r"^server_hostname is only meaningful with ssl$"):
            await each_loop.create_unix_connection(Echo, "/nowhere", server_hostname="name")


@on_loop
async def test_a_server_needs_a_context(each_loop: Loop) -> None:
    message = r"^ssl argument must be an SSLContext or None$"
    for argument in (True, False):
        with pytest.raises(TypeError, match=message):
            await each_loop.create_server(Echo, LOCALHOST, 0, ssl=argument)
        with pytest.raises(TypeError, match=message):
            await each_loop.create_unix_server(Echo, "/nowhere", ssl=argument)
    ours, theirs = tcp_pair()
    with ours, theirs:
        with pytest.raises(ValueError, match=r"^Server side SSL needs a valid SSLContext$"):
            await each_loop.connect_accepted_socket(Echo, ours, ssl=True)
        # Up to 3.13 asyncio leaves the socket open, too.
        if isinstance(each_loop, uringloop.Loop):
            assert ours.fileno() != -1


@on_loop
async def test_an_ssl_socket_is_refused(each_loop: Loop, contexts: Contexts) -> None:
    ours, theirs = tcp_pair()
    with (
        theirs,
        contexts.client.wrap_socket(
            ours, server_hostname="localhost", do_handshake_on_connect=False
        ) as wrapped,
    ):
        with pytest.raises(TypeError, match=r"^Socket cannot be of type SSLSocket$"):
            await each_loop.create_connection(Echo, sock=wrapped)
        with pytest.raises(TypeError, match=r"^Socket cannot be of type SSLSocket$"):
            await each_loop.connect_accepted_socket(Echo, wrapped)


@on_loop
async def test_timeouts_must_be_positive(each_loop: Loop, contexts: Contexts) -> None:
    for option in ("ssl_handshake_timeout", "ssl_shutdown_timeout"):
        for value in (0, -1.5):
            options: dict[str, Any] = {option: value}
            # A socket for each call: from 3.14 on asyncio closes it.
            ours, theirs = tcp_pair()
            accepted, their_other = tcp_pair()
            with ours, theirs, accepted, their_other:
                message = rf"^{option} should be a positive number, got {value}$"
                with pytest.raises(ValueError, match=message):
                    await each_loop.create_connection(
                        Echo, sock=ours, ssl=contexts.client, server_hostname="", **options
                    )
                with pytest.raises(ValueError, match=message):
                    await each_loop.connect_accepted_socket(
                        Echo, accepted, ssl=contexts.server, **options
                    )


@on_loop
async def test_a_refused_argument_closes_the_socket(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    # Stock asyncio leaves the connected socket to the garbage collector.
    with accepting() as (listener, address):
        before = open_fds()
        with pytest.raises(ValueError, match=r"^ssl_handshake_timeout should be a positive"):
            await loop.create_connection(
                Echo, *address, ssl=contexts.client, ssl_handshake_timeout=0
            )
        assert open_fds() == before
        sock, _ = await loop.sock_accept(listener)
        with sock:
            assert await loop.sock_recv(sock, 1) == b""


# ── certificates and names ───────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def goes_on(loop: Loop, server: ssl.SSLContext) -> AsyncIterator[tuple[str, int]]:
    """Serve, and check afterwards that the server still answers a valid client."""
    async with tls_serving(loop, Echo, server) as address:
        yield address
        await check_echo(*await tls_client(loop, address, known_client_context()))


@on_loop
async def test_an_unknown_authority_fails_at_the_client_only(
    each_loop: Loop, contexts: Contexts
) -> None:
    async with goes_on(each_loop, contexts.server) as address:
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
            await tls_client(each_loop, address, stranger_context())


@on_loop
async def test_a_wrong_name_fails_at_the_client_only(each_loop: Loop, contexts: Contexts) -> None:
    async with goes_on(each_loop, contexts.server) as address:
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await each_loop.create_connection(
                Echo, *address, ssl=contexts.client, server_hostname="example.org"
            )


@on_loop
async def test_an_empty_server_hostname_means_no_name(each_loop: Loop, contexts: Contexts) -> None:
    unchecked = client_context()
    unchecked.check_hostname = False
    async with tls_serving(each_loop, Echo, contexts.server) as address:
        transport, collector = await each_loop.create_connection(
            lambda: Collector(each_loop), *address, ssl=unchecked, server_hostname=""
        )
        assert transport.get_extra_info("ssl_object").server_hostname is None
        await check_echo(transport, collector)


def test_a_failed_handshake_is_reported_in_debug_mode(each_loop: Loop, contexts: Contexts) -> None:
    each_loop.set_debug(True)
    reports: list[HandlerCall] = []

    @on_loop
    async def check(each_loop: Loop) -> None:
        reports.extend(await reports_of_a_refusal(each_loop, contexts))

    check(each_loop=each_loop)
    assert [report["message"] for report in reports] == [DEBUG_REPORT]
    # The server receives the client's alert.
    kind = ssl.SSLError if sends_alerts(each_loop) else ConnectionResetError
    assert isinstance(reports[0]["exception"], kind)
    assert isinstance(reports[0]["protocol"], Echo)
    assert isinstance(reports[0]["transport"], asyncio.Transport)


async def reports_of_a_refusal(loop: Loop, contexts: Contexts) -> list[HandlerCall]:
    handler_calls = record_handler_calls(loop)
    async with tls_serving(loop, Echo, contexts.server) as address:
        with pytest.raises(ssl.SSLCertVerificationError):
            await tls_client(loop, address, stranger_context())
        await until(lambda: bool(handler_calls))
    return handler_calls


@on_loop
async def test_a_client_certificate_is_peercert_of_the_server(each_loop: Loop) -> None:
    guests = Guests(each_loop)
    async with tls_serving(each_loop, guests, strict_server_context()) as address:
        transport, _ = await tls_client(each_loop, address, known_client_context())
        async with ending(transport):
            await guests.arrived()
            certificate = guests.seen[0].transport.get_extra_info("peercert")
            assert certificate["subject"] == ((("commonName", "uringloop test client"),),)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_without_a_certificate_is_refused(
    each_loop: Loop, version: ssl.TLSVersion
) -> None:
    client = client_context()
    client.minimum_version = client.maximum_version = version

    @on_loop
    async def check(each_loop: Loop) -> None:
        async with goes_on(each_loop, strict_server_context()) as address:
            if version == ssl.TLSVersion.TLSv1_2:
                with pytest.raises((ssl.SSLError, ConnectionResetError)):
                    await tls_client(each_loop, address, client)
                return
            # With TLS 1.3 the client's handshake ends before the server checks the certificate.
            transport, collector = await tls_client(each_loop, address, client)
            async with ending(transport):
                await collector.lost
                assert not collector.data

    check(each_loop=each_loop)


# ── negotiation ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls_work(each_loop: Loop, version: ssl.TLSVersion) -> None:
    client = client_context()
    client.minimum_version = client.maximum_version = version

    @on_loop
    async def check(each_loop: Loop) -> None:
        left = Collector(each_loop)
        async with tls_link(each_loop, left, Echo(), Contexts(server_context(), client)) as (
            transport,
            _,
        ):
            name = transport.get_extra_info("ssl_object").version()
            assert name == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]
            await check_echo(transport, left)

    check(each_loop=each_loop)


@on_loop
async def test_a_handshake_without_a_common_version_fails(
    each_loop: Loop, contexts: Contexts
) -> None:
    old = client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    modern = server_context()
    modern.minimum_version = ssl.TLSVersion.TLSv1_3
    async with goes_on(each_loop, modern) as address:
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await tls_client(each_loop, address, old)


@on_loop
async def test_alpn_is_negotiated(each_loop: Loop) -> None:
    server, client = server_context(), client_context()
    server.set_alpn_protocols(["h2", "http/1.1"])
    client.set_alpn_protocols(["http/1.1"])
    chosen: list[str | None] = []

    class Server(Echo):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            chosen.append(transport.get_extra_info("ssl_object").selected_alpn_protocol())

    left = Collector(each_loop)
    async with tls_link(each_loop, left, Server(), Contexts(server, client)) as (transport, _):
        assert transport.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        assert chosen == ["http/1.1"]


@on_loop
async def test_extra_info_describes_tls_and_the_socket(each_loop: Loop, contexts: Contexts) -> None:
    left, right = Collector(each_loop), Collector(each_loop)
    async with tls_link(each_loop, left, right, contexts) as (client, server):
        info = client.get_extra_info
        assert info("sslcontext") is contexts.client
        assert isinstance(info("ssl_object"), ssl.SSLObject)
        assert info("peercert")["subject"] == ((("commonName", "localhost"),),)
        assert info("cipher") == info("ssl_object").cipher()
        assert info("compression") is None
        assert info("peername") == info("socket").getpeername()
        assert info("sockname") == info("socket").getsockname()
        assert info("nothing of the kind") is None
        assert info("nothing of the kind", 7) == 7
        assert server.get_extra_info("sslcontext") is contexts.server
        assert server.get_extra_info("peercert") is None
        assert server.get_extra_info("peername") == info("sockname")


@on_loop
async def test_the_server_learns_the_name_by_sni(each_loop: Loop) -> None:
    names: list[str | None] = []
    server = server_context()
    server.sni_callback = lambda _, name, __: names.append(name)
    left = Collector(each_loop)
    async with tls_link(each_loop, left, Echo(), Contexts(server, client_context())) as (it, _):
        await check_echo(it, left)
    assert names == ["localhost"]


# ── handshakes that do not complete ──────────────────────────────────────────────────────────


# asyncio's default is a minute.
@pytest.mark.parametrize(("timeout", "seconds"), [(20.0, 20.0), (None, 60.0)])
@on_loop
async def test_a_client_of_a_silent_server_times_out(
    each_virtual_loop: Loop, contexts: Contexts, timeout: float | None, seconds: float
) -> None:
    with accepting() as (listener, address):
        watch = Stopwatch(each_virtual_loop)
        before = open_fds()
        connecting = asyncio.create_task(
            tls_client(each_virtual_loop, address, contexts.client, handshake_timeout=timeout)
        )
        silent, _ = await each_virtual_loop.sock_accept(listener)
        with pytest.raises(ConnectionAbortedError, match=r"^SSL handshake is taking longer than"):
            await connecting
        assert watch.shows(seconds)
        silent.close()
        await until(lambda: open_fds() == before)


@pytest.mark.parametrize(("timeout", "seconds"), [(20.0, 20.0), (None, 60.0)])
@on_loop
async def test_a_silent_client_is_disconnected(
    each_virtual_loop: Loop, contexts: Contexts, timeout: float | None, seconds: float
) -> None:
    guests = Guests(each_virtual_loop)
    serving = tls_serving(each_virtual_loop, guests, contexts.server, handshake_timeout=timeout)
    async with serving as address:
        with socket.create_connection(address) as sock:
            sock.setblocking(False)
            watch = Stopwatch(each_virtual_loop)
            # The server aborts the connection without an alert.
            with contextlib.suppress(ConnectionResetError):
                assert await each_virtual_loop.sock_recv(sock, 100) == b""
            assert watch.shows(seconds)
        assert [guest.calls for guest in guests.seen] == [[]]


@on_loop
async def test_a_cancelled_handshake_closes_the_socket(each_loop: Loop, contexts: Contexts) -> None:
    with accepting() as (listener, address):
        before = open_fds()
        task = each_loop.create_task(tls_client(each_loop, address, contexts.client))
        sock, _ = await each_loop.sock_accept(listener)
        with sock:
            # The ClientHello has arrived: the client waits for the answer.
            assert (await each_loop.sock_recv(sock, 1)) == b"\x16"
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: open_fds() == before)


@on_loop
async def test_a_close_in_the_handshake_is_a_connection_reset(
    each_loop: Loop, contexts: Contexts
) -> None:
    with accepting() as (listener, address):
        task = each_loop.create_task(tls_client(each_loop, address, contexts.client))
        sock, _ = await each_loop.sock_accept(listener)
        assert (await each_loop.sock_recv(sock, 1 << 16))[:1] == b"\x16"
        sock.close()
        with pytest.raises(ConnectionResetError):
            await task


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", bytes(100)])
def test_garbage_instead_of_a_hello_ends_that_connection_only(
    each_loop: Loop, contexts: Contexts, first: bytes
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        async with goes_on(each_loop, contexts.server) as address:
            with socket.create_connection(address) as sock:
                sock.setblocking(False)
                sock.send(first)
                # Perhaps an alert, then EOF.
                with contextlib.suppress(ConnectionResetError):
                    while await each_loop.sock_recv(sock, 100):
                        continue

    check(each_loop=each_loop)


@on_loop
async def test_eof_within_a_hello_ends_that_connection_only(
    each_loop: Loop, contexts: Contexts
) -> None:
    async with goes_on(each_loop, contexts.server) as address:
        with socket.create_connection(address) as sock:
            sock.setblocking(False)
            peer = Peer(each_loop, sock, contexts.client)
            hello = peer.records(peer.tls.do_handshake)
            sock.send(hello[: len(hello) // 2])
            await turns(3)
            sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert await each_loop.sock_recv(sock, 100) == b""


@on_loop
async def test_a_hello_may_arrive_byte_by_byte(each_loop: Loop, contexts: Contexts) -> None:
    ours, theirs = tcp_pair()
    theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with theirs:
        peer = Peer(each_loop, theirs, contexts.client)
        accepted = each_loop.create_task(
            each_loop.connect_accepted_socket(Echo, ours, ssl=contexts.server)
        )
        for byte in peer.records(peer.tls.do_handshake):
            await each_loop.sock_sendall(theirs, bytes([byte]))
            await turns(1)
        await peer.handshake()
        transport, _ = await accepted
        async with ending(transport):
            await peer.send(b"ping")
            assert await peer.read_exactly(4) == b"ping"


# ── debug mode ───────────────────────────────────────────────────────────────────────────────


def test_debug_mode_speaks_tls(each_loop: Loop, contexts: Contexts) -> None:
    each_loop.set_debug(True)
    on_loop(test_a_server_and_a_client_speak_tls.__wrapped__)(  # type: ignore[attr-defined]
        each_loop=each_loop, contexts=contexts
    )


@on_loop
async def test_debug_mode_may_begin_within_a_handshake(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    near, far = socket.socketpair()
    accepted = asyncio.ensure_future(
        loop.connect_accepted_socket(asyncio.Protocol, far, ssl=contexts.server)
    )
    # The server waits for the client's hello.
    await turns(3)
    loop.set_debug(True)
    client, _ = await loop.create_connection(
        asyncio.Protocol, sock=near, ssl=contexts.client, server_hostname="localhost"
    )
    server, _ = await accepted
    await abort_and_wait(client)
    await abort_and_wait(server)
