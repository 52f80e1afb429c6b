"""aiosmtpd receives mail from the standard library's client, unencrypted and after STARTTLS."""

from __future__ import annotations

import asyncio
import contextlib
import smtplib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from programs import Address, Certificate, needs, program, quiet
from support.loops import LoopFactory
from support.roles import Loop, until, unused_port

smtp = needs("aiosmtpd.smtp")
controller = needs("aiosmtpd.controller")
pytestmark = quiet

BODY = "".join(f"line {number}\r\n.\r\n" for number in range(5_000))


class Mailbox:
    """Record the received envelopes."""

    def __init__(self) -> None:
        self.envelopes: list[Any] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        await asyncio.sleep(0)
        self.envelopes.append(envelope)
        return "250 kept"


@contextlib.asynccontextmanager
async def serving(mailbox: Mailbox, **options: Any) -> AsyncIterator[Address]:
    sockets: list[socket.socket] = []

    def protocol() -> Any:
        created = smtp.SMTP(mailbox, hostname="localhost", enable_SMTPUTF8=True, **options)
        made = created.connection_made

        def connection_made(transport: asyncio.Transport) -> None:
            sockets.append(transport.get_extra_info("socket"))
            made(transport)

        created.connection_made = connection_made
        return created

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()
    await until(lambda: all(sock.fileno() == -1 for sock in sockets))


def send(address: Address, count: int, *, certificate: Certificate | None = None) -> None:
    """Send *count* mails over one connection."""
    with smtplib.SMTP(*address, timeout=20) as client:
        client.ehlo()
        if certificate is not None:
            # The name in the certificate.
            client._host = "localhost"  # type: ignore[attr-defined]
            assert client.starttls(context=certificate.client())[0] == 220
        for number in range(count):
            refused = client.sendmail("from@here", ["to@there", "too@there"], f"{number}\r\n{BODY}")
            assert refused == {}
        assert client.docmd("NONSENSE")[0] == 500
        assert client.noop()[0] == 250


def check(mailbox: Mailbox, count: int) -> None:
    assert [envelope.rcpt_tos for envelope in mailbox.envelopes] == [
        ["to@there", "too@there"]
    ] * count
    expected = {f"{number}\r\n{BODY}".encode() for number in range(10)}
    assert {envelope.content for envelope in mailbox.envelopes} <= expected


@pytest.mark.slow
@program
async def test_mail_arrives(each_loop: Loop) -> None:
    mailbox = Mailbox()
    async with serving(mailbox) as address:
        await asyncio.gather(*(asyncio.to_thread(send, address, 5) for _ in range(4)))
    check(mailbox, 20)


@pytest.mark.slow
@program
async def test_mail_arrives_after_starttls(each_loop: Loop, tmp_path: Path) -> None:
    # aiosmtpd upgrades with asyncio's own SSLProtocol, over the loop's plain transport.
    mailbox, certificate = Mailbox(), Certificate(tmp_path)
    options = {"tls_context": certificate.server(), "require_starttls": True}
    async with serving(mailbox, **options) as address:
        with pytest.raises(smtplib.SMTPException, match="STARTTLS"):
            await asyncio.to_thread(send, address, 1)
        await asyncio.to_thread(send, address, 5, certificate=certificate)
    check(mailbox, 5)


@pytest.mark.slow
def test_a_controller_runs_the_loop_in_a_thread(loop_factory: LoopFactory) -> None:
    mailbox = Mailbox()
    running = controller.Controller(
        mailbox, hostname="127.0.0.1", port=unused_port(), loop=loop_factory()
    )
    running.start()
    try:
        send((running.hostname, running.port), 3)
    finally:
        running.stop()
    check(mailbox, 3)
