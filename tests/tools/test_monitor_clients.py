"""The monitor's clients: permissions, limits, and clients that violate the protocol."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from pathlib import Path

import pytest
from support.roles import PATIENCE, in_thread, run_script, wait_until
from support.watched import (
    BLOCKED,
    NOBODY,
    as_root,
    connected,
    error_of,
    monitored,
    place,
    program,
    reply_of,
    snapshot_of,
)

from uringloop.monitor import client, server, socket_paths

# The fixtures are found by their names here.
__all__ = ["monitored", "place"]


def test_one_connection_can_send_many_requests(monitored: Path) -> None:
    with connected(monitored) as sock:
        times = []
        for _ in range(20):
            sock.sendall(b"\n")
            times.append(json.loads(reply_of(sock))["time"])
    assert times == sorted(set(times))


def test_pipelined_requests_are_all_answered(monitored: Path) -> None:
    with connected(monitored) as sock:
        sock.sendall(b"\n" * 200)
        received = b""
        while received.count(b"\n") < 200:
            received += reply_of(sock)
    assert all("loops" in json.loads(line) for line in received.splitlines())


def flood(sock: socket.socket, data: bytes) -> None:
    """Send *data* repeatedly until the peer has closed the connection."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            sock.sendall(data)


@pytest.mark.parametrize("request_", [b"GET / HTTP/1.0\r\n\r\n", b"x\n", b"\xff\x00\n"])
def test_invalid_request_gets_an_error_and_eof(monitored: Path, request_: bytes) -> None:
    with connected(monitored) as sock:
        sock.sendall(request_)
        assert error_of(sock) == "a request must be an empty line"
    assert snapshot_of(monitored)["pid"] == os.getpid()


def test_request_without_newline_is_disconnected(monitored: Path) -> None:
    with connected(monitored) as sock:
        flood(sock, b"x" * 1000)
    assert snapshot_of(monitored)["pid"] == os.getpid()


def test_client_that_reads_nothing_is_disconnected(
    monitored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.Snapshots, "timeout_s", 0.3)
    with connected(monitored) as sock:
        # Fill the kernel's buffer: these are more requests than are ever answered.
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while sock.send(b"\n" * 65536):
                pass
        assert snapshot_of(monitored)["pid"] == os.getpid()
        sock.settimeout(2 * PATIENCE)
        flood(sock, b"\n")
    assert snapshot_of(monitored)["pid"] == os.getpid()


def test_client_that_sends_nothing_is_disconnected(
    monitored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.Snapshots, "timeout_s", 0.1)
    with connected(monitored) as sock:
        assert sock.recv(1) == b""


def test_number_of_clients_is_limited(monitored: Path) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(socket_paths.CLIENTS_MAX):
            sock = stack.enter_context(connected(monitored))
            sock.sendall(b"\n")
            assert reply_of(sock)
        with connected(monitored) as more:
            assert error_of(more) == f"{socket_paths.CLIENTS_MAX} clients are connected already"

    def again() -> bool:
        with connected(monitored) as sock:
            sock.sendall(b"\n")
            return b"loops" in reply_of(sock)

    wait_until(again)


def test_client_that_resets_the_connection_does_no_harm(monitored: Path) -> None:
    for _ in range(30):
        with connected(monitored) as sock:
            sock.sendall(b"\n")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert in_thread(lambda: snapshot_of(monitored)["pid"]) == os.getpid()


@as_root
def test_peer_of_another_user_is_refused(place: Path) -> None:
    with program(place, BLOCKED) as watched:
        # Disable the first two protections: the modes of the directory and of the socket.
        place.chmod(0o755)
        watched.socket.chmod(0o666)
        stranger = run_script(f"""
            import os, socket
            os.setgid({NOBODY})
            os.setuid({NOBODY})
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect({str(watched.socket)!r})
                print(sock.recv(1000).decode().rstrip())
                print(sock.recv(1000))
        """)
        assert stranger.returncode == 0, stranger.stderr
        error, end = stranger.stdout.splitlines()
        assert json.loads(error) == {"error": "not permitted: this process belongs to another user"}
        assert end == "b''"
        # The mode of the socket alone keeps the user out as well.
        watched.socket.chmod(0o600)
        stranger = run_script(f"""
            import os, socket
            os.setuid({NOBODY})
            socket.socket(socket.AF_UNIX).connect({str(watched.socket)!r})
        """)
        assert "PermissionError" in stranger.stderr


@as_root
def test_root_may_watch_a_program_of_another_user(place: Path) -> None:
    # Import the monitor before setuid(): only root may be able to read its files.
    script = (
        f"uringloop.monitor\nos.chown({str(place)!r}, {NOBODY}, {NOBODY})\nos.setuid({NOBODY})\n"
    )
    script += BLOCKED
    with program(place, script) as watched:
        assert watched.socket.stat().st_uid == NOBODY
        assert snapshot_of(watched.socket)["pid"] == watched.pid


def test_a_listener_with_a_full_backlog_does_not_delay_its_client(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    waiting = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(path)
        with pytest.raises(client.CannotWatch, match="does not answer"):
            client.Connection(path)
    for sock in waiting:
        sock.close()
