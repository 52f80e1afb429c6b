"""aioquic at both ends: QUIC over UDP on loopback, also in an example."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from application import LARGE
from programs import Certificate, needs, process, program, python, quiet
from support.roles import PATIENCE, Loop
from support.tls_contexts import AUTHORITY, CERTIFICATES

aioquic = needs("aioquic.asyncio")
configuration = needs("aioquic.quic.configuration")
pytestmark = quiet

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "quic_ecn.py")
CONGESTED = 3


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


async def echoed(data: bytes, port: int, local_port: int) -> bytes:
    """Send *data* in datagrams that have no mark, and return the answer."""
    settings = configuration.QuicConfiguration(server_name="localhost", cafile=AUTHORITY)
    async with aioquic.connect(
        "127.0.0.1", port, configuration=settings, local_port=local_port
    ) as connection:
        reader, writer = await connection.create_stream()
        writer.write(data)
        writer.write_eof()
        answer: bytes = await reader.read()
    return answer


@contextlib.contextmanager
def example(chain: str, key: str) -> Iterator[int]:
    """Serve with `examples/quic_ecn.py` until Ctrl-C, and pass the port."""
    command = python(EXAMPLE, "serve", "--port", "0", chain, key)
    # Like the other examples it has its transport until the process ends.
    with process(command, environment={"PYTHONWARNINGS": ""}) as server:
        yield int(server.read_until(r"listening on [\d.]+:(\d+)")[1])
        assert server.stop(signal.SIGINT) == 0


def asked(port: int, text: str) -> list[str]:
    """Return the lines that the client of the example prints."""
    command = python(EXAMPLE, "ask", "--port", str(port), AUTHORITY, text)
    return subprocess.check_output(command, text=True, timeout=PATIENCE).splitlines()


@pytest.mark.slow
def test_the_example_marks_what_it_sends_and_counts_the_marks_that_come() -> None:
    certificate = str(CERTIFICATES / "server.pem")
    with example(certificate, certificate) as port:
        text, *both_ends = asked(port, "hello")
        assert (text, len(both_ends)) == ("hello", 2)
        for line in both_ends:
            counts = ast.literal_eval(line)
            assert counts.pop("ect0") > 0
            assert counts == {"not": 0, "ect1": 0, "ce": 0}
        with socket.socket(type=socket.SOCK_DGRAM) as other:
            other.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, CONGESTED)
            other.sendto(b"no packet of QUIC", ("127.0.0.1", port))
            local_port = other.getsockname()[1]
        echo, told = asyncio.run(echoed(LARGE, port, local_port)).rsplit(b"\n", 1)
        assert echo == LARGE
        counts = ast.literal_eval(told.decode())
        assert counts.pop("not") > 0
        assert counts == {"ect1": 0, "ect0": 0, "ce": 1}


@pytest.mark.slow
def test_the_example_has_no_answer_from_a_server_of_another_authority(tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    with example(str(certificate.chain), str(certificate.key)) as port:
        assert asked(port, "hello")[0] == "no answer"
