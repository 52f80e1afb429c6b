"""aiosmtplib: after a timeout, the late answer is taken for the answer to the next command.

aiosmtplib 5.1.1 has the bug, 5.1.2 (commit 5cd299f) does not: it closes the connection.
"""

from __future__ import annotations

import asyncio
import contextlib

from aiosmtplib import SMTP, SMTPException

from ..common import serving


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 here\r\n")
    while line := await reader.readline():
        name, _, argument = line.strip().partition(b" ")
        if argument == b"slow":
            await asyncio.sleep(0.3)
        writer.write(b"250 <%s>\r\n" % argument if name == b"VRFY" else b"250 ok\r\n")


def new_client(port: int) -> SMTP:
    return SMTP(hostname="127.0.0.1", port=port, timeout=0.05, start_tls=False, local_hostname="me")


async def verify(client: SMTP, name: str) -> None:
    """Ask for *name*; an error, which ends the connection, is not the bug."""
    with contextlib.suppress(SMTPException, OSError):
        if not client.is_connected:
            await client.connect()
            await client.ehlo()
        response = await client.vrfy(name)
        assert response.message == f"<{name}>", f"the answer for {name} is {response.message}"


async def main() -> None:
    async with serving(answer) as port:
        client = new_client(port)
        for number in range(20):
            await verify(client, f"user{number}")
        client.close()


async def forced() -> None:
    async with serving(answer) as port:
        client = new_client(port)
        await verify(client, "slow")
        client.timeout = 1
        await verify(client, "next")
        client.close()
