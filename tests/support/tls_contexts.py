"""TLS contexts with the certificates of `certificates/README.md`."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

CERTIFICATES = Path(__file__).parents[1] / "certificates"
AUTHORITY = str(CERTIFICATES / "ca.pem")


@dataclass(frozen=True)
class Contexts:
    """A server's and a client's context that trust each other."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def requiring_close_notify(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make EOF without close_notify an error, as it is by default since 3.11.4 (gh-95494)."""
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    return context


def server_context() -> ssl.SSLContext:
    """Return a context with the server's certificate, which requires none of clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem")
    return requiring_close_notify(context)


def strict_server_context() -> ssl.SSLContext:
    """Return a server's context that requires a certificate of the client."""
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(AUTHORITY)
    return context


def client_context() -> ssl.SSLContext:
    """Return a client's context that trusts the test authority and checks names."""
    return requiring_close_notify(ssl.create_default_context(cafile=AUTHORITY))


def known_client_context() -> ssl.SSLContext:
    """Return a client's context with a certificate."""
    context = client_context()
    context.load_cert_chain(CERTIFICATES / "client.pem")
    return context


def stranger_context() -> ssl.SSLContext:
    """Return a client's context without trusted authorities."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
