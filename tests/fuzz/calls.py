"""Fuzz targets for arguments, addresses and TLS records: `nox -s fuzz`.

Each input goes to asyncio and to uringloop, and both must return the same result or raise the same
exception with the same message. atheris sees the coverage of Python code only; compiled code is
reached by the inputs that it finds that way.

    python tests/fuzz/calls.py literals|addresses|records [options of libFuzzer]
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
import warnings
from asyncio import base_events
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import atheris

# The package is the installed one; modules that tests share are in the parent folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

with atheris.instrument_imports(include=["uringloop"]):
    import uringloop
    from uringloop._net import resolver

from support.tls_contexts import Contexts, client_context, server_context

LOOPS: dict[str, asyncio.AbstractEventLoop] = {
    "asyncio": asyncio.SelectorEventLoop(),
    "uringloop": uringloop.Loop(),
}


def outcome(call: Callable[[], object]) -> str:
    """Return the result or the exception of a call as text."""
    try:
        return f"returned {call()!r}"
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as exc:
        return f"raised {type(exc).__name__}: {exc}"


def on_each(test: Callable[[], Coroutine[Any, Any, object]]) -> dict[str, str]:
    """Return the outcome of a test on each loop."""
    return {name: outcome(partial(loop.run_until_complete, test())) for name, loop in LOOPS.items()}


def same(given: object, outcomes: dict[str, str]) -> None:
    if len(set(outcomes.values())) != 1:
        raise AssertionError(f"{given!r}: {outcomes}")


# ── numeric hosts ────────────────────────────────────────────────────────────────────────────────


def literals(data: atheris.FuzzedDataProvider) -> None:
    hosts: list[Any] = [None, "127.0.0.1", "::1", b"::1", "fe80::1%1"]
    host = hosts[data.ConsumeIntInRange(0, len(hosts) - 1)]
    if data.ConsumeBool():
        host = data.ConsumeUnicode(40)
    elif data.ConsumeBool():
        host = data.ConsumeBytes(40)
    port: Any = data.ConsumeInt(4)
    if data.ConsumeBool():
        port = data.PickValueInList([None, "", b"", b"80", "80", " 80", "http", 1.5, "1_0"])
    given = {
        "family": data.PickValueInList([0, socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, -1]),
        "type": data.PickValueInList([0, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW]),
        "proto": data.PickValueInList([0, socket.IPPROTO_TCP, socket.IPPROTO_UDP, 1, -1]),
    }
    scope = {"flowinfo": data.ConsumeInt(4), "scope_id": data.ConsumeInt(4)}
    theirs = outcome(
        lambda: base_events._ipaddr_info(  # type: ignore[attr-defined]
            host, port, *given.values(), *scope.values()
        )
    )
    ours = outcome(lambda: resolver.literal_info(host, port, **given, **scope))
    same((host, port, given, scope), {"asyncio": theirs, "uringloop": ours})


# ── addresses of datagrams ───────────────────────────────────────────────────────────────────────


def any_object(data: atheris.FuzzedDataProvider) -> Any:
    kind = data.ConsumeIntInRange(0, 6)
    if kind == 0:
        return data.ConsumeInt(8)
    if kind == 1:
        # Only hosts that need no name resolution.
        return data.PickValueInList(["127.0.0.1", "::1", "", "127.1", "\0", "127.0.0.1\0", "::1%"])
    if kind == 2:
        return data.ConsumeBytes(8)
    if kind == 3:
        return data.ConsumeFloat()
    return data.PickValueInList([None, (), b"127.0.0.1", True, [], {}])


def any_address(data: atheris.FuzzedDataProvider) -> Any:
    if data.ConsumeBool():
        return any_object(data)
    if data.ConsumeBool():
        host = data.PickValueInList(["127.0.0.1", "::1", "127.1", ""])
        return (host, *(any_object(data) for _ in range(data.ConsumeIntInRange(0, 4))))
    return tuple(any_object(data) for _ in range(data.ConsumeIntInRange(0, 5)))


class Errors(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def error_received(self, exc: Exception) -> None:
        self.seen.append(f"{type(exc).__name__}: {exc}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.seen.append(f"lost: {exc!r}")


NEAR: dict[int, tuple[str, int]] = {
    socket.AF_INET: ("127.0.0.1", 0),
    socket.AF_INET6: ("::1", 0),
}


async def send_to(family: int, address: Any, payload: Any) -> str:
    loop = asyncio.get_running_loop()
    near = NEAR.get(family)
    transport, protocol = await loop.create_datagram_endpoint(Errors, near, family=family)
    sent = outcome(lambda: transport.sendto(payload, address))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    seen = [text for text in protocol.seen if "refused" not in text]
    transport.abort()
    await asyncio.sleep(0)
    return f"{sent}, {seen}"


def addresses(data: atheris.FuzzedDataProvider) -> None:
    family = data.PickValueInList([socket.AF_INET, socket.AF_INET6, socket.AF_UNIX])
    payload = data.PickValueInList([b"", b"x", bytearray(b"y"), memoryview(b"z"), bytes(70_000)])
    address = any_address(data)
    same((family, address, payload[:2]), on_each(lambda: send_to(family, address, payload)))


# ── damaged TLS ──────────────────────────────────────────────────────────────────────────────────


class Ended(asyncio.Protocol):
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.calls.append(f"data {data!r}")

    def eof_received(self) -> None:
        self.calls.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append(f"lost {type(exc).__name__}")
        self.ended.set_result(None)


async def answer(contexts: Contexts, pieces: list[bytes]) -> str:
    """Return how a TLS server and its protocol react to these bytes."""
    near, far = socket.socketpair()
    near.setblocking(False)
    protocol = Ended()
    loop = asyncio.get_running_loop()
    with far:
        accepting = asyncio.ensure_future(
            loop.connect_accepted_socket(lambda: protocol, near, ssl=contexts.server)
        )
        for piece in pieces:
            with contextlib.suppress(OSError):
                far.send(piece)
            await asyncio.sleep(0)
        far.shutdown(socket.SHUT_WR)
        try:
            transport, _ = await accepting
        except (OSError, ssl.SSLError, ssl.CertificateError) as exc:
            return f"{type(exc).__name__} {getattr(exc, 'reason', None)}, {protocol.calls}"
        transport.close()
        await asyncio.wait_for(protocol.ended, 10)
        return f"ended, {protocol.calls}"


def client_hello(contexts: Contexts) -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = contexts.client.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


CONTEXTS = Contexts(server_context(), client_context())
HELLO = client_hello(CONTEXTS)


def records(data: atheris.FuzzedDataProvider) -> None:
    hello = bytearray(HELLO)
    # A handshake that begins correctly gets further than random bytes.
    for _ in range(data.ConsumeIntInRange(0, 4)):
        hello[data.ConsumeIntInRange(0, len(hello) - 1)] = data.ConsumeIntInRange(0, 255)
    sent = bytes(hello[: data.ConsumeIntInRange(0, len(hello))]) + data.ConsumeBytes(200)
    cuts = sorted(data.ConsumeIntInRange(0, len(sent)) for _ in range(3))
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True) if a < b]
    same(pieces, on_each(lambda: answer(CONTEXTS, pieces)))


TARGETS: dict[str, Callable[[atheris.FuzzedDataProvider], None]] = {
    each.__name__: each for each in (literals, addresses, records)
}


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    for loop in LOOPS.values():
        loop.set_exception_handler(lambda _loop, _context: None)
    atheris.Setup(sys.argv, lambda raw: target(atheris.FuzzedDataProvider(raw)))
    atheris.Fuzz()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
