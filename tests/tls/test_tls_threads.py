"""A TLS transport that other threads use while the loop's thread does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pytest
from support.roles import PATIENCE, abort_and_wait, on_loop
from support.tls_contexts import Contexts

import uringloop
from uringloop._cpython import gil
from uringloop._tls.ssl_protocol import SSLTransport

CHANGES = 300


def use(transport: SSLTransport, over: threading.Event, wrong: list[object]) -> None:
    """Read the transport until *over*, and write to it, which is refused."""
    while not over.is_set():
        values = (
            transport.get_protocol(),
            transport.get_extra_info("cipher"),
            transport.get_extra_info("socket"),
            *transport.get_write_buffer_limits(),
            *transport.get_read_buffer_limits(),
        )
        if None in values or transport.is_closing():
            wrong.append(values)
        with contextlib.suppress(RuntimeError):
            transport.write(b"from a wrong thread")
            wrong.append("a write")


@pytest.mark.slow
@pytest.mark.skipif(not gil.free_threaded(), reason="with a GIL only debug mode checks the thread")
@on_loop
async def test_threads_read_a_transport_that_changes_and_cannot_write(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    near, far = socket.socketpair()
    reader = asyncio.StreamReader(loop=loop)
    (server, _), (client, _) = await asyncio.gather(
        loop.connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), far, ssl=contexts.server
        ),
        loop.create_connection(
            asyncio.Protocol, sock=near, ssl=contexts.client, server_hostname="localhost"
        ),
    )
    assert isinstance(client, SSLTransport)
    over = threading.Event()
    wrong: list[object] = []
    threads = [threading.Thread(target=use, args=(client, over, wrong)) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(CHANGES):
            client.set_protocol(asyncio.Protocol())
            client.set_write_buffer_limits(100_000 + number)
            client.set_read_buffer_limits(100_000 + number)
            client.write(b"%07d\n" % number)
            assert await reader.readline() == b"%07d\n" % number
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE)
        await abort_and_wait(client)
        await abort_and_wait(server)
    assert wrong == []
