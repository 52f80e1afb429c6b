"""Memory lent to OpenSSL: it reads records from the receive buffer and writes them to the queue."""

from __future__ import annotations

import _ssl
import asyncio
import contextlib
import ctypes
import ssl
import threading
from collections.abc import Iterator
from types import ModuleType

import pytest
from support.protocols import Collector, Echo
from support.roles import Loop, noise, on_loop, reset, turns, until
from support.sockets import tcp_pair
from support.sources import constant
from support.tls_contexts import Contexts, client_context, server_context
from support.tls_peers import Peer, ending, tls_link, tls_stream

import uringloop
from uringloop._cpython import stdlib
from uringloop._ring import backends

RECORD = 16 * 1024
SCRATCH_MIN = constant("_tls/ssl_protocol.pyx", "SCRATCH_MIN")
SCRATCH_MAX = constant("_tls/ssl_protocol.pyx", "SCRATCH_MAX")
PLENTY = 2 * SCRATCH_MAX + 7


@pytest.fixture(autouse=True, params=["used", "disabled"], ids=["lent", "copied"])
def memory_lent(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run each test with lent memory, and with copies through the BIOs' own memory."""
    wanted: str = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("URINGLOOP_DISABLE", "" if wanted == "used" else "bio_memory")
        backends.disable_features()
        if stdlib.report()["bio_memory"] != wanted:
            pytest.skip("OpenSSL is not a shared library here")
        yield wanted == "used"
    backends.disable_features()


def exports_bio_ctrl(module: ModuleType) -> bool:
    path = getattr(module, "__file__", None)
    return path is not None and hasattr(ctypes.CDLL(path), "BIO_ctrl")


@pytest.mark.skipif(not exports_bio_ctrl(_ssl), reason="OpenSSL is not a shared library here")
def test_memory_is_lent_where_openssl_is_a_library() -> None:
    assert stdlib.report()["bio_memory"] != "absent"


# ── receiving ────────────────────────────────────────────────────────────────────────────────


async def handshake_without_session_tickets(loop: Loop, peer: Peer) -> None:
    """Do the server's part of the handshake; the session tickets are not sent."""
    while True:
        try:
            peer.tls.do_handshake()
        except ssl.SSLWantReadError:
            await peer.flush()
            peer.incoming.write(await loop.sock_recv(peer.sock, 1 << 20))
        else:
            return


@on_loop
async def test_session_tickets_and_data_may_come_together(
    each_loop: Loop, contexts: Contexts
) -> None:
    left = Collector(each_loop)
    ours, theirs = tcp_pair()
    with theirs:
        peer = Peer(each_loop, theirs, contexts.server, server_side=True)
        connecting = each_loop.create_connection(
            lambda: left, sock=ours, ssl=contexts.client, server_hostname="localhost"
        )
        (transport, _), _ = await asyncio.gather(
            connecting, handshake_without_session_tickets(each_loop, peer)
        )
        async with ending(transport):
            assert peer.outgoing.pending
            peer.tls.write(noise(3 * RECORD))
            peer.tls.write(b"and more")
            await peer.flush()
            data = await left.received(3 * RECORD + 8)
            assert data == noise(3 * RECORD) + b"and more"


@pytest.mark.parametrize("cut", [0, 1, 5, 700, RECORD, RECORD + 10])
def test_an_incomplete_record_may_be_followed_by_several(
    each_loop: Loop, contexts: Contexts, cut: int
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        right = Collector(each_loop)
        async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
            for seed in range(5):
                peer.tls.write(noise(5 * RECORD, seed))
                data = peer.outgoing.read()
                await each_loop.sock_sendall(peer.sock, data[:cut])
                await turns(3)
                await each_loop.sock_sendall(peer.sock, data[cut:])
                got = await right.received((seed + 1) * 5 * RECORD)
                assert got[-5 * RECORD :] == noise(5 * RECORD, seed)

    check(each_loop=each_loop)


@on_loop
async def test_records_after_close_notify_are_not_read(each_loop: Loop, contexts: Contexts) -> None:
    right = Collector(each_loop)
    async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
        peer.tls.write(b"one ")
        peer.tls.write(b"two")
        data = peer.records(peer.tls.unwrap)
        await each_loop.sock_sendall(peer.sock, data + data[:40])
        assert await right.lost is None
        assert right.data == b"one two"
        assert right.calls[-2:] == ["eof_received", "connection_lost"]


@pytest.mark.parametrize("damaged", [0, 1, 3])
def test_a_damaged_record_among_others_is_an_error(
    each_loop: Loop, contexts: Contexts, damaged: int
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        right = Collector(each_loop)
        async with tls_stream(each_loop, right, contexts, server_side=True) as (_, peer):
            records = []
            for seed in range(4):
                peer.tls.write(noise(1000, seed))
                records.append(bytearray(peer.outgoing.read()))
            records[damaged][500] ^= 1
            await each_loop.sock_sendall(peer.sock, b"".join(records))
            assert isinstance(await right.lost, ssl.SSLError)
            # asyncio drops the records before it.
            before = damaged if isinstance(each_loop, uringloop.Loop) else 0
            assert right.data == b"".join(noise(1000, seed) for seed in range(before))

    check(each_loop=each_loop)


# ── sending ──────────────────────────────────────────────────────────────────────────────────

SIZES = (
    1,
    SCRATCH_MIN - 1,
    SCRATCH_MIN,
    RECORD,
    RECORD + 1,
    100_000,
    SCRATCH_MAX,
    PLENTY,
)


@pytest.mark.parametrize("buffer_size", [0, RECORD])
def test_large_writes_arrive_in_order(
    each_loop: Loop, contexts: Contexts, buffer_size: int
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        left = Collector(each_loop)
        linked = tls_stream(each_loop, left, contexts, buffer_size=buffer_size)
        async with linked as (transport, peer):
            expected = b""
            for seed, size in enumerate(SIZES + SIZES[::-1]):
                expected += noise(size, seed)
                transport.write(noise(size, seed))
                if seed % 3 == 0:
                    await turns(1)
            assert await peer.read_exactly(len(expected)) == expected

    check(each_loop=each_loop)


@on_loop
async def test_large_writes_pause_and_resume(each_loop: Loop, contexts: Contexts) -> None:
    left = Collector(each_loop)
    async with tls_stream(each_loop, left, contexts, buffer_size=RECORD) as (transport, peer):
        sent = b""
        while "pause_writing" not in left.calls:
            transport.write(noise(PLENTY, len(sent)))
            sent += noise(PLENTY, len(sent))
            assert len(sent) < 10 * PLENTY
        transport.write(b"end")
        assert await peer.read_exactly(len(sent) + 3) == sent + b"end"
        await until(lambda: left.calls[-1] == "resume_writing")


@on_loop
async def test_writes_to_a_full_transport_wait_as_they_are(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    # asyncio encrypts all at once, and pauses the program at the next write.
    left = Collector(loop)
    async with tls_stream(loop, left, contexts, buffer_size=RECORD) as (transport, peer):
        large, small = noise(2 * PLENTY), [noise(10, seed) for seed in range(100)]
        transport.write(large)
        assert left.calls == ["connection_made", "pause_writing"]
        # The transport below has the records of what is no longer counted here.
        assert 2 * PLENTY - SCRATCH_MAX <= transport.get_write_buffer_size() < 2 * PLENTY
        for data in small:
            transport.write(data)
        assert await peer.read_exactly(len(large)) == large
        # One record.
        assert await peer.read() == b"".join(small)
        assert left.calls == ["connection_made", "pause_writing", "resume_writing"]


@on_loop
async def test_close_sends_what_waits_for_a_full_transport(
    loop: uringloop.Loop, contexts: Contexts
) -> None:
    left = Collector(loop)
    async with tls_stream(loop, left, contexts, buffer_size=RECORD) as (transport, peer):
        sent = noise(PLENTY) + b"end"
        transport.write(sent[:PLENTY])
        transport.write(sent[PLENTY:])
        transport.close()
        assert await peer.read_to_end() == sent
        await peer.close()
        assert await left.lost is None


@pytest.mark.parametrize("size", [RECORD, PLENTY])
def test_a_large_write_after_a_reset_is_a_connection_reset(
    each_loop: Loop, contexts: Contexts, size: int
) -> None:
    @on_loop
    async def check(each_loop: Loop) -> None:
        left = Collector(each_loop)
        async with tls_stream(each_loop, left, contexts) as (transport, peer):
            reset(peer.sock)
            transport.write(noise(size))
            transport.write(noise(size))
            assert isinstance(await left.lost, ConnectionResetError)

    check(each_loop=each_loop)


@on_loop
async def test_close_after_a_large_write_sends_all_of_it(
    each_loop: Loop, contexts: Contexts
) -> None:
    left, right = Collector(each_loop), Collector(each_loop)
    async with tls_link(each_loop, left, right, contexts, buffer_size=RECORD) as (client, _):
        client.write(b"first")
        client.write(noise(PLENTY))
        client.close()
        assert await right.lost is None
        assert right.data == b"first" + noise(PLENTY)


# ── threads and callbacks ────────────────────────────────────────────────────────────────────


def test_loops_of_several_threads_write_at_once() -> None:
    async def echo_many(contexts: Contexts) -> None:
        loop = asyncio.get_running_loop()
        async with tls_stream(loop, Echo(), contexts, server_side=True) as (_, peer):
            for seed in range(20):
                await asyncio.gather(peer.send(noise(200_000, seed)))
                assert await peer.read_exactly(200_000) == noise(200_000, seed)
        done.append(None)

    def run() -> None:
        uringloop.run(echo_many(Contexts(server_context(), client_context())))

    done: list[None] = []
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 4


@on_loop
async def test_bytes_from_a_callback_of_openssl_are_refused(
    loop: uringloop.Loop, memory_lent: bool
) -> None:
    """A callback of the program must not write to lent memory."""
    if not memory_lent:
        pytest.skip("allowed with the BIO's own memory")
    refused = []
    right = Collector(loop)
    contexts = Contexts(server_context(), client_context())

    def more(*_: object) -> None:
        with contextlib.suppress(AttributeError):
            # The protocol has no transport before the end of the handshake.
            protocol = right.transport._ssl_protocol  # type: ignore[attr-defined]
            with pytest.raises(RuntimeError) as caught:
                protocol.take_ahead(b"more")
            refused.append(str(caught.value))

    contexts.server._msg_callback = more  # type: ignore[attr-defined]
    async with tls_stream(loop, right, contexts, server_side=True) as (_, peer):
        await peer.send(b"data")
        assert await right.received(4) == b"data"
        del right.transport
    assert set(refused) == {"bytes came while OpenSSL was reading others"}
