"""Delays in one direction by the kernel's time stamps: `python examples/delay.py receive`.

`python examples/delay.py send HOST PORT` sends probes. The clocks of two hosts must agree.
"""

import argparse
import asyncio
import collections
import contextlib
import socket
import statistics
import struct
from typing import Any

import uringloop

# linux/net_tstamp.h: stamps by software, without the data, of datagrams that are sent as STAMPED.
SO_TIMESTAMPNS, SO_TIMESTAMPING, STAMPS, TIMESPEC = 35, 37, 16 | 2048, struct.Struct("@ll")
STAMPED = [(socket.SOL_SOCKET, SO_TIMESTAMPING, struct.pack("=I", 2))]
# A probe's number, how many there are, and the ns when it left: 0 in the probe itself.
PROBE, PAUSE_SECONDS, WAIT_SECONDS, PROBES_MAX = struct.Struct("!IIQ"), 0.02, 5.0, 10_000


class Inbox(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.queue = asyncio.Queue[Any]()

    def message_received(self, data: bytes, ancdata: Any, flags: int, address: Any) -> None:
        for level, _, value in ancdata:
            if level == socket.SOL_SOCKET:
                seconds, ns = TIMESPEC.unpack_from(value)
                self.queue.put_nowait((data, seconds * 1_000_000_000 + ns, address))

    def error_received(self, exc: Exception) -> None:
        raise SystemExit(f"nobody receives there: {exc}")


async def receive(port: int) -> None:
    loop = asyncio.get_running_loop()
    transport, inbox = await loop.create_datagram_endpoint(Inbox, ("0.0.0.0", port))
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    print("listening on {}:{}".format(*transport.get_extra_info("sockname")), flush=True)
    arrived, delays = (collections.deque[Any](maxlen=PROBES_MAX) for _ in range(2))
    while True:
        data, stamp, address = await inbox.queue.get()
        number, count, sent = PROBE.unpack(data) if len(data) == PROBE.size else (-1, 0, 1)
        if not sent:
            arrived.append(((address, number), stamp))
        elif arrival := dict(arrived).get((address, number)):
            delays.append((arrival - sent) / 1000)
            print(f"{number}: {delays[-1]:.1f} us", flush=True)
            if number + 1 == count:
                print(f"median: {statistics.median(delays):.1f} us", flush=True)
                delays.clear()


async def send(host: str, port: int, count: int) -> None:
    loop: Any = asyncio.get_running_loop()
    transport, inbox = await loop.create_datagram_endpoint(Inbox, remote_addr=(host, port))
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, STAMPS)
    for number in range(count):
        transport.sendmsg([PROBE.pack(number, count, 0)], STAMPED)
        _, sent, _ = await asyncio.wait_for(inbox.queue.get(), WAIT_SECONDS)
        transport.sendto(PROBE.pack(number, count, sent))
        await asyncio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("receive").add_argument("--port", type=int, default=9000)
    sending = commands.add_parser("send")
    sending.add_argument("host")
    sending.add_argument("port", type=int)
    sending.add_argument("--count", type=int, default=10)
    options = vars(parser.parse_args())
    programs: Any = {"receive": receive, "send": send}
    with contextlib.suppress(KeyboardInterrupt):
        uringloop.run(programs[options.pop("command")](**options))
