"""Clients: create_connection, create_unix_connection, connect_accepted_socket."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar, final

from uringloop._net.resolver import AddressInfo
from uringloop._tls import upgrade
from uringloop._turn.turn import LoopCore

_P = TypeVar("_P", bound=asyncio.BaseProtocol)

async def create_connection(
    loop: LoopCore,
    protocol_factory: Callable[[], _P],
    host: str | None,
    port: int | None,
    *,
    family: int,
    proto: int,
    flags: int,
    sock: socket.socket | None,
    local_addr: tuple[str, int] | None,
    happy_eyeballs_delay: float | None,
    interleave: int | None,
    all_errors: bool,
    tls_options: upgrade.Options | None,
) -> tuple[asyncio.Transport, _P]: ...
async def create_unix_connection(
    loop: LoopCore,
    protocol_factory: Callable[[], _P],
    path: str | bytes | os.PathLike[str] | None,
    *,
    sock: socket.socket | None,
    tls_options: upgrade.Options | None,
) -> tuple[asyncio.Transport, _P]: ...
async def connect_accepted_socket(
    loop: LoopCore,
    protocol_factory: Callable[[], _P],
    sock: socket.socket,
    tls_options: upgrade.Options | None,
) -> tuple[asyncio.Transport, _P]: ...

@final
class Protocols: ...

async def open_transport(
    loop: LoopCore, sock: socket.socket, protocols: Protocols
) -> asyncio.Transport: ...
async def resolved(
    loop: LoopCore, address: tuple[object, ...], family: int, proto: int, flags: int
) -> list[AddressInfo]: ...
def interleaved(infos: Sequence[AddressInfo], first_count: int) -> list[AddressInfo]: ...
async def connect_first(
    loop: LoopCore,
    infos: Sequence[AddressInfo],
    local_infos: Sequence[AddressInfo] | None,
    delay: float | None,
    all_errors: bool,
) -> socket.socket: ...
async def connect_one(
    loop: LoopCore,
    failures: list[list[OSError]],
    info: AddressInfo,
    local_infos: Sequence[AddressInfo] | None,
) -> socket.socket: ...
