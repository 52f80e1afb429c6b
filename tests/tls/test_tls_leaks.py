"""TLS and sendfile release descriptors, operations, buffers and objects, however they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import ssl
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.loops import LoopFactory
from support.protocols import Collector, Echo
from support.roles import Loop, noise, nothing_left, on_loop, reset, stream, turns, until
from support.tls_contexts import Contexts, client_context, server_context, stranger_context
from support.tls_peers import accepting, tls_client, tls_link, tls_serving, tls_stream

import uringloop

PLENTY = 2 * 1024 * 1024
NARROW = 16 * 1024

Scenario = Callable[[Loop, Contexts], Awaitable[None]]


# ── scenarios ────────────────────────────────────────────────────────────────────────────────


async def close_in_order(loop: Loop, contexts: Contexts) -> None:
    left, right = Collector(loop), Collector(loop)
    async with tls_link(loop, left, right, contexts) as (client, _):
        client.write(noise(PLENTY))
        await right.received(PLENTY)
        client.close()
        await left.lost
        await right.lost


async def abort_while_writing(loop: Loop, contexts: Contexts) -> None:
    left = Collector(loop)
    async with tls_stream(loop, left, contexts, buffer_size=NARROW) as (transport, _):
        transport.write(noise(PLENTY))
        await turns(3)
        transport.abort()
        await left.lost


async def close_in_the_turn_of_a_write(loop: Loop, contexts: Contexts) -> None:
    left = Collector(loop)
    async with tls_stream(loop, left, contexts) as (transport, peer):
        transport.write(b"small")
        transport.close()
        await peer.read_to_end()
        await peer.close()
        await left.lost


async def reset_in_the_turn_of_a_write(loop: Loop, contexts: Contexts) -> None:
    left = Collector(loop)
    async with tls_stream(loop, left, contexts) as (transport, peer):
        reset(peer.sock)
        while not left.lost.done():
            transport.write(b"small")
            await turns(1)


async def abort_while_paused(loop: Loop, contexts: Contexts) -> None:
    right = Collector(loop)
    async with tls_stream(loop, right, contexts, server_side=True) as (transport, peer):
        transport.pause_reading()
        sending = loop.create_task(peer.send(noise(PLENTY)))
        await turns(20)
        transport.abort()
        with contextlib.suppress(ConnectionError):
            await sending
        await right.lost


async def reset_by_the_peer(loop: Loop, contexts: Contexts) -> None:
    left = Collector(loop)
    async with tls_stream(loop, left, contexts) as (transport, peer):
        transport.write(noise(PLENTY))
        reset(peer.sock)
        await left.lost


async def refused_certificate(loop: Loop, contexts: Contexts) -> None:
    async with tls_serving(loop, Echo, contexts.server) as address:
        with pytest.raises(ssl.SSLCertVerificationError):
            await tls_client(loop, address, stranger_context())


async def handshake_timeout(loop: Loop, contexts: Contexts) -> None:
    with accepting() as (_, address), pytest.raises(ConnectionAbortedError):
        await tls_client(loop, address, contexts.client, handshake_timeout=0.01)


async def shutdown_timeout(loop: Loop, contexts: Contexts) -> None:
    left = Collector(loop)
    async with tls_stream(loop, left, contexts, shutdown_timeout=0.01) as (transport, _):
        transport.close()
        await left.lost


async def cancelled_handshake(loop: Loop, contexts: Contexts) -> None:
    with accepting() as (listener, address):
        task = loop.create_task(tls_client(loop, address, contexts.client))
        sock, _ = await loop.sock_accept(listener)
        with sock:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def start_tls_that_fails(loop: Loop, contexts: Contexts) -> None:
    left = Collector(loop)
    async with stream(loop, left) as (transport, peer):
        starting = loop.create_task(
            loop.start_tls(transport, left, contexts.client, server_hostname="localhost")
        )
        await loop.sock_recv(peer, 1)
        peer.send(b"no TLS here")
        with pytest.raises(ssl.SSLError):
            await starting


async def tls_in_tls(loop: Loop, contexts: Contexts) -> None:
    left, right = Collector(loop), Collector(loop)
    async with tls_link(loop, left, right, contexts) as (client, server):
        inner, _ = await asyncio.gather(
            loop.start_tls(client, left, contexts.client, server_hostname="localhost"),
            loop.start_tls(server, right, contexts.server, server_side=True),
        )
        assert inner is not None
        inner.close()
        await left.lost
        await right.lost


async def cancelled_sendfile(loop: Loop, contexts: Contexts) -> None:
    async with stream(loop, Echo(), buffer_size=NARROW) as (transport, _):
        sending = loop.create_task(loop.sendfile(transport, io.BytesIO(noise(PLENTY))))
        await turns(20)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending


SCENARIOS = [
    close_in_order,
    abort_while_writing,
    close_in_the_turn_of_a_write,
    reset_in_the_turn_of_a_write,
    abort_while_paused,
    reset_by_the_peer,
    refused_certificate,
    handshake_timeout,
    shutdown_timeout,
    cancelled_handshake,
    start_tls_that_fails,
    tls_in_tls,
    cancelled_sendfile,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_end_releases_everything(
    loop: uringloop.Loop, contexts: Contexts, scenario: Scenario
) -> None:
    @on_loop
    async def check(loop: uringloop.Loop) -> None:
        async with nothing_left(loop):
            await scenario(loop, contexts)

    check(loop=loop)


# ── objects ──────────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_closed_connections_are_freed(each_loop: Loop, contexts: Contexts) -> None:
    class Mortal(Collector):
        """A class of this test, for weak references."""

    freed: list[weakref.ref[Any]] = []

    def make() -> Mortal:
        protocol = Mortal(each_loop)
        freed.append(weakref.ref(protocol))
        return protocol

    async with tls_serving(each_loop, make, contexts.server) as address:
        transport, collector = await tls_client(each_loop, address, contexts.client)
        transport.close()
        await collector.lost
        with pytest.raises(ssl.SSLCertVerificationError):
            await tls_client(each_loop, address, stranger_context())
        await until(lambda: len(freed) == 2)
    await turns(5)
    gc.collect()
    assert [ref() for ref in freed] == [None, None]


def test_contexts_are_freed_with_the_loop(loop_factory: LoopFactory) -> None:
    loop = loop_factory()
    fresh = Contexts(server_context(), client_context())
    refs = [weakref.ref(fresh.server), weakref.ref(fresh.client)]
    loop.run_until_complete(close_in_order(loop, fresh))
    loop.close()
    del fresh, loop
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
