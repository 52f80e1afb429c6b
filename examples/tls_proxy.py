"""A TLS proxy: `python examples/tls_proxy.py --certificate cert.pem --key key.pem`.

In front of `--server 127.0.0.1:8000`: `curl --cacert cert.pem https://localhost:8443/`. The proxy
terminates TLS and forwards bytes in both directions, and the EOF of one side to the other.
"""

import argparse
import asyncio
import contextlib
import ssl

import uringloop

CONNECT_SECONDS_MAX = 10.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until EOF and forward the EOF; drain() waits while the other side does not read."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:
        # TLS has no half-close: close() sends the buffered bytes first.
        writer.close()


async def connect(client: Streams, host: str, port: int) -> None:
    """Serve one client with a connection of its own."""
    writers = [client[1]]
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            server = await asyncio.open_connection(host, port)
        writers.append(server[1])
        async with asyncio.TaskGroup() as both:
            both.create_task(copy(client[0], server[1]))
            both.create_task(copy(server[0], client[1]))
    except* (OSError, TimeoutError):
        pass  # A side has disconnected, or the server does not accept.
    finally:
        for writer in writers:
            writer.close()


async def main(port: int, context: ssl.SSLContext, host: str, server_port: int) -> None:
    async def accept(*client: *Streams) -> None:
        await connect(client, host, server_port)

    server = await asyncio.start_server(accept, "127.0.0.1", port, ssl=context)
    address = server.sockets[0].getsockname()
    print(f"listening on {address[0]}:{address[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8443)
    parser.add_argument("--certificate", required=True, help="PEM, with its chain")
    parser.add_argument("--key", required=True)
    parser.add_argument("--server", default="127.0.0.1:8000")
    options = parser.parse_args()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(options.certificate, options.key)
    name, _, number = options.server.rpartition(":")
    with contextlib.suppress(KeyboardInterrupt):
        uringloop.run(main(options.port, tls, name, int(number)))
