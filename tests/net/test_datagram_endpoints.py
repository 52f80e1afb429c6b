"""create_datagram_endpoint: every argument, its errors, and the first callbacks."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import logging
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from support.datagrams import Mailbox, abort_and_wait, drained, endpoint, udp
from support.roles import Loop, needs_ipv6, on_loop, record_handler_calls, run_script, until

import uringloop
from uringloop._cpython import stdlib

LOCAL = ("127.0.0.1", 0)
IN_USE = rf"\[Errno {errno.EADDRINUSE}\]"


# ── addresses ─────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_local_address_is_bound_and_senders_are_known(each_loop: Loop) -> None:
    async with endpoint(each_loop, local_addr=LOCAL) as (transport, mailbox):
        sockname = transport.get_extra_info("sockname")
        assert sockname[0] == "127.0.0.1"
        assert transport.get_extra_info("peername") is None
        with udp() as peer:
            peer.sendto(b"letter", sockname)
            assert await mailbox.received() == [(b"letter", peer.getsockname())]


@on_loop
async def test_remote_address_connects(each_loop: Loop) -> None:
    with udp() as peer, udp() as stranger:
        async with endpoint(each_loop, remote_addr=peer.getsockname()) as (transport, mailbox):
            assert transport.get_extra_info("peername") == peer.getsockname()
            sockname = transport.get_extra_info("sockname")
            transport.sendto(b"hello")
            assert await each_loop.sock_recvfrom(peer, 100) == (b"hello", sockname)
            stranger.sendto(b"unheard", sockname)
            peer.sendto(b"heard", sockname)
            assert await mailbox.received() == [(b"heard", peer.getsockname())]


@on_loop
async def test_local_and_remote_address_can_be_combined(each_loop: Loop) -> None:
    with udp() as peer, udp() as free:
        local = free.getsockname()
        free.close()
        options = {"local_addr": local, "remote_addr": peer.getsockname()}
        async with endpoint(each_loop, **options) as (transport, _):
            assert transport.get_extra_info("sockname") == local
            assert transport.get_extra_info("peername") == peer.getsockname()


@on_loop
async def test_endpoint_with_a_family_only_can_send_to_any_address(each_loop: Loop) -> None:
    with udp() as peer:
        async with endpoint(each_loop, family=socket.AF_INET) as (transport, mailbox):
            transport.sendto(b"question", peer.getsockname())
            data, address = await each_loop.sock_recvfrom(peer, 100)
            peer.sendto(b"answer", address)
            assert data == b"question"
            assert await mailbox.received() == [(b"answer", peer.getsockname())]


@needs_ipv6
@on_loop
async def test_ipv6_addresses_have_four_parts(each_loop: Loop) -> None:
    async with endpoint(each_loop, local_addr=("::1", 0)) as (transport, mailbox):
        with udp("::1") as peer:
            peer.sendto(b"six", transport.get_extra_info("sockname"))
            [(data, address)] = await mailbox.received()
            assert (data, address) == (b"six", peer.getsockname())
            assert len(address) == 4
            transport.sendto(b"answer", address)
            transport.sendto(b"again", (*address,))
            assert await each_loop.sock_recv(peer, 100) == b"answer"
            assert await each_loop.sock_recv(peer, 100) == b"again"


@needs_ipv6
@on_loop
async def test_dual_stack_socket_reports_mapped_addresses(each_loop: Loop) -> None:
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.bind(("::", 0))
    async with endpoint(each_loop, sock=sock) as (_, mailbox):
        with udp() as peer:
            port = peer.getsockname()[1]
            peer.sendto(b"four", ("127.0.0.1", sock.getsockname()[1]))
            assert await mailbox.received() == [(b"four", ("::ffff:127.0.0.1", port, 0, 0))]


@on_loop
async def test_names_are_resolved(each_loop: Loop) -> None:
    options: dict[str, Any] = {"local_addr": ("localhost", 0), "family": socket.AF_INET}
    async with endpoint(each_loop, **options) as (transport, _):
        assert transport.get_extra_info("sockname")[0] == "127.0.0.1"


@on_loop
async def test_proto_and_flags_reach_the_resolver_and_the_socket(each_loop: Loop) -> None:
    options: dict[str, Any] = {"proto": socket.IPPROTO_UDP, "flags": socket.AI_NUMERICHOST}
    async with endpoint(each_loop, local_addr=LOCAL, **options) as (transport, _):
        assert transport.get_extra_info("socket").proto == socket.IPPROTO_UDP
    with pytest.raises(socket.gaierror):
        await each_loop.create_datagram_endpoint(
            Mailbox, local_addr=("name.invalid", 0), flags=socket.AI_NUMERICHOST
        )


@on_loop
async def test_resolver_that_finds_nothing_is_an_error(
    each_loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object, **__: object) -> list[object]:
        return []

    monkeypatch.setattr(each_loop, "getaddrinfo", nothing)
    with pytest.raises(OSError, match=r"^getaddrinfo\(\) returned empty list$"):
        await each_loop.create_datagram_endpoint(Mailbox, local_addr=("somewhere", 0))


# ── options ───────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_reuse_port_lets_two_endpoints_share_a_port(each_loop: Loop) -> None:
    async with endpoint(each_loop, local_addr=LOCAL, reuse_port=True) as (first, _):
        sockname = first.get_extra_info("sockname")
        async with endpoint(each_loop, local_addr=sockname, reuse_port=True) as (second, _):
            assert second.get_extra_info("sockname") == sockname
        with pytest.raises(OSError, match=IN_USE):
            await each_loop.create_datagram_endpoint(Mailbox, local_addr=sockname)


@on_loop
async def test_broadcast_endpoint_is_not_connected_and_receives_answers(each_loop: Loop) -> None:
    with udp("0.0.0.0") as listener:
        target = ("127.255.255.255", listener.getsockname()[1])
        options: dict[str, Any] = {"remote_addr": target, "allow_broadcast": True}
        async with endpoint(each_loop, **options) as (transport, mailbox):
            assert transport.get_extra_info("peername") is None
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST) == 1
            transport.sendto(b"anybody?")
            transport.sendto(b"anybody else?", target)
            data, address = await each_loop.sock_recvfrom(listener, 100)
            assert data == b"anybody?"
            assert await each_loop.sock_recv(listener, 100) == b"anybody else?"
            listener.sendto(b"me", address)
            assert (await mailbox.received())[0][0] == b"me"


@on_loop
async def test_without_the_broadcast_option_a_broadcast_is_refused(each_loop: Loop) -> None:
    async with endpoint(each_loop, local_addr=LOCAL) as (transport, mailbox):
        transport.sendto(b"anybody?", ("127.255.255.255", 9))
        assert [type(exc) for exc in mailbox.errors] == [PermissionError]
        assert not transport.is_closing()


@on_loop
async def test_socket_may_be_given(each_loop: Loop) -> None:
    with udp() as peer:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(LOCAL)
        async with endpoint(each_loop, sock=sock) as (transport, mailbox):
            assert sock.gettimeout() == 0
            peer.sendto(b"letter", sock.getsockname())
            assert (await mailbox.received())[0][0] == b"letter"
            transport.sendto(b"answer", peer.getsockname())
            assert await each_loop.sock_recv(peer, 100) == b"answer"


@on_loop
async def test_connected_socket_that_is_given_sends_to_its_peer(each_loop: Loop) -> None:
    with udp() as peer:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect(peer.getsockname())
        async with endpoint(each_loop, sock=sock) as (transport, _):
            transport.sendto(b"one")
            # Without remote_addr, sendto() does not check its address argument.
            transport.sendto(b"two", ("127.0.0.1", 9))
            assert await each_loop.sock_recv(peer, 100) == b"one"
            assert await each_loop.sock_recv(peer, 100) == b"two"


# ── UNIX ──────────────────────────────────────────────────────────────────────────────────


@on_loop
async def test_unix_paths_name_both_ends(each_loop: Loop, tmp_path: Path) -> None:
    near, far = str(tmp_path / "near"), str(tmp_path / "far")
    unix: dict[str, Any] = {"family": socket.AF_UNIX}
    async with (
        endpoint(each_loop, local_addr=far, **unix) as (_, mailbox),
        endpoint(each_loop, local_addr=near, remote_addr=far, **unix) as (transport, _),
    ):
        assert transport.get_extra_info("sockname") == near
        assert transport.get_extra_info("peername") == far
        transport.sendto(b"letter")
        assert await mailbox.received() == [(b"letter", near)]
        mailbox.transport.sendto(b"answer", near)
        answered = transport.get_protocol()
        assert isinstance(answered, Mailbox)
        assert await answered.received() == [(b"answer", far)]


@pytest.mark.parametrize("named", [True, False])
@on_loop
async def test_abstract_and_missing_names_are_reported_as_by_recvfrom(
    each_loop: Loop, named: bool
) -> None:
    name = f"\x00uringloop-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        if named:
            peer.bind(f"{name}-peer")
        options: dict[str, Any] = {"local_addr": name, "family": socket.AF_UNIX}
        async with endpoint(each_loop, **options) as (_, mailbox):
            peer.sendto(b"letter", name)
            sender = f"{name}-peer".encode() if named else None
            assert await mailbox.received() == [(b"letter", sender)]


@on_loop
async def test_stale_socket_file_is_removed(each_loop: Loop, tmp_path: Path) -> None:
    path = str(tmp_path / "stale")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
    async with endpoint(each_loop, local_addr=path, family=socket.AF_UNIX) as (transport, _):
        assert transport.get_extra_info("sockname") == path


@on_loop
async def test_file_that_is_no_socket_is_kept(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(OSError, match=IN_USE):
        await each_loop.create_datagram_endpoint(
            Mailbox, local_addr=str(path), family=socket.AF_UNIX
        )
    assert path.read_text() == "data"


@on_loop
async def test_failed_stat_of_a_stale_socket_file_is_logged(
    each_loop: Loop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "below")
    with pytest.raises(NotADirectoryError):
        await each_loop.create_datagram_endpoint(Mailbox, local_addr=path, family=socket.AF_UNIX)
    assert f"Unable to check or remove stale UNIX socket {path!r}: " in caplog.text


# ── errors ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "unexpected address family"),
        ({"local_addr": (), "remote_addr": ""}, ValueError, "unexpected address family"),
        ({"local_addr": "text"}, TypeError, "2-tuple is expected"),
        ({"remote_addr": ("::1", 1, 0, 0)}, TypeError, "2-tuple is expected"),
        ({"local_addr": LOCAL, "remote_addr": ()}, TypeError, "2-tuple is expected"),
        ({"local_addr": LOCAL, "family": socket.AF_UNIX}, TypeError, "string is expected"),
        ({"remote_addr": b"path", "family": socket.AF_UNIX}, TypeError, "string is expected"),
        (
            {"local_addr": LOCAL, "remote_addr": ("::1", 1)},
            ValueError,
            "can not get address information",
        ),
    ],
)
@on_loop
async def test_invalid_arguments_are_refused(
    each_loop: Loop, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        await each_loop.create_datagram_endpoint(Mailbox, **options)
    assert str(caught.value) == message


@on_loop
async def test_reuse_address_is_refused_with_a_reason(loop: uringloop.Loop) -> None:
    # asyncio removed the parameter in 3.11; uvloop still has it.
    with pytest.raises(ValueError, match=r"`reuse_address=True` is no longer supported"):
        await loop.create_datagram_endpoint(Mailbox, local_addr=LOCAL, reuse_address=True)


@on_loop
async def test_false_reuse_address_warns_and_has_no_effect(loop: uringloop.Loop) -> None:
    with pytest.warns(DeprecationWarning, match="has no effect") as warned:
        transport, _ = await loop.create_datagram_endpoint(
            Mailbox, local_addr=LOCAL, reuse_address=False
        )
    assert warned[0].filename == __file__
    sock = transport.get_extra_info("socket")
    assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    await abort_and_wait(transport)
    transport, _ = await loop.create_datagram_endpoint(
        Mailbox, local_addr=LOCAL, reuse_address=None
    )
    await abort_and_wait(transport)


@on_loop
async def test_options_beside_a_socket_are_refused_by_name(each_loop: Loop) -> None:
    options: dict[str, Any] = {
        "local_addr": LOCAL,
        "remote_addr": LOCAL,
        "family": 1,
        "proto": 2,
        "flags": 3,
        "reuse_port": True,
        "allow_broadcast": True,
    }
    with udp() as sock:
        for name, value in options.items():
            wanted = (
                "socket modifier keyword arguments can not be used "
                f"when sock is specified. ({name}={value})"
            )
            with pytest.raises(ValueError, match=f"^{re.escape(wanted)}$"):
                await each_loop.create_datagram_endpoint(Mailbox, sock=sock, **{name: value})
        with pytest.raises(ValueError, match=r"\(local_addr=.*, remote_addr=.*, family=1, pro"):
            await each_loop.create_datagram_endpoint(Mailbox, sock=sock, **options)
        # A false value counts as not given.
        transport, _ = await each_loop.create_datagram_endpoint(
            Mailbox, sock=sock.dup(), reuse_port=False
        )
        await abort_and_wait(transport)


@on_loop
async def test_stream_socket_is_refused(each_loop: Loop) -> None:
    wanted = "datagram socket" if stdlib.DATAGRAMS_OF_ANY_TYPE else "UDP Socket"
    message = f"^A {wanted} was expected, got <socket.socket fd="
    with socket.socket() as sock, pytest.raises(ValueError, match=message):
        await each_loop.create_datagram_endpoint(Mailbox, sock=sock)


@on_loop
async def test_failed_bind_is_raised_and_closes_the_socket(each_loop: Loop) -> None:
    with udp() as taken, pytest.raises(OSError, match=IN_USE):
        # The each_loop fixture fails the test if a descriptor is left open.
        await each_loop.create_datagram_endpoint(Mailbox, local_addr=taken.getsockname())


@on_loop
async def test_failing_factory_closes_the_sockets_of_the_loop_only(loop: Loop) -> None:
    def fail() -> Mailbox:
        raise LookupError("no protocol")

    with pytest.raises(LookupError, match="no protocol"):
        await loop.create_datagram_endpoint(fail, local_addr=LOCAL)
    with udp() as sock:
        with pytest.raises(LookupError, match="no protocol"):
            await loop.create_datagram_endpoint(fail, sock=sock)
        assert sock.fileno() != -1


# ── creation and the first callbacks ──────────────────────────────────────────────────────


@on_loop
async def test_cancelled_creation_closes_the_transport(each_loop: Loop) -> None:
    mailbox = Mailbox()
    task = each_loop.create_task(
        each_loop.create_datagram_endpoint(lambda: mailbox, local_addr=LOCAL)
    )
    await until(lambda: hasattr(mailbox, "transport"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: mailbox.lost == [None])


def test_datagrams_are_received_without_memory_for_receive_buffers() -> None:
    done = run_script(
        """
        import asyncio, resource, uringloop

        async def main():
            with open("/proc/self/statm") as statm:
                used = int(statm.read().split()[0]) * resource.getpagesize()
            # One buffer takes 68 KiB.
            resource.setrlimit(resource.RLIMIT_AS, (used + 64 * 1024,) * 2)
            loop = asyncio.get_running_loop()
            received = asyncio.Queue()

            class Protocol(asyncio.DatagramProtocol):
                def datagram_received(self, data, address):
                    received.put_nowait(data)

            transport, _ = await loop.create_datagram_endpoint(
                Protocol, local_addr=("127.0.0.1", 0)
            )
            for number in range(20):
                transport.sendto(b"%d" % number, transport.get_extra_info("sockname"))
                assert await received.get() == b"%d" % number
            transport.close()
            print("received")

        uringloop.run(main())
        """
    )
    assert done.stdout == "received\n", done.stderr


@on_loop
async def test_error_in_connection_made_is_reported_and_receiving_starts(each_loop: Loop) -> None:
    class Failing(Mailbox):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            raise LookupError("not made")

    handler_calls = record_handler_calls(each_loop)
    with udp() as peer:
        async with endpoint(each_loop, Failing(), local_addr=LOCAL) as (transport, mailbox):
            peer.sendto(b"letter", transport.get_extra_info("sockname"))
            assert (await mailbox.received())[0][0] == b"letter"
    assert [str(call["exception"]) for call in handler_calls] == ["not made"]


@on_loop
async def test_sendto_works_in_connection_made(each_loop: Loop) -> None:
    class Eager(Mailbox):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.sendto(b"first")

    with udp() as peer:
        async with endpoint(each_loop, Eager(), remote_addr=peer.getsockname()):
            assert drained(peer, 1) == [b"first"]


@on_loop
async def test_callbacks_run_in_the_context_of_the_creator(each_loop: Loop) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    class Reader(Mailbox):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(variable.get().encode(), addr)

    variable.set("maker")
    with udp() as peer:
        async with endpoint(each_loop, Reader(), local_addr=LOCAL) as (transport, mailbox):
            variable.set("later")
            peer.sendto(b"", transport.get_extra_info("sockname"))
            assert (await mailbox.received())[0][0] == b"maker"


@on_loop
async def test_debug_mode_logs_the_endpoint(
    each_loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "asyncio")
    each_loop.set_debug(True)
    async with endpoint(each_loop, local_addr=LOCAL):
        wanted = "Datagram endpoint local_addr=('127.0.0.1', 0) remote_addr=None created: (<"
        assert wanted in caplog.text
    with udp() as peer:
        async with endpoint(each_loop, remote_addr=peer.getsockname()):
            wanted = f"Datagram endpoint remote_addr={peer.getsockname()!r} created: (<"
            assert wanted in caplog.text
