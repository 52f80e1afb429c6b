"""What differs between releases of asyncio, bug-fix releases too, is read from the installed one.

Each test runs a program in an interpreter of its own, in which a function of asyncio has been
replaced before uringloop is imported, as if it came from another release.
"""

# Issue 51.

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import socket
import textwrap

import pytest
from support.roles import Loop, on_loop, run_script

BEGIN = """
import asyncio, errno, os, socket, tempfile
from asyncio import events, selector_events, unix_events


class Given(asyncio.DatagramProtocol):
    pass


def raised(exc):
    return f"{type(exc).__name__}: {exc}"
"""


def outcome(replaced: str, program: str) -> str:
    """Return what *program*, the body of main(), prints after *replaced* has changed asyncio."""
    main = "async def main():\n    loop = asyncio.get_running_loop()\n"
    main += textwrap.indent(textwrap.dedent(program), "    ")
    script = "\n".join(
        [BEGIN, textwrap.dedent(replaced), main, "import uringloop", "uringloop.run(main())"]
    )
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("used", "expected"), [("SOCK_STREAM", "opened"), ("SOCK_DGRAM", "A UDP Socket was expected")]
)
def test_which_sockets_are_datagram_endpoints_is_as_in_asyncio(used: str, expected: str) -> None:
    replaced = f"asyncio.BaseEventLoop.create_datagram_endpoint = lambda self: socket.{used}"
    program = """
        ours, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            transport, _ = await loop.create_datagram_endpoint(Given, sock=ours)
        except ValueError as exc:
            ours.close()
            print(exc)
        else:
            transport.abort()
            print("opened")
    """
    assert outcome(replaced, program).startswith(expected)


@pytest.mark.parametrize(("used", "says"), [("strerror", False), ("lower", True)])
def test_the_message_of_a_failed_bind_is_as_in_asyncio(used: str, says: bool) -> None:
    replaced = f"asyncio.BaseEventLoop._connect_sock = lambda self, exc: exc.{used}"
    program = """
        with socket.create_server(("127.0.0.1", 0)) as holder:
            try:
                await loop.create_server(asyncio.Protocol, *holder.getsockname())
            except OSError as exc:
                print(exc.strerror)
    """
    shown = outcome(replaced, program)
    assert shown.endswith(os.strerror(errno.EADDRINUSE).lower())
    assert ("[errno 98]" in shown) == says


@pytest.mark.parametrize(
    ("used", "expected"),
    [("EADDRNOTAVAIL", "could not bind on any address"), ("EINVAL", "error while attempting")],
)
def test_what_a_server_does_without_its_address_is_as_in_asyncio(used: str, expected: str) -> None:
    replaced = f"asyncio.BaseEventLoop.create_server = lambda self: errno.{used}"
    program = """
        try:
            await loop.create_server(asyncio.Protocol, "192.0.2.77", 0)
        except OSError as exc:
            print(exc.args[-1])
    """
    assert outcome(replaced, program).startswith(expected)


@pytest.mark.parametrize(
    ("first", "expected"), [("if not data: return", "100"), ("self._address", "108")]
)
def test_what_a_queued_datagram_counts_for_is_as_in_asyncio(first: str, expected: str) -> None:
    replaced = f"""
        def sendto(self, data, addr=None):
            {first}
        selector_events._SelectorDatagramTransport.sendto = sendto
    """
    program = """
        ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.setblocking(False)
        try:
            while True:
                ours.send(b"fill")
        except BlockingIOError:
            pass  # The queue of the peer is full.
        transport, _ = await loop.create_datagram_endpoint(Given, sock=ours)
        transport.sendto(bytes(100))
        print(transport.get_write_buffer_size())
        transport.abort()
    """
    assert outcome(replaced, program) == expected


@pytest.mark.parametrize(("used", "there"), [("mode", "True"), ("cleanup_socket", "False")])
def test_whether_close_removes_the_file_is_as_in_asyncio(used: str, there: str) -> None:
    replaced = f"""
        unix_events._UnixSelectorEventLoop.create_unix_server = lambda self, {used}: None
    """
    program = """
        path = os.path.join(tempfile.mkdtemp(), "socket")
        server = await loop.create_unix_server(asyncio.Protocol, path)
        server.close()
        print(os.path.exists(path))
    """
    assert outcome(replaced, program) == there


@pytest.mark.parametrize(("used", "closed"), [("Exception", "True"), ("transport", "False")])
def test_what_a_failed_function_of_a_server_does_is_as_in_asyncio(used: str, closed: str) -> None:
    replaced = f"asyncio.StreamReaderProtocol.connection_made = lambda self, transport: {used}"
    program = """
        from uringloop import streams

        transports = []
        # Their exceptions keep the writer, which would close the connection when it is dropped.
        reported = []

        def fail(reader, writer):
            transports.append(writer.transport)
            raise ValueError

        loop.set_exception_handler(lambda loop, context: reported.append(context))
        server = await streams.start_server(fail, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            while not reported:
                await asyncio.sleep(0)
        print(transports[0].is_closing())
        transports[0].abort()
        server.close()
    """
    assert outcome(replaced, program) == closed


@pytest.mark.parametrize(
    "kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM], ids=str
)
@on_loop
async def test_a_socket_of_each_type_is_a_datagram_endpoint_or_is_not(
    each_loop: Loop, kind: int
) -> None:
    function = asyncio.BaseEventLoop.create_datagram_endpoint
    takes_most = "SOCK_DGRAM:" not in inspect.getsource(function)
    left, right = socket.socketpair(socket.AF_UNIX, kind)
    refused = kind == socket.SOCK_STREAM or (kind == socket.SOCK_SEQPACKET and not takes_most)
    with left, right:
        if refused:
            with pytest.raises(ValueError, match="ocket was expected, got"):
                await each_loop.create_datagram_endpoint(asyncio.DatagramProtocol, sock=left)
            return
        transport, _ = await each_loop.create_datagram_endpoint(asyncio.DatagramProtocol, sock=left)
        transport.abort()
        await asyncio.sleep(0)
