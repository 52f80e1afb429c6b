"""Descriptors that the program replaces or closes under a transport: the loop does not spin."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.datagrams import endpoint, udp, unix_pair
from support.protocols import Collector
from support.roles import Loop, nothing_comes, on_loop, record_handler_calls, turns, until
from support.sockets import tcp_pair

import uringloop

Replace = Callable[[int], None]


def null(fd: int) -> None:
    """Put the null device in the place of *fd*."""
    other = os.open("/dev/null", os.O_RDWR)
    os.dup2(other, fd)
    os.close(other)


def regular_file(fd: int) -> None:
    """Put a file with bytes in it in the place of *fd*."""
    other = os.open(__file__, os.O_RDONLY)
    os.dup2(other, fd)
    os.close(other)


def pipe(fd: int) -> None:
    """Put the reading end of a pipe whose writing end is closed in the place of *fd*."""
    reading, writing = os.pipe()
    os.dup2(reading, fd)
    os.close(reading)
    os.close(writing)


def unconnected_stream(fd: int) -> None:
    """Put a stream socket without a peer in the place of *fd*."""
    with socket.socket() as other:
        os.dup2(other.fileno(), fd)


def ended_stream(fd: int) -> None:
    """Put a stream socket whose peer has gone in the place of *fd*."""
    left, right = socket.socketpair()
    with left, right:
        os.dup2(left.fileno(), fd)


async def replace_unarmed(transport: Any, peer: socket.socket, replace: Replace) -> None:
    """Replace the descriptor of an endpoint while no receive is armed, and arm one."""
    await until(lambda: "read=polling" in repr(transport))
    transport.pause_reading()
    peer.send(b"stop")
    # The poll that the pause has left completes with that.
    await nothing_comes(asyncio.get_running_loop())
    replace(transport.get_extra_info("socket").fileno())
    transport.resume_reading()


async def stays_idle(transport: object, calls: list[Any]) -> None:
    """Check that no receive is armed, and that *calls* does not grow."""
    count = len(calls)
    for _ in range(50):
        await turns()
        assert "read=idle" in repr(transport)
    assert len(calls) == count


@pytest.mark.parametrize("replace", [null, regular_file, pipe, unconnected_stream])
@on_loop
async def test_a_replaced_endpoint_reports_one_error(
    loop: uringloop.Loop, replace: Replace
) -> None:
    async with endpoint(loop, local_addr=("127.0.0.1", 0)) as (transport, mailbox):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.connect(transport.get_extra_info("sockname"))
            await replace_unarmed(transport, peer, replace)
            (failure,) = await mailbox.failed()
            assert isinstance(failure, OSError)
            assert failure.errno in (errno.ENOTSOCK, errno.ENOTCONN)
            assert not mailbox.data
            await stays_idle(transport, mailbox.errors)
            assert not transport.is_closing()


@pytest.mark.parametrize("replace", [null, regular_file, pipe, unconnected_stream])
@on_loop
async def test_a_replaced_unix_endpoint_reports_one_error(
    loop: uringloop.Loop, tmp_path: Path, replace: Replace
) -> None:
    ours, peer = unix_pair(tmp_path)
    with peer:
        async with endpoint(loop, sock=ours) as (transport, mailbox):
            await replace_unarmed(transport, peer, replace)
            (failure,) = await mailbox.failed()
            assert isinstance(failure, OSError)
            assert failure.errno in (errno.ENOTSOCK, errno.ENOTCONN)
            await stays_idle(transport, mailbox.errors)


@on_loop
async def test_an_endpoint_replaced_by_a_stream_at_eof_receives_one_empty_datagram(
    loop: uringloop.Loop,
) -> None:
    async with endpoint(loop, local_addr=("127.0.0.1", 0)) as (transport, mailbox):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.connect(transport.get_extra_info("sockname"))
            await replace_unarmed(transport, peer, ended_stream)
            await mailbox.received(1)
            assert mailbox.data == [b""]
            await stays_idle(transport, mailbox.mail)


@on_loop
async def test_network_errors_do_not_end_receiving(each_loop: Loop) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    async with endpoint(each_loop, remote_addr=address) as (transport, mailbox):
        for count in range(1, 4):
            # The peer refuses, and the next receive or send fails with ECONNREFUSED.
            transport.sendto(b"nobody")
            failures = await mailbox.failed(count)
            assert isinstance(failures[-1], ConnectionRefusedError)
        with udp(*address) as peer:
            peer.connect(transport.get_extra_info("sockname"))
            peer.send(b"news")
            await until(lambda: b"news" in mailbox.data)


# ── closed under a transport ─────────────────────────────────────────────────────────────────


@on_loop
async def test_abort_of_a_stream_with_a_closed_descriptor_does_not_end_the_run(
    loop: uringloop.Loop,
) -> None:
    handler_calls = record_handler_calls(loop)
    ours, peer = tcp_pair()
    collector = Collector(loop)
    transport, _ = await loop.create_connection(lambda: collector, sock=ours)
    await turns(3)
    fd = os.dup(ours.fileno())
    with peer:
        os.close(ours.fileno())
        transport.abort()
        assert await collector.lost is None
        await until(lambda: bool(handler_calls))
    os.close(fd)
    assert [call["message"] for call in handler_calls] == [
        "Exception in callback StreamTransport._call_connection_lost()"
    ]
    assert isinstance(handler_calls[0]["exception"], OSError)
    assert handler_calls[0]["exception"].errno == errno.EBADF


@on_loop
async def test_write_to_a_pipe_with_a_closed_descriptor_does_not_end_the_run(
    loop: uringloop.Loop,
) -> None:
    handler_calls = record_handler_calls(loop)
    reading, writing = os.pipe()
    collector = Collector(loop)
    transport, _ = await loop.connect_write_pipe(lambda: collector, os.fdopen(writing, "wb", 0))
    await turns(3)
    os.close(writing)
    transport.write(b"x")
    lost = await collector.lost
    assert isinstance(lost, OSError)
    await until(
        lambda: any("_call_connection_lost" in str(call["message"]) for call in handler_calls)
    )
    os.close(reading)
