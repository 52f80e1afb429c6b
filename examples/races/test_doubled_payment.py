"""A retry that pays twice.

pytest examples/races -p uringloop.pytest_plugin --uringloop-seeds=100
"""

import asyncio
import uuid

import pytest

from uringloop.testing import Faults

# A busy machine: the process sometimes gets no processor for a while.
pytestmark = [pytest.mark.asyncio, pytest.mark.uringloop_seeds(faults=Faults(stall=0.02))]


class Bank:
    """A server that takes an order, needs 0.2 s for it, and answers."""

    def __init__(self) -> None:
        self.paid: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        order = await reader.readline()
        await asyncio.sleep(0.2)
        self.pay(order)
        writer.write(b"paid\n")
        writer.close()

    def pay(self, order: bytes) -> None:
        self.paid.append(order)


class MendedBank(Bank):
    def pay(self, order: bytes) -> None:
        # The client sends the order again, with the same number, if no answer comes.
        if order not in self.paid:
            self.paid.append(order)


async def pay(address: tuple[str, int]) -> bytes:
    """Order a payment; try again after a second without an answer."""
    order = f"{uuid.uuid4()} 100\n".encode()
    while True:
        reader, writer = await asyncio.open_connection(*address)
        try:
            async with asyncio.timeout(1):
                writer.write(order)
                return await reader.readline()
        except TimeoutError:
            # The order, or its answer, was lost.
            pass
        finally:
            writer.close()


async def check(bank: Bank) -> None:
    server = await asyncio.start_server(bank.serve, "127.0.0.1", 0)
    assert await pay(server.sockets[0].getsockname()) == b"paid\n"
    server.close()
    assert len(bank.paid) == 1


async def test_bank() -> None:
    await check(Bank())


async def test_mended_bank() -> None:
    await check(MendedBank())
