"""Faults: a resource runs out; each function withholds one from a new loop."""

from __future__ import annotations

import asyncio

# Imported before the change of user: `nobody` may not be able to read the module.
import concurrent.futures.thread  # noqa: F401
import contextlib
import gc
import os
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .common import (
    MB,
    Counted,
    Counts,
    Factory,
    Fault,
    become_nobody,
    echo_pair,
    echoes,
    judged,
    open_fds,
    serving,
    still_echoes,
    threads_refused,
    wait_for,
)


def no_locked_memory(factory: Factory) -> str:
    """RLIMIT_MEMLOCK is 0."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    counts = Counts()
    with serving(factory, counts) as address:
        return f"echo {echoes(address):.1f} ms"


def little_locked_memory(factory: Factory) -> str:
    """Five loops of an unprivileged user who may lock 64 KiB of memory."""
    if os.geteuid() == 0:
        become_nobody()
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 * 1024, 64 * 1024))
    loops = [factory() for _ in range(5)]
    echoed = 0
    for loop in loops:
        echoed += loop.run_until_complete(still_echoes(loop))
        loop.close()
    return judged(echoed == 5, f"{echoed} of 5 echoes")


def no_memory(factory: Factory) -> str:
    """RLIMIT_AS leaves 64 MB while five connections send more than that; the limit is then
    raised.
    """
    hoard: list[bytes] = []

    class Hoarder(Counted):
        def data_received(self, data: bytes) -> None:
            hoard.append(data + bytes(len(data)))
            self.counts.received += len(data)

    counts = Counts()
    with serving(factory, counts, Hoarder) as address:
        echoed = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        block = bytes(65536)
        resource.setrlimit(resource.RLIMIT_AS, (size + 64 * MB, echoed[1]))
        for _ in range(5):
            with socket.create_connection(address) as sock:
                sock.settimeout(0.5)
                with contextlib.suppress(OSError):
                    for _ in range(400):
                        sock.sendall(block)
        hoard.clear()
        gc.collect()
        resource.setrlimit(resource.RLIMIT_AS, echoed)
        # The server still receives what has been sent, unless it has lost these connections.
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: counts.lost == 5, 5)
        before = counts.received
        with socket.create_connection(address) as sock:
            sock.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                wait_for(lambda: counts.received > before, 1)
        well = counts.received - before == 1
        hoard.clear()
    return f"{counts.reported} errors, then {'works' if well else '**no service**'}"


def no_descriptors(factory: Factory) -> str:
    """With no free descriptor, a program tries to connect, to open a file, and to start a
    process.
    """
    loop = factory()

    async def main() -> str:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        with tempfile.NamedTemporaryFile() as file:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_fds() - 1, hard))
            outcomes = []
            for attempt in (
                lambda: asyncio.open_connection(*address),
                lambda: asyncio.create_subprocess_exec("/bin/true"),
                lambda: loop.run_in_executor(None, open, file.name),
            ):
                try:
                    await asyncio.wait_for(attempt(), 5)
                    outcomes.append("no error")
                except OSError as exc:
                    outcomes.append(type(exc).__name__)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            _, writer = await asyncio.open_connection(*address)
            writer.close()
        server.close()
        return f"{', '.join(outcomes)}; then works"

    return str(loop.run_until_complete(main()))


def stuck_files(factory: Factory) -> str:
    """100 opens of FIFOs wait for the other ends while an echo runs, and are then cancelled."""
    loop = factory()
    is_ours = hasattr(loop, "backend")

    async def main() -> str:
        with tempfile.TemporaryDirectory() as folder:
            tasks = []
            for number in range(100):
                path = os.path.join(folder, str(number))
                os.mkfifo(path)
                if is_ours:
                    import uringloop

                    tasks.append(asyncio.ensure_future(uringloop.open(path, "rb").__aenter__()))
                else:
                    tasks.append(loop.run_in_executor(None, open, path, "rb"))
            transport, peer = await echo_pair(loop, Counts())
            began = time.monotonic()
            await loop.sock_sendall(peer, b"hello")
            await loop.sock_recv(peer, 100)
            took = (time.monotonic() - began) * 1e3
            for task in tasks:
                task.cancel()
            began = time.monotonic()
            await asyncio.wait(tasks, timeout=10)
            cancelled = (time.monotonic() - began) * 1e3
            transport.close()
            peer.close()
            await asyncio.sleep(0.05)
            stuck = threading.active_count() - 1
            outcome = f"echo {took:.1f} ms, cancelled within {cancelled:.0f} ms"
            return f"{outcome}, {judged(stuck == 0, f'{stuck} threads stuck')}"

    return str(loop.run_until_complete(main()))


async def _write_and_read(loop: Any, path: str, size: int) -> int:
    """Write *size* bytes to a file, sync and read them; return how many are wrong.

    uringloop uses its own files; another loop uses plain files in the executor.
    """
    block = os.urandom(MB)

    def plain() -> int:
        wrong = 0
        with open(path, "w+b", buffering=0) as file:
            for _ in range(size // MB):
                file.write(block)
            os.fsync(file.fileno())
            file.seek(0)
            for _ in range(size // MB):
                wrong += MB * (file.read(MB) != block)
        return wrong

    if not hasattr(loop, "backend"):
        return int(await loop.run_in_executor(None, plain))
    import uringloop

    wrong = 0
    async with uringloop.open(path, "w+b", buffering=0) as file:
        for _ in range(size // MB):
            await file.write(block)
        await file.fsync()
        await file.seek(0)
        for _ in range(size // MB):
            wrong += MB * (await file.read(MB) != block)
    return wrong


def no_threads(factory: Factory) -> str:
    """While no thread can be started, 8 MB are written to a file, synced and read."""
    if os.geteuid() == 0:
        # RLIMIT_NPROC does not apply to root.
        become_nobody()
    with tempfile.TemporaryDirectory() as folder:
        loop = factory()

        async def main() -> str:
            path = os.path.join(folder, "file")
            try:
                wrong = await asyncio.wait_for(_write_and_read(loop, path, 8 * MB), 20)
                outcome = judged(wrong == 0, f"{wrong} bytes wrong")
            except (OSError, RuntimeError) as exc:
                # Another loop has only its executor, which needs a thread.
                outcome = judged(not hasattr(loop, "backend"), f"{type(exc).__name__}: {exc}")
            return f"{outcome}, {judged(await still_echoes(loop), 'then an echo')}"

        with threads_refused():
            return str(loop.run_until_complete(main()))


@contextlib.contextmanager
def _memory_cgroup(room: int) -> Iterator[bool]:
    """Run in a cgroup limited to *room* bytes of memory; yield False if that is not permitted."""
    v1 = Path("/sys/fs/cgroup/memory")
    parent, limit = (v1, "memory.limit_in_bytes") if v1.is_dir() else (v1.parent, "memory.max")
    own = parent / f"uringloop-faults-{os.getpid()}"
    try:
        own.mkdir()
        (own / limit).write_text(str(room))
        (own / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        with contextlib.suppress(OSError):
            own.rmdir()
        yield False
        return
    try:
        yield True
    finally:
        (parent / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):
            own.rmdir()


def memory_cgroup(factory: Factory) -> str:
    """In a memory cgroup of 32 MB, 256 MB are written to a file and read while echoes run."""
    loop = factory()
    latest = 0.0

    async def echo(stop: asyncio.Event) -> None:
        nonlocal latest
        while not stop.is_set():
            began = time.monotonic()
            assert await still_echoes(loop)
            latest = max(latest, time.monotonic() - began)
            await asyncio.sleep(0.005)

    async def main(path: str) -> int:
        stop = asyncio.Event()
        echoing = asyncio.ensure_future(echo(stop))
        wrong = await _write_and_read(loop, path, 256 * MB)
        stop.set()
        await echoing
        return wrong

    # Under cgroup v1 nothing holds back who writes. While the disk is busy with the data of others,
    # the group's memory fills with what is to be written, and the kernel kills the process.
    os.sync()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, _memory_cgroup(32 * MB) as limited:
        if not limited:
            return "not tried: needs a memory cgroup"
        wrong = loop.run_until_complete(main(os.path.join(folder, "file")))
    return f"{judged(wrong == 0, f'{wrong} bytes wrong')}, echo within {latest * 1e3:.0f} ms"


FAULTS: tuple[Fault, ...] = (
    no_locked_memory,
    little_locked_memory,
    no_memory,
    memory_cgroup,
    no_descriptors,
    no_threads,
    stuck_files,
)
