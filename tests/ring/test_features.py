"""Rings without the features that URINGLOOP_DISABLE names, each in a process of its own."""

from __future__ import annotations

import pytest
from support import seccomp
from support.leaks import open_fds
from support.loops import each_ring, on_io_uring

import uringloop
from uringloop._cpython import stdlib
from uringloop._ring import backends, features

FEATURES = tuple(features.FEATURES)

REPORT = """
states = features.report("soft" if os.environ.get("URINGLOOP_BACKEND") == "soft" else "io_uring")
print(*(name for name, state in states.items() if state == "disabled"))
"""


@on_io_uring
@pytest.mark.parametrize("name", ["", *FEATURES])
def test_loop_works_without_each_feature(name: str) -> None:
    assert seccomp.lines_of(seccomp.ROUNDS + REPORT, URINGLOOP_DISABLE=name) == [
        *seccomp.ROUNDS_OUTPUT,
        name,
    ]


@each_ring
def test_loop_works_without_all_features(backend: str) -> None:
    variables = {"URINGLOOP_BACKEND": backend, "URINGLOOP_DISABLE": ", ".join(FEATURES) + ","}
    expected = [*seccomp.ROUNDS_OUTPUT, " ".join(FEATURES)]
    assert seccomp.lines_of(seccomp.ROUNDS + REPORT, **variables) == expected


CANCELLED_TRUNCATE = """
import asyncio, os, tempfile, threading
from concurrent.futures import ThreadPoolExecutor
import uringloop

gate, begun = threading.Event(), threading.Event()

class Slow(ThreadPoolExecutor):
    def submit(self, function, *args):
        def call():
            begun.set()
            gate.wait(10)
            return function(*args)
        return super().submit(call)

async def main(folder):
    loop = asyncio.get_running_loop()
    loop.set_default_executor(Slow(1))
    gate.set()
    file = await uringloop.open(folder + "/truncated", "wb", buffering=0)
    gate.clear(), begun.clear()
    fd = file.fileno()
    os.write(fd, b"x" * 100)
    task = asyncio.ensure_future(file.truncate(10))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    closing = asyncio.ensure_future(file.close())
    await asyncio.sleep(0.01)
    # This file gets the descriptor's number if it is free already.
    with open(folder + "/another", "wb", buffering=0) as another:
        another.write(b"x" * 100)
        assert another.fileno() != fd
        gate.set()
        print(*await asyncio.gather(task, closing, return_exceptions=True))
    print(*(os.path.getsize(folder + name) for name in ("/truncated", "/another")))

for factory in (uringloop.new_event_loop, asyncio.SelectorEventLoop):
    with tempfile.TemporaryDirectory() as folder:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main(folder))
"""


@on_io_uring
def test_a_thread_that_truncates_a_file_keeps_its_descriptor() -> None:
    lines = seccomp.lines_of(CANCELLED_TRUNCATE, URINGLOOP_DISABLE="truncate")
    assert lines == [" None", "10 100"] * 2


# Kernels from these versions on must have the feature; older ones may have it.
SINCE = {"truncate": (6, 9), "min_wait": (6, 12), "no_iowait": (6, 15), "epoll_wait": (6, 15)}


@on_io_uring
@pytest.mark.parametrize("name", SINCE)
def test_features_of_the_kernel_are_detected(name: str) -> None:
    if backends.release() < SINCE[name]:
        pytest.skip("this kernel may lack it")
    features.disable(frozenset())
    assert features.report("io_uring")[name] == "used"


@each_ring
def test_sends_post_completions_when_quiet_sends_are_disabled(backend: str) -> None:
    script = """
        import asyncio, uringloop

        async def serve(reader, writer):
            while line := await reader.readline():
                writer.write(line)
            writer.close()

        async def ask(port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(20):
                writer.write(b"line\\n")
                await reader.readline()
            writer.close()
            await writer.wait_closed()

        async def main():
            async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                await asyncio.gather(*(ask(port) for _ in range(50)))
            print(asyncio.get_running_loop().stats()["completions"])

        uringloop.run(main())
    """
    with_them, without = (
        int(*seccomp.lines_of(script, URINGLOOP_BACKEND=backend, URINGLOOP_DISABLE=names))
        for names in ("", "quiet_sends")
    )
    # Two receives for each of 1,000 lines, and two sends.
    assert with_them < 3000 < without


@each_ring
def test_completions_gather_only_with_min_wait_enabled(backend: str) -> None:
    script = """
        import asyncio, socket, threading, time, uringloop

        async def main():
            loop = asyncio.get_running_loop()
            pairs = [socket.socketpair() for _ in range(20)]
            for pair in pairs:
                pair[0].setblocking(False)

            def send():
                time.sleep(0.1)
                for _, other in pairs:
                    other.send(b"x")
                    time.sleep(0.001)

            thread = threading.Thread(target=send)
            thread.start()
            receives = [loop.create_task(loop.sock_recv(pair[0], 1)) for pair in pairs]
            await asyncio.sleep(0)
            before = loop.stats()["turns"]
            await asyncio.wait(receives)
            print(loop.stats()["turns"] - before)
            thread.join()
            for pair in pairs:
                pair[0].close()
                pair[1].close()

        loop = uringloop.Loop(batch_wait_us=200_000)
        loop.run_until_complete(main())
        loop.close()
    """
    with_it, without = (
        int(*seccomp.lines_of(script, URINGLOOP_BACKEND=backend, URINGLOOP_DISABLE=names))
        for names in ("", "min_wait")
    )
    # About one turn for all that arrives within 0.2 s, or one turn for each.
    assert with_it < 10 < without


def test_unknown_feature_error_names_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URINGLOOP_DISABLE", "quiet_sends,nonsense")
    fds = open_fds()
    known = ", ".join((*FEATURES, *stdlib.SWITCHES))
    wording = f"^URINGLOOP_DISABLE: nonsense is none of {known}$"
    for backend in ("auto", "soft"):
        with pytest.raises(ValueError, match=wording):
            uringloop.Loop(backend=backend)
    assert open_fds() == fds


@on_io_uring
def test_feature_is_used_again_once_it_is_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("URINGLOOP_BACKEND", raising=False)
    monkeypatch.setenv("URINGLOOP_DISABLE", " quiet_sends ,, min_wait")
    uringloop.Loop().close()
    disabled = {name for name, state in features.report("io_uring").items() if state == "disabled"}
    assert disabled == {"quiet_sends", "min_wait"}
    monkeypatch.delenv("URINGLOOP_DISABLE")
    uringloop.Loop().close()
    assert "disabled" not in features.report("io_uring").values()
