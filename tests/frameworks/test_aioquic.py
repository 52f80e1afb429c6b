"""aioquic at both ends: QUIC over UDP on loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from application import LARGE
from programs import Certificate, needs, program, quiet
from support.roles import Loop

aioquic = needs("aioquic.asyncio")
configuration = needs("aioquic.quic.configuration")
pytestmark = quiet


def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def run() -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.write_eof()

    tasks.add(asyncio.ensure_future(run()))


# References that keep the echo tasks alive.
tasks: set[asyncio.Future[None]] = set()


@contextlib.asynccontextmanager
async def serving(certificate: Certificate) -> AsyncIterator[int]:
    settings = configuration.QuicConfiguration(alpn_protocols=["echo"], is_client=False)
    settings.load_cert_chain(certificate.chain, certificate.key)
    tasks.clear()
    server = await aioquic.serve("127.0.0.1", 0, configuration=settings, stream_handler=echo)
    try:
        yield server._transport.get_extra_info("sockname")[1]
        await asyncio.gather(*tasks)
    finally:
        server.close()


def client(certificate: Certificate, port: int) -> Any:
    settings = configuration.QuicConfiguration(alpn_protocols=["echo"], server_name="localhost")
    settings.load_verify_locations(str(certificate.authority))
    return aioquic.connect("127.0.0.1", port, configuration=settings)


async def exchange(connection: Any, body: bytes) -> None:
    reader, writer = await connection.create_stream()
    writer.write(body)
    writer.write_eof()
    assert await reader.read() == body


@pytest.mark.slow
@program
async def test_streams_of_every_size_are_echoed(each_loop: Loop, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    async with serving(certificate) as port, client(certificate, port) as connection:
        await connection.ping()
        for size in (1, 10_000, 300_000):
            await exchange(connection, LARGE[:size])


@pytest.mark.slow
@program
async def test_streams_share_a_connection_and_clients_a_socket(
    each_loop: Loop, tmp_path: Path
) -> None:
    async def talk(port: int) -> None:
        async with client(certificate, port) as connection:
            await asyncio.gather(
                *(exchange(connection, LARGE[: number * 1_000]) for number in range(1, 11))
            )

    certificate = Certificate(tmp_path)
    async with serving(certificate) as port:
        await asyncio.gather(*(talk(port) for _ in range(8)))
