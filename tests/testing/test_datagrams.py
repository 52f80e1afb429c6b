"""Datagrams between endpoints of a loop for tests: routes, faults, names."""

from __future__ import annotations

import asyncio
import collections
import errno
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from uringloop import testing

T = TypeVar("T")
LOCAL = ("127.0.0.1", 0)


class Collector(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.received: list[tuple[bytes, Any]] = []
        self.errors: list[Exception] = []
        self.times: list[float] = []

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.received.append((data, addr))
        self.times.append(asyncio.get_running_loop().time())

    def error_received(self, exc: Exception) -> None:
        self.errors.append(exc)

    @property
    def texts(self) -> list[bytes]:
        return [data for data, _ in self.received]


Endpoint = tuple[asyncio.DatagramTransport, Collector]


def run(main: Coroutine[Any, Any, T], **options: Any) -> tuple[T, dict[str, int]]:
    """Return the result, and how often each fault has happened."""
    loop = testing.Loop(**options)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main), loop.faults_happened()


async def endpoint(**options: Any) -> Endpoint:
    return await asyncio.get_running_loop().create_datagram_endpoint(Collector, **options)


def name_of(transport: asyncio.DatagramTransport) -> Any:
    return transport.get_extra_info("sockname")


async def send_hundred() -> Collector:
    (receiver, received), (sender, sending) = (
        await endpoint(local_addr=LOCAL),
        await endpoint(local_addr=LOCAL),
    )
    for number in range(100):
        sender.sendto(b"%d" % number, name_of(receiver))
    await asyncio.sleep(10)
    received.errors += sending.errors
    sender.close()
    receiver.close()
    return received


HUNDRED = [b"%d" % number for number in range(100)]


def test_without_faults_all_arrive_once_in_order_and_at_once() -> None:
    received, _ = run(send_hundred())
    assert received.texts == HUNDRED
    assert max(received.times) == pytest.approx(testing.Loop.START_S, abs=1e-9)


def test_lost_datagrams_do_not_arrive() -> None:
    received, happened = run(send_hundred(), faults=testing.Faults(lost=0.2))
    assert 0 < happened["lost"] < 100
    assert len(received.texts) == 100 - happened["lost"]
    assert received.texts == sorted(received.texts, key=int)


def test_doubled_datagrams_arrive_twice() -> None:
    received, happened = run(send_hundred(), faults=testing.Faults(doubled=0.2))
    counts = collections.Counter(received.texts)
    assert set(counts) == set(HUNDRED)
    assert list(counts.values()).count(2) == happened["doubled"] > 0
    assert max(counts.values()) == 2


def test_delayed_datagrams_are_overtaken() -> None:
    received, _ = run(send_hundred(), faults=testing.Faults(delay=0.2))
    assert sorted(received.texts) == sorted(HUNDRED)
    assert received.texts != HUNDRED


def test_no_buffers_is_an_error_of_the_sender() -> None:
    received, happened = run(send_hundred(), faults=testing.Faults(no_buffers=0.2))
    assert [getattr(exc, "errno", 0) for exc in received.errors] == [errno.ENOBUFS] * happened[
        "no_buffers"
    ]
    assert len(received.texts) + len(received.errors) == 100


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_answers_reach_a_sender_without_a_name(family: int) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"

    async def main() -> None:
        server, asked = await endpoint(local_addr=(host, 0))
        client, answered = await endpoint(family=family)
        assert name_of(client)[1] == 0
        client.sendto(b"question", name_of(server))
        await asyncio.sleep(1)
        [(data, sender)] = asked.received
        assert data == b"question"
        assert sender[0] == host
        server.sendto(b"answer", sender)
        await asyncio.sleep(1)
        assert answered.received == [(b"answer", name_of(server))]
        client.close()
        server.close()

    run(main())


def test_a_connected_endpoint_receives_from_its_peer_only() -> None:
    async def main() -> None:
        server, asked = await endpoint(local_addr=LOCAL)
        client, answered = await endpoint(remote_addr=name_of(server))
        stranger, _ = await endpoint(local_addr=LOCAL)
        client.sendto(b"question")
        stranger.sendto(b"strange", name_of(client))
        await asyncio.sleep(1)
        assert asked.received == [(b"question", name_of(client))]
        server.sendto(b"answer", name_of(client))
        await asyncio.sleep(1)
        assert answered.texts == [b"answer"]
        with pytest.raises(ValueError, match="Invalid address"):
            client.sendto(b"x", name_of(stranger))
        for transport in (client, server, stranger):
            transport.close()

    run(main())


def test_routes_of_hosts_delay_and_lose_datagrams() -> None:
    network = testing.Network()
    network.set_route("web", "db", latency=0.5, bandwidth=1000)

    async def main() -> None:
        server, received = await endpoint(local_addr=("db", 5000))
        with network.on("web"):
            client, _ = await endpoint(family=socket.AF_INET)
        address = (network.address("db"), 5000)
        began = asyncio.get_running_loop().time()
        client.sendto(bytes(100), address)
        await asyncio.sleep(1)
        assert received.times == [pytest.approx(began + 0.6)]
        assert received.received[0][1][0] == network.address("web")
        network.partition("web", "db")
        client.sendto(b"lost", address)
        await asyncio.sleep(10)
        network.heal("web", "db")
        client.sendto(b"arrives", address)
        await asyncio.sleep(10)
        assert received.texts == [bytes(100), b"arrives"]
        client.close()
        server.close()

    run(main(), network=network)


def test_what_the_kernel_would_refuse_is_refused() -> None:
    async def main() -> None:
        server, _ = await endpoint(local_addr=LOCAL)
        client, sent = await endpoint(local_addr=LOCAL)
        client.sendto(bytes(70_000), name_of(server))
        assert isinstance(sent.errors[0], OSError)
        assert sent.errors[0].errno == errno.EMSGSIZE
        with pytest.raises(TypeError, match="bytes-like"):
            client.sendto("text", name_of(server))  # type: ignore[arg-type]
        server.close()
        client.sendto(b"to nobody", name_of(server))
        client.close()
        client.sendto(b"too late", name_of(server))

    run(main())


def test_a_closed_endpoint_receives_nothing_that_is_under_way() -> None:
    network = testing.Network(latency=1)

    async def main() -> Collector:
        server, received = await endpoint(local_addr=LOCAL)
        client, _ = await endpoint(local_addr=LOCAL)
        client.sendto(b"x", name_of(server))
        server.close()
        await asyncio.sleep(5)
        client.close()
        return received

    received, _ = run(main(), network=network)
    assert received.texts == []


def test_other_sockets_of_the_process_are_reached_through_the_kernel() -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
            plain.bind(LOCAL)
            plain.setblocking(False)
            loop = asyncio.get_running_loop()
            client, answered = await endpoint(local_addr=LOCAL)
            client.sendto(b"question", plain.getsockname())
            data, sender = await loop.sock_recvfrom(plain, 100)
            assert (data, sender) == (b"question", name_of(client))
            await loop.sock_sendto(plain, b"answer", sender)
            async with asyncio.timeout(10):
                while not answered.received:  # noqa: ASYNC110 # The answer comes by the kernel.
                    await asyncio.sleep(0.01)
            assert answered.texts == [b"answer"]
            client.close()

    run(main())


def test_a_datagram_from_outside_is_received_whole() -> None:
    async def main() -> list[bytes]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
            receiver, received = await endpoint(local_addr=LOCAL)
            for data in HUNDRED:
                plain.sendto(data, name_of(receiver))
            async with asyncio.timeout(10):
                while len(received.texts) < 100:  # noqa: ASYNC110 # They come by the kernel.
                    await asyncio.sleep(0.01)
            receiver.close()
            return received.texts

    texts, happened = run(main(), faults=testing.Faults(short=1.0))
    assert texts == HUNDRED
    assert happened["short"] == 0


def test_a_connected_endpoint_is_on_the_current_host() -> None:
    network = testing.Network()
    network.set_route("web", "db", bandwidth=1000)

    async def main() -> None:
        server, received = await endpoint(local_addr=("db", 5001))
        with network.on("web"):
            client, _ = await endpoint(remote_addr=("db", 5001))
        assert name_of(client)[0] == network.address("web")
        began = asyncio.get_running_loop().time()
        for _ in range(3):
            client.sendto(bytes(1000))
        await asyncio.sleep(10)
        assert [round(when - began, 6) for when in received.times] == [1, 2, 3]
        network.partition("web", "db")
        client.sendto(b"lost")
        await asyncio.sleep(10)
        assert len(received.received) == 3
        client.close()
        server.close()

    run(main(), network=network)


def test_a_datagram_to_nobody_takes_no_time() -> None:
    async def main() -> float:
        sender, _ = await endpoint(local_addr=LOCAL)
        closed, _ = await endpoint(local_addr=LOCAL)
        address = name_of(closed)
        closed.close()
        await asyncio.sleep(1)
        sender.sendto(b"x", address)
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(100)
        sender.close()
        return asyncio.get_running_loop().time() - began

    assert run(main())[0] == pytest.approx(100, abs=1e-6)
