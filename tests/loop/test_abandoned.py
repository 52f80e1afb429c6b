"""A loop that is garbage collected without close(): it warns and releases all resources."""

from __future__ import annotations

import gc
import socket
import sys
import weakref
from asyncio import AbstractEventLoop, DatagramProtocol

import pytest
from support.leaks import open_fds
from support.loops import LoopFactory, run_turns
from support.protocols import Collector, Echo
from support.roles import Token, run_script
from support.sockets import tcp_pair

import uringloop


def test_loop_in_a_reference_cycle_is_garbage_collected(loop_factory: LoopFactory) -> None:
    loop = loop_factory()
    token = Token()
    watch = weakref.ref(token)
    loop.set_exception_handler(lambda _loop, _context, kept=(loop, token): None)  # type: ignore[misc]
    run_turns(loop)
    loop.close()
    del loop, token
    gc.collect()
    assert watch() is None


def test_unclosed_loop_warns_and_releases_its_resources(loop_factory: LoopFactory) -> None:
    def drop() -> None:
        loops.clear()
        gc.collect()

    fds = open_fds()
    loops = [loop_factory()]
    run_turns(loops[0])
    with pytest.warns(ResourceWarning, match=r"^unclosed event loop <\w+ running=False"):
        drop()
    assert open_fds() == fds


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_unreferenced_loop_is_collected_with_its_connections(loop_factory: LoopFactory) -> None:
    def abandon(near: socket.socket, idle: socket.socket) -> weakref.ref[AbstractEventLoop]:
        loop = loop_factory()
        echo, collector = Echo(), Collector(loop)
        loop.run_until_complete(loop.connect_accepted_socket(lambda: echo, near))
        loop.run_until_complete(loop.create_server(lambda: collector, "127.0.0.1", 0))
        loop.run_until_complete(loop.create_datagram_endpoint(DatagramProtocol, ("127.0.0.1", 0)))
        loop.create_task(loop.sock_recv(idle, 100)).add_done_callback(lambda _: loop)
        echo.transport.write(bytes(10_000_000))
        run_turns(loop)
        return weakref.ref(loop)

    fds = open_fds()
    (near, far), (idle, peer) = tcp_pair(), tcp_pair()
    with far, idle, peer:
        watch = abandon(near, idle)
        del near
        gc.collect()
        assert watch() is None
        far.settimeout(10)
        while far.recv(1 << 20):
            pass
    assert open_fds() == fds


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_unreferenced_loop_is_closed_even_if_close_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # pytest would keep the report, which refers to the loop.
    unraisable: list[str] = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda report: unraisable.append(str(report.exc_value))
    )

    class Failing(uringloop.Loop):
        def close(self) -> None:
            raise OSError("not today")

    fds = open_fds()
    loop = Failing()
    loop.run_until_complete(loop.create_server(Echo, "127.0.0.1", 0))
    watch = weakref.ref(loop)
    del loop
    gc.collect()
    assert unraisable == ["not today"]
    assert watch() is None
    assert open_fds() == fds


@pytest.mark.parametrize("kind", ["asyncio.SelectorEventLoop", "uringloop.Loop"])
def test_interpreter_exits_quietly_with_an_open_loop(kind: str) -> None:
    script = f"""
        import asyncio
        import uringloop
        loop = {kind}()
        loop.run_until_complete(asyncio.sleep(0))
        loop.call_later(3600, print, "never")
        print("done")
    """
    ended = run_script(script)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("kind", ["asyncio.SelectorEventLoop", "uringloop.Loop"])
def test_interpreter_exits_quietly_with_everything_open(kind: str) -> None:
    # As the current event loop of the thread it lives until module globals are cleared.
    script = f"""
        import asyncio, os, signal, socket
        import uringloop

        loop = {kind}()
        asyncio.set_event_loop(loop)
        kept = []

        async def main():
            server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
            kept.append(await loop.create_connection(asyncio.Protocol, *address))
            reader, writer = await asyncio.open_connection(*address)
            # More than the socket buffer takes, so that a send is in flight.
            writer.write(bytes(4 << 20))
            kept.append(await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)))
            source, sink = os.pipe()
            kept.append(await loop.connect_read_pipe(asyncio.Protocol, os.fdopen(source, "rb")))
            kept.append(await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(sink, "wb")))
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            loop.add_reader(ours, print)
            loop.add_signal_handler(signal.SIGUSR1, print)
            loop.call_later(3600, print)
            file = await uringloop.open("/dev/zero", "rb")
            await file.read(1)
            kept.extend([server, reader, writer, ours, theirs, file, loop.create_future()])
            await loop.run_in_executor(None, os.getpid)

        loop.run_until_complete(main())
        print("done")
    """
    ended = run_script(script, "-W", "ignore")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
