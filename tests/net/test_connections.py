"""create_connection: every argument, errors, happy eyeballs, cancelling, leaks after failures."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from support.leaks import leak_checked, open_fds
from support.protocols import Collector, Echo
from support.roles import (
    Loop,
    connected,
    needs_ipv6,
    on_loop,
    released,
    serving,
    silent_listener,
    stream,
    turns,
    until,
    unused_port,
)
from support.sockets import tcp_pair
from support.virtual_time import SEEDS, Stopwatch

import uringloop
from uringloop import testing

LOCALHOST = "127.0.0.1"

Connecting = Awaitable[tuple[asyncio.Transport, Collector]]
Connect = Callable[..., Connecting]


async def check_echo(connecting: Connecting) -> asyncio.Transport:
    """Check that the connection reaches an echo server, close it, and return its transport."""
    transport, collector = await connecting
    assert collector.calls == ["connection_made"]
    assert collector.transport is transport
    transport.write(b"ping")
    assert await collector.received(4) == b"ping"
    transport.close()
    assert await collector.lost is None
    return transport


# ── arguments ─────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_nothing_is_received_before_the_connection_is_handed_out(each_loop: Loop) -> None:
    events: list[str] = []

    class Greeting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"hello")
            transport.close()

    class Client(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            events.append("data")
            received.set_result(data)

    received = each_loop.create_future()
    server = await each_loop.create_server(Greeting, "127.0.0.1", 0)
    transport, _ = await each_loop.create_connection(Client, *server.sockets[0].getsockname())
    events.append("connected")
    assert await received == b"hello"
    assert events == ["connected", "data"]
    transport.close()
    server.close()
    await server.wait_closed()


@on_loop
async def test_connects_to_host_and_port(each_loop: Loop) -> None:
    connect: Connect = each_loop.create_connection
    async with serving(each_loop, Echo) as (host, port):
        transport = await check_echo(connect(lambda: Collector(each_loop), host, port))
        assert transport.get_extra_info("peername") == (host, port)


@on_loop
async def test_a_host_name_and_a_port_as_text_are_resolved(each_loop: Loop) -> None:
    connect: Connect = each_loop.create_connection
    async with serving(each_loop, Echo) as (_, port):
        for spelling in (port, str(port)):
            await check_echo(connect(lambda: Collector(each_loop), "localhost", spelling))


@on_loop
async def test_a_connected_socket_can_be_given(each_loop: Loop) -> None:
    connect: Connect = each_loop.create_connection
    async with serving(each_loop, Echo) as address:
        sock = connected(address)
        transport = await check_echo(connect(lambda: Collector(each_loop), sock=sock))
        await released(transport)
        assert sock.fileno() == -1


@on_loop
async def test_a_given_socket_becomes_non_blocking(each_loop: Loop) -> None:
    async with serving(each_loop, Echo) as address:
        sock = connected(address)
        transport, _ = await each_loop.create_connection(asyncio.Protocol, sock=sock)
        assert sock.gettimeout() == 0.0
        transport.close()
        await released(transport)


@on_loop
async def test_a_unix_stream_socket_can_be_given(each_loop: Loop) -> None:
    left, right = socket.socketpair()
    collector = Collector(each_loop)
    with right:
        transport, _ = await each_loop.create_connection(lambda: collector, sock=left)
        right.send(b"local")
        assert await collector.received(5) == b"local"
        right.shutdown(socket.SHUT_WR)
        assert await collector.lost is None
        await released(transport)


@on_loop
async def test_a_local_address_is_bound(each_loop: Loop) -> None:
    connect: Connect = each_loop.create_connection
    local = ("127.0.0.2", unused_port("127.0.0.2"))
    async with serving(each_loop, Echo) as (host, port):
        transport = await check_echo(
            connect(lambda: Collector(each_loop), host, port, local_addr=local)
        )
        assert transport.get_extra_info("sockname") == local


@on_loop
async def test_the_error_of_a_failed_bind_names_the_local_address(each_loop: Loop) -> None:
    before = open_fds()
    with socket.create_server((LOCALHOST, 0)) as holder:
        local = holder.getsockname()
        expected = f"error while attempting to bind on address {local!r}: "
        with pytest.raises(OSError, match="error while attempting to bind") as caught:
            await each_loop.create_connection(Echo, LOCALHOST, unused_port(), local_addr=local)
        assert caught.value.errno == errno.EADDRINUSE
        assert expected in str(caught.value)
        assert str(caught.value).endswith(os.strerror(errno.EADDRINUSE).lower())
    assert open_fds() == before


@needs_ipv6
@on_loop
async def test_a_local_address_of_another_family_is_an_error(each_loop: Loop) -> None:
    with pytest.raises(OSError, match="no matching local address with family="):
        await each_loop.create_connection(Echo, LOCALHOST, unused_port(), local_addr=("::1", 0))


@needs_ipv6
@on_loop
async def test_family_restricts_the_addresses(each_loop: Loop) -> None:
    connect: Connect = each_loop.create_connection
    async with serving(each_loop, Echo) as (_, port):
        for family in (socket.AF_UNSPEC, socket.AF_INET):
            await check_echo(connect(lambda: Collector(each_loop), None, port, family=family))
        with pytest.raises(ConnectionRefusedError):
            await connect(Echo, None, port, family=socket.AF_INET6)


@on_loop
async def test_proto_and_flags_go_to_the_resolver(each_loop: Loop) -> None:
    connect: Connect = each_loop.create_connection
    async with serving(each_loop, Echo) as (host, port):
        await check_echo(
            connect(lambda: Collector(each_loop), host, port, proto=socket.IPPROTO_TCP)
        )
        with pytest.raises(socket.gaierror):
            await each_loop.create_connection(Echo, "localhost", port, flags=socket.AI_NUMERICHOST)


@on_loop
async def test_a_name_that_does_not_exist_is_a_resolver_error(each_loop: Loop) -> None:
    with pytest.raises(socket.gaierror):
        await each_loop.create_connection(Echo, "no-such-name.invalid", 80)


@on_loop
async def test_ssl_none_means_no_tls(each_loop: Loop) -> None:
    connect: Connect = each_loop.create_connection
    async with serving(each_loop, Echo) as (host, port):
        await check_echo(connect(lambda: Collector(each_loop), host, port, ssl=None))


@on_loop
async def test_contradictory_arguments_raise_value_error(each_loop: Loop) -> None:
    connect: Connect = each_loop.create_connection
    both = r"^host/port and sock can not be specified at the same time$"
    with socket.socket() as sock:
        with pytest.raises(ValueError, match=both):
            await connect(Echo, LOCALHOST, 80, sock=sock)
        with pytest.raises(ValueError, match=both):
            await connect(Echo, port=80, sock=sock)
    with pytest.raises(
        ValueError, match=r"^host and port was not specified and no sock specified$"
    ):
        await connect(Echo)
    for option in ("server_hostname", "ssl_handshake_timeout", "ssl_shutdown_timeout"):
        with pytest.raises(ValueError, match=rf"^{option} is only meaningful with ssl$"):
            await connect(Echo, LOCALHOST, 80, **{option: 1})
    with pytest.raises(ValueError, match=r"^You must set server_hostname when using ssl without"):
        await connect(Echo, port=80, ssl=True)
    wrong = pytest.raises(ValueError, match=r"^A Stream Socket was expected, got <socket")
    with socket.socket(type=socket.SOCK_DGRAM) as sock, wrong:
        await connect(Echo, sock=sock)


# ── refusals ──────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_a_refused_connection_names_its_address(each_loop: Loop) -> None:
    before = open_fds()
    port = unused_port()
    with pytest.raises(ConnectionRefusedError) as caught:
        await each_loop.create_connection(Echo, LOCALHOST, port)
    assert caught.value.errno == errno.ECONNREFUSED
    assert str(caught.value) == f"[Errno 111] Connect call failed ('127.0.0.1', {port})"
    assert open_fds() == before


@needs_ipv6
@pytest.mark.parametrize("options", [{}, {"interleave": 1}, {"happy_eyeballs_delay": 0.1}])
@on_loop
async def test_refusals_of_several_addresses_are_raised_as_one_error(
    each_loop: Loop, options: dict[str, float]
) -> None:
    connect: Connect = each_loop.create_connection
    before = open_fds()
    port = unused_port()
    with pytest.raises(OSError, match=r"^Multiple exceptions: ") as caught:
        await connect(Echo, None, port, **options)
    assert type(caught.value) is OSError
    assert f"[Errno 111] Connect call failed ('127.0.0.1', {port})" in str(caught.value)
    assert f"[Errno 111] Connect call failed ('::1', {port}, 0, 0)" in str(caught.value)
    assert open_fds() == before


async def check_all_errors(connect: Connect) -> None:
    port = unused_port()
    for host, family, count in ((LOCALHOST, 0, 1), (None, 0, 2), (None, socket.AF_INET6, 1)):
        with pytest.raises(ExceptionGroup, match=r"^create_connection failed") as caught:
            await connect(Echo, host, port, family=family, all_errors=True)
        assert [type(e) for e in caught.value.exceptions] == [ConnectionRefusedError] * count


@needs_ipv6
@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has all_errors since 3.12")
@on_loop
async def test_all_errors_raises_a_group(each_loop: Loop) -> None:
    await check_all_errors(each_loop.create_connection)


@needs_ipv6
@on_loop
async def test_all_errors_works_on_every_python_version(loop: uringloop.Loop) -> None:
    await check_all_errors(loop.create_connection)


@needs_ipv6
@on_loop
async def test_the_next_address_is_tried_after_a_refusal(each_loop: Loop) -> None:
    connect: Connect = each_loop.create_connection
    async with serving(each_loop, Echo) as (_, port):
        for interleave in (None, 1, 2):
            transport = await check_echo(
                connect(lambda: Collector(each_loop), None, port, interleave=interleave)
            )
            assert transport.get_extra_info("peername")[0] == LOCALHOST


# ── happy eyeballs ────────────────────────────────────────────────────────────────────────


@needs_ipv6
@on_loop
async def test_the_next_address_is_tried_after_the_delay(each_loop: Loop) -> None:
    connect: Connect = each_loop.create_connection
    async with serving(each_loop, Echo) as (_, port):
        before = open_fds()
        with silent_listener(("::1", port)):
            started = each_loop.time()
            transport = await check_echo(
                connect(lambda: Collector(each_loop), None, port, happy_eyeballs_delay=0.05)
            )
            assert each_loop.time() - started > 0.04
            assert transport.get_extra_info("peername") == (LOCALHOST, port)
        await released(transport)
        await turns(3)
        assert len(open_fds()) == len(before)


@needs_ipv6
@on_loop
async def test_the_next_address_is_tried_without_delay_after_a_refusal(
    each_virtual_loop: Loop,
) -> None:
    connect: Connect = each_virtual_loop.create_connection
    async with serving(each_virtual_loop, Echo) as (_, port):
        watch = Stopwatch(each_virtual_loop)
        made = connect(lambda: Collector(each_virtual_loop), None, port, happy_eyeballs_delay=3600)
        await check_echo(made)
        assert watch.shows(0)


class Resolving(testing.Loop):
    """A loop for tests on which the name "service" has the addresses of three hosts."""

    hosts = ("first", "second", "third")

    async def getaddrinfo(self, host: Any, *args: Any, **options: Any) -> Any:
        infos = []
        for each in self.hosts if host == "service" else (host,):
            infos += await super().getaddrinfo(each, *args, **options)
        return infos


@contextlib.contextmanager
def resolving(seed: int) -> Iterator[Resolving]:
    for loop in leak_checked(lambda: Resolving(seed)):
        assert isinstance(loop, Resolving)
        for host in loop.hosts:
            loop.network.address(host)
        yield loop


@contextlib.asynccontextmanager
async def serving_on_hosts(loop: Resolving) -> AsyncIterator[int]:
    """Serve Echo on all hosts, at the same port."""
    port = unused_port()
    hosts = [loop.network.address(host) for host in loop.hosts]
    server = await loop.create_server(Echo, hosts, port)
    yield port
    server.close()
    await turns(3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("unreachable", [0, 1, 2])
def test_addresses_are_tried_one_after_the_other(unreachable: int, seed: int) -> None:
    async def main(loop: Resolving) -> None:
        for host in loop.hosts[:unreachable]:
            loop.network.partition("localhost", host)
        connect: Connect = loop.create_connection
        async with serving_on_hosts(loop) as port:
            before = open_fds()
            watch = Stopwatch(loop)
            made = connect(lambda: Collector(loop), "service", port, happy_eyeballs_delay=0.25)
            transport = await check_echo(made)
            assert watch.shows(0.25 * unreachable)
            reached = loop.network.address(loop.hosts[unreachable])
            assert transport.get_extra_info("peername") == (reached, port)
            # The attempts that have lost have ended, and connect to nothing later.
            for host in loop.hosts:
                loop.network.heal("localhost", host)
            await asyncio.sleep(3600)
            assert open_fds() == before

    with resolving(seed) as loop:
        loop.run_until_complete(main(loop))


@pytest.mark.parametrize("seed", range(20))
def test_attempts_that_end_at_the_same_instant_leave_one_connection(seed: int) -> None:
    async def main(loop: Resolving) -> None:
        # The handshakes end when the next attempt begins, and all at the same time.
        for host, latency in zip(loop.hosts, (0.25, 0.125, 0.0), strict=True):
            loop.network.set_route("localhost", host, latency=latency)
        connect: Connect = loop.create_connection
        async with serving_on_hosts(loop) as port:
            before = open_fds()
            watch = Stopwatch(loop)
            made = connect(lambda: Collector(loop), "service", port, happy_eyeballs_delay=0.25)
            transport, collector = await made
            assert watch.shows(0.5)
            assert collector.calls == ["connection_made"]
            transport.close()
            await collector.lost
            await asyncio.sleep(3600)
            assert open_fds() == before

    with resolving(seed) as loop:
        loop.run_until_complete(main(loop))


@needs_ipv6
@on_loop
async def test_the_first_address_is_used_if_it_accepts(each_loop: Loop) -> None:
    connect: Connect = each_loop.create_connection
    async with serving(each_loop, Echo) as (_, port):
        infos = await each_loop.getaddrinfo(None, port, type=socket.SOCK_STREAM)
        assert len(infos) == 2
        server = await each_loop.create_server(Echo, "::1", port)
        transport = await check_echo(
            connect(lambda: Collector(each_loop), None, port, happy_eyeballs_delay=0.25)
        )
        assert transport.get_extra_info("peername")[:2] == infos[0][4][:2]
        server.close()


# ── cancelling and failing ────────────────────────────────────────────────────────────────


@on_loop
async def test_cancelling_a_connect_leaves_no_descriptor(each_loop: Loop) -> None:
    with silent_listener((LOCALHOST, 0)) as (host, port):
        before = open_fds()
        connecting = each_loop.create_task(each_loop.create_connection(Echo, host, port))
        await turns(5)
        assert len(open_fds()) == len(before) + 1
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await turns(3)
        assert open_fds() == before


@on_loop
async def test_a_connect_can_time_out(each_loop: Loop) -> None:
    with silent_listener((LOCALHOST, 0)) as (host, port):
        before = open_fds()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await each_loop.create_connection(Echo, host, port)
        await turns(3)
        assert open_fds() == before


@needs_ipv6
@on_loop
async def test_cancelling_a_race_of_connects_leaves_no_descriptor(each_loop: Loop) -> None:
    with silent_listener((LOCALHOST, 0)) as (_, port), silent_listener(("::1", port)):
        before = open_fds()
        connect: Connect = each_loop.create_connection
        connecting = asyncio.ensure_future(connect(Echo, None, port, happy_eyeballs_delay=0.001))
        await until(lambda: len(open_fds()) == len(before) + 2)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await turns(3)
        assert open_fds() == before


@on_loop
async def test_a_failing_factory_leaves_no_descriptor(loop: uringloop.Loop) -> None:
    # uringloop only: asyncio leaves the socket to the garbage collector, with a ResourceWarning.
    def factory() -> asyncio.Protocol:
        raise error

    error = ValueError("no protocol today")
    async with serving(loop, Echo) as (host, port):
        before = open_fds()
        with pytest.raises(ValueError, match="no protocol today") as caught:
            await loop.create_connection(factory, host, port)
        assert caught.value is error
        await until(lambda: open_fds() == before)


@on_loop
async def test_connection_made_runs_before_the_connection_is_returned(each_loop: Loop) -> None:
    name = contextvars.ContextVar("name", default="unset")
    seen: list[str] = []

    class Witness(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            seen.append(name.get())

    ours, peer = tcp_pair()
    with peer:
        name.set("of the caller")
        transport, _ = await each_loop.create_connection(Witness, sock=ours)
        assert seen == ["of the caller"]
        transport.close()
        await released(transport)


@on_loop
async def test_a_hundred_concurrent_connects_succeed(each_loop: Loop) -> None:
    connect: Connect = each_loop.create_connection
    async with serving(each_loop, Echo) as (host, port):
        await asyncio.gather(
            *(check_echo(connect(lambda: Collector(each_loop), host, port)) for _ in range(100))
        )


@on_loop
async def test_private_attributes_that_programs_read_exist(each_loop: Loop) -> None:
    async with stream(each_loop, collector := Collector(each_loop)) as (transport, _):
        private: Any = transport
        assert private._protocol is collector
        assert private._sock.fileno() == transport.get_extra_info("socket").fileno()
        assert private._extra["socket"] is transport.get_extra_info("socket")
        assert (private._paused, private._closing) == (False, False)
        transport.pause_reading()
        assert private._paused
        transport.abort()
        assert private._closing
        owner: Any = each_loop
        assert not owner._closed
