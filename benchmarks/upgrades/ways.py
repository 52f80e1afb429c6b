"""The ways to upgrade a service: each starts a service, and replaces it while it serves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, ClassVar, Protocol

from servers import program, unused_port

from upgrades.releases import PROGRAMS, Releases, Side
from upgrades.traffic import KINDS, Address

WORKERS = 2
HOST = "127.0.0.1"
LIMIT_S = 30.0
POLL_S = 0.02

# What sends a request to the service without being counted: whether *side* answers.
Answers = Callable[[Side], bool]


class Way(Protocol):
    """A service that is upgraded in one way."""

    address: Address

    @property
    def kinds(self) -> dict[str, int]: ...

    def start(self, side: Side) -> None: ...

    async def upgrade(self, side: Side, answers: Answers) -> None:
        """Replace the service by *side*; return when nothing of the former one is left."""

    def end(self) -> None: ...


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the upgrade does not end")
        await asyncio.sleep(POLL_S)


def children_of(pid: int) -> set[int]:
    with contextlib.suppress(OSError):
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return set()


def number_in(file: Path) -> int:
    """Return the process ID in *file*; 0 if there is none."""
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return 0


class Base:
    """Processes of a service, whose output goes to a file."""

    kinds: ClassVar = KINDS

    def __init__(self, releases: Releases, over: str, log: IO[bytes]) -> None:
        self.releases = releases
        self.log = log
        path = str(releases.folder / "service.sock")
        self.address: Address = path if over == "unix" else (HOST, unused_port())
        self.processes: list[subprocess.Popen[bytes]] = []

    def run(self, *words: str, descriptor: int | None = None) -> subprocess.Popen[bytes]:
        """Start a process; *descriptor*, if there is one, is its descriptor 3."""
        if descriptor is not None:
            words = ("sh", "-c", f'exec "$@" 3<&{descriptor}', "sh", *words)
        process = subprocess.Popen(
            words,
            cwd=self.releases.folder,
            env=self.releases.environment(),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            pass_fds=() if descriptor is None else (descriptor,),
        )
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            # The group has the processes that the first one has started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# ── gunicorn ─────────────────────────────────────────────────────────────────────────────────────


class Hup(Base):
    """gunicorn with another worker in its configuration, and SIGHUP."""

    application = "upgrades.programs.asgi:app"
    workers: ClassVar = {
        "uvloop": "uvicorn_worker.UvicornWorker",
        "uringloop": "uringloop.workers.uvicorn.Worker",
    }

    def __init__(self, releases: Releases, over: str, log: IO[bytes]) -> None:
        super().__init__(releases, over, log)
        address = self.address
        self.bind = f"unix:{address}" if isinstance(address, str) else f"{address[0]}:{address[1]}"

    def configure(self, side: Side) -> None:
        self.releases.choose(side.release)
        settings = {
            "worker_class": self.workers[side.loop],
            "workers": WORKERS,
            "bind": self.bind,
            "pidfile": str(self.pid_file),
            "control_socket_disable": True,
        }
        text = "".join(f"{name} = {value!r}\n" for name, value in settings.items())
        (self.releases.folder / "gunicorn.conf.py").write_text(text)

    @property
    def pid_file(self) -> Path:
        return self.releases.folder / "gunicorn.pid"

    def start(self, side: Side) -> None:
        self.configure(side)
        self.run(sys.executable, program("gunicorn"), self.application)

    async def upgrade(self, side: Side, answers: Answers) -> None:
        self.configure(side)
        main = number_in(self.pid_file)
        before = children_of(main)
        os.kill(main, signal.SIGHUP)
        await until(lambda: answers(side) and not before & children_of(main))


class Aiohttp(Hup):
    """The same with an application for aiohttp."""

    application = "upgrades.programs.aiohttp_app:app"
    workers: ClassVar = {
        "uvloop": "aiohttp.GunicornUVLoopWebWorker",
        "uringloop": "uringloop.workers.aiohttp.Worker",
    }
    # An application for aiohttp closes its websockets itself. After a response that is in progress
    # at the end, a client may lose its next request: docs/how-to/shutdown.md.
    kinds: ClassVar = {
        kind: count
        for kind, count in KINDS.items()
        if kind not in ("websocket", "stream", "long_stream", "download")
    }


class Usr2(Hup):
    """gunicorn with a second main process beside the first one: SIGUSR2, then SIGTERM."""

    async def upgrade(self, side: Side, answers: Answers) -> None:
        self.configure(side)
        former = number_in(self.pid_file)
        os.kill(former, signal.SIGUSR2)
        later = self.pid_file.with_name("gunicorn.pid.2")
        await until(lambda: number_in(later) > 0 and answers(side))
        os.kill(former, signal.SIGTERM)
        pid = number_in(later)
        await until(lambda: number_in(self.pid_file) == pid)


class Proxy(Hup):
    """The first way, behind nginx, which sends a request again if a worker closes its connection.

    nginx.conf lists the service several times: nginx tries each entry once, each former worker may
    close a new connection, and several connections that nginx keeps may be closed at once.
    """

    def start(self, side: Side) -> None:
        super().start(side)
        folder, port = self.releases.folder, unused_port()
        text = (PROGRAMS / "nginx.conf").read_text()
        for name, value in {"FOLDER": folder, "SERVICE": self.bind, "PORT": port}.items():
            text = text.replace(name, str(value))
        (folder / "nginx.conf").write_text(text)
        self.run("nginx", "-c", str(folder / "nginx.conf"))
        # The clients' address is nginx's.
        self.address = (HOST, port)


# ── uvicorn ──────────────────────────────────────────────────────────────────────────────────────


def command_of_uvicorn(side: Side) -> list[str]:
    module = ["uringloop.workers.uvicorn_server"]
    if side.loop == "uvloop":
        module = ["uvicorn", "--loop", "uvloop"]
    return [sys.executable, "-m", *module, "upgrades.programs.asgi:app", "--log-level", "warning"]


class UvicornHup(Base):
    """uvicorn's workers and SIGHUP; the command, and so the loop, stays."""

    def start(self, side: Side) -> None:
        self.releases.choose(side.release)
        address = self.address
        bind = ["--uds", address] if isinstance(address, str) else ["--port", str(address[1])]
        self.run(*command_of_uvicorn(side), "--workers", str(WORKERS), *bind)

    async def upgrade(self, side: Side, answers: Answers) -> None:
        self.releases.choose(side.release)
        main = self.processes[0].pid
        before = children_of(main)
        os.kill(main, signal.SIGHUP)
        # One child is multiprocessing's tracker of resources, which stays.
        await until(lambda: answers(side) and len(before & children_of(main)) <= 1)


class Beside(Base):
    """A process beside the former one, which ends when the new one answers."""

    descriptor: int | None = None

    def command(self, side: Side) -> list[str]:
        raise NotImplementedError

    def start(self, side: Side) -> None:
        self.releases.choose(side.release)
        self.run(*self.command(side), descriptor=self.descriptor)

    async def upgrade(self, side: Side, answers: Answers) -> None:
        former = self.processes[-1]
        self.start(side)
        await until(lambda: answers(side))
        former.terminate()
        await until(lambda: former.poll() is not None)


class Activation(Beside):
    """uvicorn with a listening socket that a supervisor keeps, as systemd does."""

    def __init__(self, releases: Releases, over: str, log: IO[bytes]) -> None:
        super().__init__(releases, over, log)
        if isinstance(self.address, str):
            self.listening = socket.socket(socket.AF_UNIX)
            self.listening.bind(self.address)
            self.listening.listen(1024)
        else:
            self.listening = socket.create_server(self.address, backlog=1024)
        self.descriptor = self.listening.fileno()

    def command(self, side: Side) -> list[str]:
        return [*command_of_uvicorn(side), "--fd", "3"]

    def end(self) -> None:
        super().end()
        self.listening.close()


class Restart(Activation):
    """The same, but the former process ends first; meanwhile, connections wait."""

    async def upgrade(self, side: Side, answers: Answers) -> None:
        former = self.processes[-1]
        former.terminate()
        await until(lambda: former.poll() is not None)
        self.start(side)
        await until(lambda: answers(side))


class ReusePort(Beside):
    """A server on asyncio alone, with SO_REUSEPORT and Server.drain()."""

    kinds: ClassVar = {
        kind: KINDS[kind] for kind in ("new", "kept", "pipelined", "slow", "slow_new")
    }

    def command(self, side: Side) -> list[str]:
        assert not isinstance(self.address, str)
        words = ["-m", "upgrades.programs.server", side.loop, str(self.address[1])]
        return [sys.executable, *words]


WAYS: dict[str, Callable[[Releases, str, IO[bytes]], Way]] = {
    "gunicorn-hup": Hup,
    "gunicorn-usr2": Usr2,
    "gunicorn-proxy": Proxy,
    "aiohttp-hup": Aiohttp,
    "uvicorn-hup": UvicornHup,
    "uvicorn-activation": Activation,
    "uvicorn-restart": Restart,
    "asyncio-reuseport": ReusePort,
}
