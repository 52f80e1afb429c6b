"""Servers for the measurements of clients: started in a folder, stopped at the end.

Each context manager yields the server's address, a free port of the loopback address. The server
runs on the core of the measured client.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from uringloop.bench.child import Child
from uringloop.bench.placement import Placement
from uringloop.bench.settings import HOST, Address, BenchError, Refused

from .workloads.clients import POSTGRESQL_USER

Backend = Callable[[Placement, Path], AbstractContextManager[Address | None]]

# The command of a server of this benchmark; `--loop` and `--mode` follow.
SERVER = (sys.executable, str(Path(__file__).with_name("server.py")))

# A server that is not ready by then has failed.
START_SECONDS = 30.0


@contextlib.contextmanager
def nothing(placement: Placement, directory: Path) -> Iterator[Address | None]:
    """Start no server: for programs that need none."""
    yield None


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    command: list[str],
    placement: Placement,
    ready: Callable[[], bool],
    *,
    cwd: Path,
    user: str | None = None,
) -> Iterator[None]:
    """Run a server for the duration of the context, on the core of the measured process."""
    # The benchmark's own processes end when a pipe of their parent closes, which a database server
    # does not read.
    tied = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    where = placement.client_cpu, placement.shared
    server = Child([*tied, *command], *where, user=user, cwd=cwd)
    try:
        end = time.monotonic() + START_SECONDS
        while not ready():
            if time.monotonic() > end or server.process.poll() is not None:
                raise BenchError(f"{Path(command[0]).name} did not start: {server.last_error()}")
            # Neither server reports readiness by a signal or a descriptor, so poll.
            time.sleep(0.02)
        yield
    finally:
        server.stop()


def accepts(port: int) -> bool:
    """Return whether a server listens on the port."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1.0):
        return True
    return False


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def tls(placement: Placement, directory: Path) -> Iterator[Address | None]:
    """Run the echo server over TLS with an RSA key, on asyncio's own loop for all clients."""
    port = free_port()
    command = [*SERVER, "--loop", "asyncio", "--mode", "tls-rsa", "--port", str(port)]
    with running(command, placement, lambda: accepts(port), cwd=directory):
        yield HOST, port


# ── redis ────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def redis(placement: Placement, directory: Path) -> Iterator[Address | None]:
    """Run redis-server without persistence."""
    program = shutil.which("redis-server")
    if program is None:
        raise Refused("missing", "redis-server is not installed")
    port = free_port()

    def ready() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1.0) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(16).startswith(b"+PONG")
        return False

    settings = {"bind": HOST, "port": str(port), "save": "", "dir": str(directory)}
    settings |= {"loglevel": "warning", "appendonly": "no"}
    command = [program, *(word for name in settings for word in (f"--{name}", settings[name]))]
    with running(command, placement, ready, cwd=directory):
        yield HOST, port


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────


def postgresql_program(name: str) -> str:
    """Return the path of a PostgreSQL program; Debian does not put these on PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places = os.pathsep.join([*map(str, debian), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=places)
    if found is None:
        raise Refused("missing", f"PostgreSQL is not installed: there is no {name}")
    return found


def unprivileged_user() -> str | None:
    """Return a user to run PostgreSQL if this process is root: it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@contextlib.contextmanager
def postgresql(placement: Placement, directory: Path) -> Iterator[Address | None]:
    """Run a new PostgreSQL cluster that accepts every client without a password."""
    initdb, postgres = postgresql_program("initdb"), postgresql_program("postgres")
    user = unprivileged_user()
    # Not in the benchmark's own folder, which another user may not enter.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, data = Path(name), Path(name) / "data"
        if user is not None:
            shutil.chown(folder, user)
        made = subprocess.run(
            [initdb, "-D", str(data), "-U", POSTGRESQL_USER, "-A", "trust", "-N", "--locale=C"],
            capture_output=True,
            text=True,
            cwd=folder,
            user=user,
            group=pwd.getpwnam(user).pw_gid if user is not None else None,
            extra_groups=[] if user is not None else None,
        )
        if made.returncode != 0:
            raise BenchError(f"initdb: {(made.stderr.splitlines() or ['no reason given'])[-1]}")
        port = free_port()
        settings = {"port": str(port), "listen_addresses": HOST, "fsync": "off"}
        settings["unix_socket_directories"] = str(folder)
        command = [postgres, "-D", str(data)]
        for setting, value in settings.items():
            command += ["-c", f"{setting}={value}"]

        def ready() -> bool:
            # The eighth line of postmaster.pid is the state of the server; pg_ctl reads it too.
            with contextlib.suppress(OSError):
                lines = (data / "postmaster.pid").read_text().splitlines()
                return len(lines) > 7 and lines[7].startswith("ready")
            return False

        with running(command, placement, ready, cwd=folder, user=user):
            yield HOST, port
