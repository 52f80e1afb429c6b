"""An echo of QUIC that counts ECN marks: `python examples/quic_ecn.py serve CERTIFICATE KEY`.

`python examples/quic_ecn.py ask AUTHORITY TEXT` asks it. Both send ECT(0): congestion makes it CE.
"""

import argparse
import asyncio
import contextlib
import socket
from typing import Any

from aioquic.asyncio import QuicConnectionProtocol, server
from aioquic.quic import configuration, connection, events

import uringloop

MARKS, ECT0, CLIENTS_MAX = ("not", "ect1", "ect0", "ce"), b"\2", 10_000


# Between a protocol of aioquic and the transport: it marks what is sent, and counts what arrives.
class Ecn(asyncio.DatagramProtocol):
    def __init__(self, protocol: Any) -> None:
        self.protocol, self.clients = protocol, dict[Any, dict[str, int]]()

    def connection_made(self, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        self.transport = transport
        self.protocol.connection_made(self)

    def message_received(self, data: bytes, ancdata: Any, flags: int, address: Any) -> None:
        if len(self.clients) >= CLIENTS_MAX:
            self.clients.clear()
        self.counts = self.clients.setdefault(address, dict.fromkeys(MARKS, 0))
        for _, _, value in ancdata:
            self.counts[MARKS[value[0] & 3]] += 1
        self.protocol.datagram_received(data, address)

    def sendto(self, data: bytes, address: Any) -> None:
        self.transport.sendmsg([data], [(socket.IPPROTO_IP, socket.IP_TOS, ECT0)], address)


class Echo(QuicConnectionProtocol):
    def quic_event_received(self, event: Any) -> None:
        if isinstance(event, events.StreamDataReceived):
            line = b"\n%a" % self._transport.counts if event.end_stream else b""
            self._quic.send_stream_data(event.stream_id, event.data + line, event.end_stream)


async def serve(port: int, certificate: str, key: str) -> None:
    settings = configuration.QuicConfiguration(is_client=False)
    settings.load_cert_chain(certificate, key)
    ecn = Ecn(server.QuicServer(configuration=settings, create_protocol=Echo))
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: ecn, ("127.0.0.1", port))
    print("listening on {}:{}".format(*ecn.transport.get_extra_info("sockname")), flush=True)
    await asyncio.Event().wait()


async def ask(port: int, authority: str, text: str) -> None:
    settings = configuration.QuicConfiguration(server_name="localhost", cafile=authority)
    settings.idle_timeout = 10.0
    ecn = Ecn(QuicConnectionProtocol(connection.QuicConnection(configuration=settings)))
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: ecn, ("127.0.0.1", 0))
    ecn.protocol.connect(("127.0.0.1", port))
    reader, writer = await ecn.protocol.create_stream()
    writer.write(text.encode())
    writer.write_eof()
    print((await reader.read()).decode() or "no answer", *ecn.clients.values(), sep="\n")
    ecn.protocol.close()


if __name__ == "__main__":
    commands = {"serve": serve, "ask": ask}
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=commands)
    parser.add_argument("arguments", nargs=2, help="CERTIFICATE KEY, or AUTHORITY TEXT")
    parser.add_argument("--port", type=int, default=4433)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uringloop.run(commands[options.command](options.port, *options.arguments))
