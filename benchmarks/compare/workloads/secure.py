"""Servers over TLS, with a self-signed certificate that is made when they start.

The key is a P-256 key. The handshake rows use an RSA key with 2,048 bits, whose signature takes
most of a server's time for a handshake.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Callable

from uringloop.bench.echo import BACKLOG, EchoProtocol, Serve
from uringloop.bench.settings import Refused

from .transfer import SecureSink, Source

# The arguments of openssl for a new key.
P256 = "ec -pkeyopt ec_paramgen_curve:prime256v1"
RSA = "rsa:2048"


def _certificate(key: str) -> str:
    """Return a new key and its self-signed certificate, as the text of a PEM file."""
    if shutil.which("openssl") is None:
        raise Refused("missing", "the openssl command is not installed")
    command = f"openssl req -x509 -newkey {key} -nodes -days 2 -addext subjectAltName=DNS:localhost"
    made = subprocess.run(
        [*command.split(), "-subj", "/CN=localhost", "-keyout", "-", "-out", "-"],
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout


def server_context(key: str) -> ssl.SSLContext:
    """Return a context with a new key and its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file = tempfile.NamedTemporaryFile("w", suffix=".pem")  # noqa: SIM115  # closed at exit
    # One of the loops reads the file again for each server, so it must stay, as a user's does.
    atexit.register(file.close)
    file.write(_certificate(key))
    file.flush()
    context.load_cert_chain(file.name)
    return context


def serve(protocol: Callable[[], asyncio.Protocol], key: str = P256) -> Serve:
    """Return the function that serves with *protocol* over TLS."""

    async def start(listener: socket.socket) -> None:
        context = server_context(key)
        await asyncio.get_running_loop().create_server(
            protocol, sock=listener, backlog=BACKLOG, ssl=context
        )

    return start


SERVERS: dict[str, Serve] = {
    "tls": serve(EchoProtocol),
    "tls-rsa": serve(EchoProtocol, RSA),
    "tls-sink": serve(SecureSink),
    "tls-source": serve(Source),
}
