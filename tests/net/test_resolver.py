"""getaddrinfo and getnameinfo: the results and errors of the socket module, on loopback only."""

from __future__ import annotations

import asyncio
import itertools
import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from support.roles import run_script

import uringloop

NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
HOSTS = [None, "127.0.0.1", b"127.0.0.1", "::1", b"::1", "localhost", "0.0.0.0", "::"]
PORTS = [None, 0, 80, 65535, "443", b"8080", "http"]


def outcome(function: Callable[..., object], *args: object) -> object:
    """Return the result of *function*, or the type and arguments of its exception."""
    try:
        return function(*args)
    except Exception as error:
        return type(error), error.args


async def awaited_outcome(
    function: Callable[..., Coroutine[Any, Any, object]], *args: object, **options: object
) -> object:
    """Return the awaited result of *function*, or the type and arguments of its exception."""
    try:
        return await function(*args, **options)
    except Exception as error:
        return type(error), error.args


# ── getaddrinfo ──────────────────────────────────────────────────


@pytest.mark.parametrize("host", HOSTS, ids=repr)
def test_getaddrinfo_answers_as_socket_does(
    each_loop: AbstractEventLoop, host: str | bytes | None
) -> None:
    async def main() -> None:
        for port in PORTS:
            expected = outcome(socket.getaddrinfo, host, port)
            assert await awaited_outcome(each_loop.getaddrinfo, host, port) == expected

    each_loop.run_until_complete(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", None], ids=repr)
def test_getaddrinfo_accepts_every_combination_of_options(
    each_loop: AbstractEventLoop, host: str | None
) -> None:
    combinations = itertools.product(
        (0, socket.AF_INET, socket.AF_INET6),
        (0, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW),
        (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP),
        (0, socket.AI_PASSIVE, socket.AI_NUMERICSERV, NUMERIC, socket.AI_CANONNAME),
    )

    async def main() -> None:
        for family, kind, proto, flags in combinations:
            expected = outcome(socket.getaddrinfo, host, 80, family, kind, proto, flags)
            given = await awaited_outcome(
                each_loop.getaddrinfo, host, 80, family=family, type=kind, proto=proto, flags=flags
            )
            assert given == expected, (family, kind, proto, flags)

    each_loop.run_until_complete(main())


def test_getaddrinfo_returns_families_and_types_as_enums(
    each_loop: AbstractEventLoop,
) -> None:
    async def main() -> None:
        ((family, kind, proto, name, address),) = await each_loop.getaddrinfo(
            "127.0.0.1", 80, type=socket.SOCK_STREAM
        )
        assert isinstance(family, socket.AddressFamily)
        assert isinstance(kind, socket.SocketKind)
        assert (proto, name, address) == (socket.IPPROTO_TCP, "", ("127.0.0.1", 80))

    each_loop.run_until_complete(main())


def test_getaddrinfo_keeps_the_scope_of_an_ipv6_address(each_loop: AbstractEventLoop) -> None:
    index = socket.if_nametoindex("lo")

    async def main() -> None:
        for host in ("fe80::1%lo", f"fe80::1%{index}"):
            answers = await each_loop.getaddrinfo(host, 80, type=socket.SOCK_STREAM)
            assert answers == socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM)
            assert [answer[4] for answer in answers] == [("fe80::1", 80, 0, index)] or [
                answer[4] for answer in answers
            ] == [("fe80::1%lo", 80, 0, index)]

    each_loop.run_until_complete(main())


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("not a number", 80),
        ("127.0.0.1", "no-such-service"),
        ("127.0.0.256", 80),
        ("::1::", 80),
        ("fe80::1%no-such-interface", 80),
        ("", ""),
        (None, None),
        ("a" * 64, 80),
        ("a\0b", 80),
        ("127.0.0.1", 70000),
        ("127.0.0.1", -1),
        ("127.0.0.1", 1.5),
        (42, 80),
        ("a..b", "\udc80"),
        ("a..b", 2**70),
        ("127.0.0.1", "\udc80"),
    ],
    ids=repr,
)
def test_getaddrinfo_fails_as_socket_does(
    each_loop: AbstractEventLoop, host: object, port: object
) -> None:
    # With AI_NUMERICHOST no query leaves this machine.
    flags = socket.AI_NUMERICHOST
    expected = outcome(socket.getaddrinfo, host, port, 0, 0, 0, flags)
    given = each_loop.run_until_complete(
        awaited_outcome(each_loop.getaddrinfo, host, port, flags=flags)
    )
    assert given == expected


def test_getaddrinfo_raises_gaierror_for_an_unknown_name(each_loop: AbstractEventLoop) -> None:
    async def main() -> None:
        with pytest.raises(socket.gaierror) as caught:
            await each_loop.getaddrinfo("not a number", 80, flags=socket.AI_NUMERICHOST)
        assert caught.value.errno == socket.EAI_NONAME
        with pytest.raises(socket.gaierror) as caught:
            await each_loop.getaddrinfo("127.0.0.1", "no-such-service")
        assert caught.value.errno == socket.EAI_SERVICE

    each_loop.run_until_complete(main())


def test_getaddrinfo_has_keyword_only_options(each_loop: AbstractEventLoop) -> None:
    resolve: Callable[..., Coroutine[Any, Any, object]] = each_loop.getaddrinfo

    async def main() -> None:
        with pytest.raises(TypeError):
            await resolve("127.0.0.1", 80, socket.AF_INET)

    each_loop.run_until_complete(main())


def test_getaddrinfo_answers_concurrent_calls(each_loop: AbstractEventLoop) -> None:
    async def main() -> None:
        answers = await asyncio.gather(
            *(each_loop.getaddrinfo("localhost", port) for port in range(1, 101))
        )
        for port, answer in enumerate(answers, 1):
            assert {address[4][1] for address in answer} == {port}

    each_loop.run_until_complete(main())


def test_getaddrinfo_answers_in_debug_mode(each_loop: AbstractEventLoop) -> None:
    each_loop.set_debug(True)
    answer = each_loop.run_until_complete(each_loop.getaddrinfo("127.0.0.1", 80))
    assert answer == socket.getaddrinfo("127.0.0.1", 80)


# ── getnameinfo ──────────────────────────────────────────────────


@pytest.mark.parametrize(
    "sockaddr",
    [("127.0.0.1", 80), ("127.0.0.1", 0), ("::1", 443), ("::1", 443, 0, 0), ("::1", 443, 0)],
    ids=repr,
)
def test_getnameinfo_answers_as_socket_does(
    each_loop: AbstractEventLoop, sockaddr: tuple[str, int]
) -> None:
    numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV

    async def main() -> None:
        for flags in (
            numeric,
            socket.NI_NUMERICHOST,
            socket.NI_NUMERICHOST | socket.NI_DGRAM,
            numeric | socket.NI_NAMEREQD,
        ):
            expected = outcome(socket.getnameinfo, sockaddr, flags)
            assert await awaited_outcome(each_loop.getnameinfo, sockaddr, flags) == expected

    each_loop.run_until_complete(main())


def test_getnameinfo_finds_the_name_of_loopback(each_loop: AbstractEventLoop) -> None:
    async def main() -> None:
        for sockaddr in (("127.0.0.1", 80), ("127.0.0.1", 0)):
            assert await each_loop.getnameinfo(sockaddr) == socket.getnameinfo(sockaddr, 0)

    each_loop.run_until_complete(main())


def test_getnameinfo_keeps_the_scope_of_an_ipv6_address(each_loop: AbstractEventLoop) -> None:
    sockaddr = ("fe80::1", 80, 0, socket.if_nametoindex("lo"))
    numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    answer = each_loop.run_until_complete(each_loop.getnameinfo(sockaddr, numeric))
    assert answer == ("fe80::1%lo", "80")


@pytest.mark.parametrize(
    ("sockaddr", "flags"),
    [
        (("not a number", 80), 0),
        (("127.0.0.1", 80, 0, 0), 0),
        (("127.0.0.1", "80"), 0),
        (("127.0.0.1",), 0),
        (("::1", 80, 0xFFFFF + 1, 0), 0),
        ("127.0.0.1", 0),
        (None, 0),
        (["127.0.0.1", 80], 0),
        (("127.0.0.1", 80), socket.NI_NAMEREQD | socket.NI_NUMERICHOST),
        (("127.0.0.1", 80), "flags"),
    ],
    ids=repr,
)
def test_getnameinfo_fails_as_socket_does(
    each_loop: AbstractEventLoop, sockaddr: object, flags: object
) -> None:
    expected = outcome(socket.getnameinfo, sockaddr, flags)
    given = each_loop.run_until_complete(awaited_outcome(each_loop.getnameinfo, sockaddr, flags))
    assert given == expected


# ── python -bb ───────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["asyncio.SelectorEventLoop", "uringloop.Loop"])
def test_ports_of_every_type_work_where_comparing_bytes_to_str_is_an_error(kind: str) -> None:
    script = f"""
        import asyncio, socket
        import uringloop

        async def main():
            loop = asyncio.get_running_loop()
            server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
            number = server.sockets[0].getsockname()[1]
            for port in (number, str(number), str(number).encode()):
                transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
                transport.close()
                with socket.socket() as sock:
                    sock.setblocking(False)
                    await loop.sock_connect(sock, ("127.0.0.1", port))
            server.close()
            for port in (0, "", b"", "0", b"0", None):
                server = await loop.create_server(asyncio.Protocol, "127.0.0.1", port)
                server.close()
                transport, _ = await loop.create_datagram_endpoint(
                    asyncio.DatagramProtocol, local_addr=("127.0.0.1", port)
                )
                transport.close()
            try:
                await loop.create_connection(asyncio.Protocol, "127.0.0.1", b"no-such-service")
            except socket.gaierror:
                print("done")

        loop = {kind}()
        loop.run_until_complete(main())
        loop.close()
    """
    ended = run_script(script, "-bb")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


# ── custom resolvers ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answer", [[], None], ids=["empty", "None"])
def test_a_name_without_addresses_is_an_oserror(
    each_loop: AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    async def nothing(*_args: object, **_options: object) -> object:
        return answer

    def served(_reader: object, _writer: object) -> None:
        """Do nothing: no client connects."""

    monkeypatch.setattr(each_loop, "getaddrinfo", nothing)
    named, bare = ("host", 1), "getaddrinfo() returned empty list"
    loopback = ("127.0.0.1", 1)
    tcp, udp = asyncio.Protocol, asyncio.DatagramProtocol
    serve, connect = each_loop.create_server, each_loop.create_connection
    open_endpoint = each_loop.create_datagram_endpoint
    message = "getaddrinfo('host') returned empty list"

    async def main() -> None:
        for expected, started in (
            (message, serve(tcp, *named)),
            (message, serve(tcp, ["127.0.0.1", "host"], 0)),
            ("getaddrinfo(None) returned empty list", serve(tcp, None, 0)),
            (message, asyncio.start_server(served, *named)),
            (bare, connect(tcp, *named)),
            (bare, connect(tcp, *named, happy_eyeballs_delay=0.1)),
            (bare, connect(tcp, *loopback, local_addr=("host", 0))),
            (bare, asyncio.open_connection(*named)),
            (bare, open_endpoint(udp, local_addr=named)),
            (bare, open_endpoint(udp, remote_addr=named)),
        ):
            assert await awaited_outcome(lambda started=started: started) == (OSError, (expected,))

    each_loop.run_until_complete(main())


@pytest.mark.parametrize("answer", [[], None], ids=["empty", "None"])
def test_sock_connect_to_a_name_without_addresses_is_an_oserror(
    loop: uringloop.Loop, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    # uringloop only: asyncio raises IndexError or TypeError.
    async def nothing(*_args: object, **_options: object) -> object:
        return answer

    monkeypatch.setattr(loop, "getaddrinfo", nothing)
    with socket.socket() as sock:
        sock.setblocking(False)
        with pytest.raises(OSError, match=r"getaddrinfo\(\) returned empty list"):
            loop.run_until_complete(loop.sock_connect(sock, ("host", 1)))
