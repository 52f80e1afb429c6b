"""UNIX stream servers and clients: paths, abstract names, the socket file, EOF."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import stat
import sys
import threading
import time
from pathlib import Path

import pytest
from support.protocols import Collector, Echo
from support.roles import PATIENCE, on_loop

import uringloop
from uringloop._cpython import stdlib

Loop = asyncio.AbstractEventLoop


async def echoed(loop: Loop, path: str | bytes | Path) -> bytes:
    transport, protocol = await loop.create_unix_connection(lambda: Collector(loop), path)  # type: ignore[arg-type]
    transport.write(b"over a path")
    answer = await protocol.received(11)
    transport.close()
    await protocol.lost
    return answer


@on_loop
async def test_a_client_connects_to_a_server_by_path(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    server = await each_loop.create_unix_server(Echo, path)
    assert await echoed(each_loop, path) == b"over a path"
    assert await echoed(each_loop, str(path)) == b"over a path"
    server.close()
    await server.wait_closed()


@on_loop
async def test_abstract_names_leave_no_file(each_loop: Loop) -> None:
    name = f"\0uringloop-test-{os.getpid()}"
    server = await each_loop.create_unix_server(Echo, name)
    assert await echoed(each_loop, name) == b"over a path"
    server.close()
    await server.wait_closed()


@on_loop
async def test_a_stale_socket_file_is_replaced(each_loop: Loop, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    server = await each_loop.create_unix_server(Echo, path)
    assert await echoed(each_loop, path) == b"over a path"
    server.close()
    await server.wait_closed()


@on_loop
async def test_a_file_that_is_no_socket_is_left_alone(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("content")
    with pytest.raises(OSError, match="is already in use"):
        await each_loop.create_unix_server(Echo, path)
    assert path.read_text() == "content"


@on_loop
async def test_closing_removes_the_socket_file_since_3_13(each_loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    server = await each_loop.create_unix_server(Echo, path)
    assert stat.S_ISSOCK(path.stat().st_mode)
    server.close()
    await server.wait_closed()
    assert path.exists() != stdlib.CLOSE_REMOVES_FILE


def needs_mode(loop: Loop) -> None:
    if sys.version_info < (3, 16) and not isinstance(loop, uringloop.Loop):
        pytest.skip("asyncio has mode since 3.16")


@pytest.mark.parametrize("mode", [0o600, 0o666, 0])
@on_loop
async def test_mode_sets_the_permissions_of_the_socket_file(
    each_loop: Loop, tmp_path: Path, mode: int
) -> None:
    needs_mode(each_loop)
    path = tmp_path / "socket"
    options = {"mode": mode, "start_serving": False}
    server = await each_loop.create_unix_server(Echo, path, **options)  # type: ignore[arg-type]
    # Set before the server listens.
    assert stat.S_IMODE(path.stat().st_mode) == mode
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("\0abstract", ValueError, "mode is not supported for abstract sockets"),
        (b"\0abstract", ValueError, "mode is not supported for abstract sockets"),
        (None, ValueError, "mode is only meaningful with path"),
        ("socket", TypeError, None),
    ],
)
@on_loop
async def test_an_invalid_mode_is_refused(
    each_loop: Loop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str | bytes | None,
    error: type[Exception],
    words: str | None,
) -> None:
    needs_mode(each_loop)
    monkeypatch.chdir(tmp_path)
    mode = 0o600 if words else "rw"
    with socket.socket(socket.AF_UNIX) as sock:
        options = {"sock": None if path else sock, "mode": mode}
        with pytest.raises(error, match=words):
            await each_loop.create_unix_server(Echo, path, **options)  # type: ignore[arg-type]


@on_loop
async def test_a_given_socket_whose_file_cannot_be_found_is_not_listened_to(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    # Issue 51.
    folder = tmp_path / "folder"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(folder / "socket"))
        folder.rename(tmp_path / "elsewhere")
        folder.touch()
        with pytest.raises(NotADirectoryError):
            await loop.create_unix_server(Echo, sock=sock, cleanup_socket=True)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0
        server = await loop.create_unix_server(Echo, sock=sock, cleanup_socket=False)
        assert await echoed(loop, tmp_path / "elsewhere" / "socket") == b"over a path"
        server.close()
        await server.wait_closed()


@on_loop
async def test_cancelling_the_start_of_a_server_removes_its_file(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    starting = loop.create_task(loop.create_unix_server(Echo, path, cleanup_socket=True))
    await asyncio.sleep(0)
    assert path.exists()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not path.exists()


@pytest.mark.parametrize("cleanup", [False, True])
@on_loop
async def test_cleanup_socket_decides_whether_the_file_is_removed(
    loop: uringloop.Loop, tmp_path: Path, cleanup: bool
) -> None:
    path = tmp_path / "socket"
    server = await loop.create_unix_server(Echo, path, cleanup_socket=cleanup)
    server.close()
    await server.wait_closed()
    assert path.exists() != cleanup


@pytest.mark.skipif(sys.version_info < (3, 13), reason="asyncio removes no file before 3.13")
@on_loop
async def test_cleanup_socket_none_leaves_the_file(
    each_loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    server = await each_loop.create_unix_server(Echo, path, cleanup_socket=None)  # type: ignore[call-arg]
    server.close()
    await server.wait_closed()
    assert path.exists()


@on_loop
async def test_the_socket_file_of_a_later_server_is_left_alone(
    loop: uringloop.Loop, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    first = await loop.create_unix_server(Echo, path, cleanup_socket=True)
    second = await loop.create_unix_server(Echo, path, cleanup_socket=True)
    first.close()
    await first.wait_closed()
    assert await echoed(loop, path) == b"over a path"
    second.close()
    await second.wait_closed()
    assert not path.exists()


@on_loop
async def test_path_and_sock_exclude_each_other(each_loop: Loop) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        with pytest.raises(ValueError, match="path and sock can not be specified at the same"):
            await each_loop.create_unix_server(Echo, "/tmp/x", sock=sock)
        with pytest.raises(ValueError, match="path and sock can not be specified at the same"):
            await each_loop.create_unix_connection(Echo, "/tmp/x", sock=sock)
    with pytest.raises(ValueError, match="path was not specified, and no sock specified"):
        await each_loop.create_unix_server(Echo)
    with pytest.raises(ValueError, match="no path and sock were specified"):
        await each_loop.create_unix_connection(Echo)


@on_loop
async def test_a_socket_of_another_family_is_refused(each_loop: Loop) -> None:
    with socket.socket() as sock:
        with pytest.raises(ValueError, match="A UNIX Domain Stream Socket was expected"):
            await each_loop.create_unix_server(Echo, sock=sock)
        with pytest.raises(ValueError, match="A UNIX Domain Stream Socket was expected"):
            await each_loop.create_unix_connection(Echo, sock=sock)


async def heard(loop: Loop) -> bytearray:
    """Return the data received from a UNIX peer that writes and closes at once."""
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    _, collector = await loop.connect_accepted_socket(lambda: Collector(loop), ours)
    peer.send(b"last words")
    peer.close()
    assert await collector.lost is None
    return collector.data


@on_loop
async def test_eof_right_after_the_data_is_not_lost(each_loop: Loop) -> None:
    # A multishot receive loses this EOF on kernels before spring 2026.
    for _ in range(200):
        assert await heard(each_loop) == b"last words"


@on_loop
async def test_eof_that_arrives_with_the_last_bytes_is_not_lost(each_loop: Loop) -> None:
    """The peer writes and shuts down in a thread, at any moment of the loop's turn."""
    asked: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()

    def answer() -> None:
        while (peer := asked.get()) is not None:
            peer.sendall(b"the last bytes")
            peer.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        # A multishot receive loses about one EOF in ten thousand. An emulated machine is slow.
        end = time.monotonic() + PATIENCE
        for _ in range(3000):
            if time.monotonic() > end:
                break
            ours, theirs = socket.socketpair()
            with theirs:
                transport, protocol = await each_loop.create_connection(
                    lambda: Collector(each_loop), sock=ours
                )
                asked.put(theirs)
                assert await protocol.received(14) == b"the last bytes"
                await asyncio.wait_for(protocol.eof, 10)
                transport.close()
                await protocol.lost
    finally:
        asked.put(None)
        thread.join()
