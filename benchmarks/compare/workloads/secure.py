"""The echo server over TLS, with a self-signed certificate that is made when it starts."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import socket
import ssl
import subprocess
import tempfile

from uringloop.bench.echo import BACKLOG, EchoProtocol
from uringloop.bench.settings import Refused


def _certificate() -> str:
    """Return a P-256 key and its self-signed certificate, as the text of a PEM file."""
    if shutil.which("openssl") is None:
        raise Refused("missing", "the openssl command is not installed")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    made = subprocess.run(
        [*command.split(), "-subj", "/CN=localhost", "-keyout", "-", "-out", "-"],
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout


def server_context() -> ssl.SSLContext:
    """Return a context with a new certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file = tempfile.NamedTemporaryFile("w", suffix=".pem")  # noqa: SIM115  # closed at exit
    # One of the loops reads the file again for each server, so it must stay, as a user's does.
    atexit.register(file.close)
    file.write(_certificate())
    file.flush()
    context.load_cert_chain(file.name)
    return context


async def serve_tls(listener: socket.socket) -> None:
    """Serve with asyncio.Protocol over TLS."""
    loop = asyncio.get_running_loop()
    context = server_context()
    await loop.create_server(EchoProtocol, sock=listener, backlog=BACKLOG, ssl=context)
