"""A DNS server: `python examples/names.py here.test=10.0.0.1`, `dig @127.0.0.2 -p 5300 here.test`.

It is bound to all addresses, and answers from the one that was asked: clients accept no other. Each
name of the command line has one address (A); other names do not exist.
"""

import argparse
import asyncio
import contextlib
import socket
import struct
from ipaddress import IPv4Address
from typing import Any

import uringloop

# linux/in.h: the interface, the local address, and the address of the header.
IP_PKTINFO, PKTINFO = 8, struct.Struct("=I4s4s")
# An id, flags, and how many questions, answers and other records follow.
HEADER = struct.Struct("!6H")
RESPONSE, OPCODE, AUTHORITATIVE, RECURSION, NO_SUCH_NAME = 0x8000, 0x7800, 0x400, 0x100, 3
NAME_MAX, A, INTERNET = 255, b"\0\1", b"\0\1"
# The question's name again, the type, the class, seconds to keep it, and the address's size.
RECORD = b"\xc0\x0c" + A + INTERNET + b"\0\0\0\x3c" + b"\0\4"


def answer(query: bytes, addresses: dict[bytes, bytes]) -> bytes | None:
    """Return the answer; None for what is not a query with one question."""
    if len(query) < HEADER.size:
        return None
    number, flags, questions, *_ = HEADER.unpack_from(query)
    end = query.find(0, HEADER.size, HEADER.size + NAME_MAX) + 1
    kind, group = query[end : end + 2], query[end + 2 : end + 4]
    if flags & (RESPONSE | OPCODE) or questions != 1 or end == 0 or group != INTERNET:
        return None
    address = addresses.get(query[HEADER.size : end].lower())
    flags = RESPONSE | AUTHORITATIVE | flags & RECURSION | (0 if address else NO_SUCH_NAME)
    record = RECORD + address if address and kind == A else b""
    return HEADER.pack(number, flags, 1, bool(record), 0, 0) + query[HEADER.size : end + 4] + record


class Server(asyncio.DatagramProtocol):
    def __init__(self, addresses: dict[bytes, bytes]) -> None:
        self.addresses = addresses

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def message_received(self, data: bytes, ancdata: Any, flags: int, address: Any) -> None:
        response = answer(data, self.addresses)
        for level, kind, value in ancdata:
            if response and (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
                source = PKTINFO.pack(0, PKTINFO.unpack(value)[1], b"")
                self.transport.sendmsg([response], [(level, kind, source)], address)


def entry(argument: str) -> tuple[bytes, bytes]:
    """Return a name as DNS sends it, each label behind its size, and the bytes of its address."""
    name, _, address = argument.partition("=")
    labels = (name.lower().rstrip(".") + ".").encode("idna").split(b".")
    return b"".join(bytes([len(one)]) + one for one in labels), IPv4Address(address).packed


async def main(port: int, addresses: dict[bytes, bytes]) -> None:
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    sock.bind(("0.0.0.0", port))
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: Server(addresses), sock=sock)
    print("listening on {}:{}".format(*sock.getsockname()), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("entries", nargs="+", type=entry, metavar="NAME=ADDRESS")
    parser.add_argument("--port", type=int, default=5300)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uringloop.run(main(options.port, dict(options.entries)))
