"""A chat over WebSockets: `pip install websockets`, then `python examples/chat.py`.

Each message goes to all connected clients; run `python -m websockets ws://localhost:7001/` in two
terminals. The program uses the package in the same way as on asyncio.
"""

import argparse
import asyncio
import contextlib

from websockets.asyncio.server import ServerConnection, broadcast, serve

import uringloop

members: dict[ServerConnection, str] = {}


async def join(connection: ServerConnection) -> None:
    """Serve one member until the connection ends; the path of the request is the name."""
    name = (connection.request.path if connection.request else "").strip("/") or "somebody"
    members[connection] = name
    broadcast(members, f"{name} is here")
    try:
        async for message in connection:
            broadcast(members, f"{name}: {message!s}")
    finally:
        del members[connection]
        broadcast(members, f"{name} has left")


async def main(host: str, port: int) -> None:
    async with serve(join, host, port) as server:
        address = next(iter(server.sockets)).getsockname()
        print(f"listening on {address[0]}:{address[1]}", flush=True)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7001)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uringloop.run(main(options.host, options.port))
