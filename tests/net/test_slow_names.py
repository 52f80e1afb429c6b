"""Names are resolved in threads of their own: slow names, forks, ends, and who is asked instead."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
from asyncio import AbstractEventLoop
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.loops import LoopFactory

import uringloop

PATIENCE = 60.0
TESTS = str(Path(__file__).parents[1])
# Each script begins with this. `native` are the functions of slow_names.c.
BEGIN = """
import asyncio, ctypes, os, signal, socket, sys, threading, time
import uringloop

native = ctypes.CDLL(os.environ["SLOW_NAMES"])

async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)

def asked(loop, name, count=1):
    return [asyncio.ensure_future(loop.getaddrinfo(name, 80)) for _ in range(count)]

async def hanging(loop, count):
    tasks = [task for number in range(count) for task in asked(loop, f"slow-{number}")]
    await until(lambda: native.names_asked() == count)
    return tasks

async def resolve(name):
    return await asyncio.get_running_loop().getaddrinfo(name, 80)

def forked(run):
    child = os.fork()
    if not child:
        try:
            signal.alarm(30)
            os._exit(0 if run() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


@pytest.fixture(scope="session")
def slow_names(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library of slow_names.c."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    made = tmp_path_factory.mktemp("names") / "slow_names.so"
    source = Path(__file__).with_name("slow_names.c")
    command = ["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-pthread", str(source), "-o", str(made)]
    subprocess.run([*command, "-ldl"], check=True)
    return str(made)


# What debug mode writes on a busy machine.
SLOW_TURN = r"(Executing [^\n]* seconds\n)*"


def output(script: str, library: str, warnings: str = SLOW_TURN) -> str:
    """Run *script* with slow names; it must exit with 0, and *warnings* or nothing in stderr."""
    path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
    preloaded = f"{os.environ.get('LD_PRELOAD', '')} {library}".strip()
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", BEGIN + textwrap.dedent(script)],
        env=os.environ | {"LD_PRELOAD": preloaded, "SLOW_NAMES": library, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(warnings, done.stderr, re.DOTALL), done.stderr
    return done.stdout


# ── names that are slow ──────────────────────────────────────────────────────────────────────


def test_slow_names_do_not_stop_a_fast_one(slow_names: str) -> None:
    script = """
    # On one processor a thread rarely looks for a name before all are asked.
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

    async def main():
        loop = asyncio.get_running_loop()
        slow = await hanging(loop, 8)
        # The others are slow until they are released.
        await loop.getaddrinfo("localhost", 80)
        print(any(task.done() for task in slow))
        native.release_names()
        print({repr(error) for error in await asyncio.gather(*slow, return_exceptions=True)})

    uringloop.run(main())
    """
    error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert output(script, slow_names) == f"False\n{ {repr(error)} }\n"


def test_names_wait_behind_32_slow_ones(slow_names: str) -> None:
    script = """
    async def main():
        loop = asyncio.get_running_loop()
        slow = [task for number in range(40) for task in asked(loop, f"slow-{number}")]
        await until(lambda: native.names_asked() == 32)
        (fast,) = asked(loop, "localhost")
        await asyncio.sleep(0.1)
        print(native.names_asked(), fast.done())
        native.release_names()
        print(len(await fast) > 0)
        await asyncio.gather(*slow, return_exceptions=True)
        print(native.names_asked())

    uringloop.run(main())
    """
    assert output(script, slow_names) == "32 False\nTrue\n41\n"


def test_names_that_nobody_awaits_any_more_are_not_resolved(slow_names: str) -> None:
    script = """
    async def main():
        loop = asyncio.get_running_loop()
        slow = [task for number in range(500) for task in asked(loop, f"slow-{number}", 2)]
        await until(lambda: native.names_asked() == 32)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        # One that a thread has can be joined, and another one can be asked again.
        again = asked(loop, "slow-0") + asked(loop, "slow-499")
        await asyncio.sleep(0.05)
        native.release_names()
        answers = await asyncio.gather(*again, return_exceptions=True)
        print([type(answer).__name__ for answer in answers], native.names_asked())

    uringloop.run(main())
    """
    assert output(script, slow_names) == "['gaierror', 'gaierror'] 33\n"


def test_names_that_nobody_awaits_any_more_leave_memory_flat(slow_names: str) -> None:
    script = """
    from support.roles import resident_bytes

    async def time_out(number):
        tasks = [task for n in range(100) for task in asked(loop, f"slow-{number}-{n}")]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def main():
        slow = await hanging(loop, 32)
        for number in range(20):
            await time_out(number)
        size = resident_bytes()
        for number in range(60):
            await time_out(number)
        print(resident_bytes() - size < 4_000_000)
        native.release_names()
        await asyncio.wait(slow)
        print({type(task.exception()) for task in slow}, native.names_asked())

    loop = uringloop.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    """
    assert output(script, slow_names) == "True\n{<class 'socket.gaierror'>} 32\n"


def test_a_coroutine_that_is_closed_awaits_no_name(slow_names: str) -> None:
    script = """
    async def main():
        loop = asyncio.get_running_loop()
        slow = await hanging(loop, 32)
        for number in range(100):
            coroutine = loop.getaddrinfo(f"slow-closed-{number}", 80)
            coroutine.send(None)
            coroutine.close()
        native.release_names()
        await asyncio.wait(slow)
        await resolve("localhost")
        print({type(task.exception()) for task in slow}, native.names_asked())

    uringloop.run(main())
    """
    assert output(script, slow_names) == "{<class 'socket.gaierror'>} 33\n"


def test_the_slow_names_of_a_loop_do_not_stop_another_loop(slow_names: str) -> None:
    script = """
    ended = threading.Event()

    async def ask_slow():
        tasks = [task for number in range(40)
                 for task in asked(asyncio.get_running_loop(), f"slow-{number}")]
        await until(lambda: native.names_asked() == 32)
        other.start()
        await until(ended.is_set)
        print([task for task in tasks if task.done()])

    async def ask_fast():
        infos = await resolve("localhost")
        print(infos == socket.getaddrinfo("localhost", 80))

    def run_other():
        uringloop.run(ask_fast())
        ended.set()

    other = threading.Thread(target=run_other)
    uringloop.run(ask_slow())
    """
    assert output(script, slow_names) == "True\n[]\n"


def test_names_are_resolved_while_the_default_executor_is_blocked(loop: uringloop.Loop) -> None:
    opened = threading.Event()

    async def main() -> None:
        blocked = [loop.run_in_executor(None, opened.wait, PATIENCE) for _ in range(64)]
        try:
            server = await loop.create_server(asyncio.Protocol, "localhost", 0)
            port = server.sockets[0].getsockname()[1]
            transport, _ = await loop.create_connection(asyncio.Protocol, "localhost", port)
            transport.close()
            server.close()
            assert await loop.getnameinfo(("127.0.0.1", 80)) == socket.getnameinfo(
                ("127.0.0.1", 80), 0
            )
            assert not any(call.done() for call in blocked)
        finally:
            opened.set()
        await asyncio.gather(*blocked)

    loop.run_until_complete(asyncio.wait_for(main(), PATIENCE))


def test_a_loop_that_closes_ends_its_threads(slow_names: str) -> None:
    script = """
    from support.processes import thread_names

    def threads():
        return list(thread_names().values()).count("uringloop-names")

    async def main():
        loop = asyncio.get_running_loop()
        slow = await hanging(loop, 5)
        native.release_names()
        await asyncio.gather(*slow, return_exceptions=True)
        print(threads())

    uringloop.run(main())
    # They would end by themselves after 10 s.
    deadline = time.monotonic() + 7
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    print(threads())
    """
    assert output(script, slow_names) == "5\n0\n"


# ── equal questions ──────────────────────────────────────────────────────────────────────────


def test_equal_questions_share_one_call(slow_names: str) -> None:
    script = """
    async def main():
        loop = asyncio.get_running_loop()
        equal = asked(loop, "slow-a", 10)
        other = asked(loop, b"slow-a") + asked(loop, "slow-b")
        typed = asyncio.ensure_future(loop.getaddrinfo("slow-a", 80, type=socket.SOCK_STREAM))
        await until(lambda: native.names_asked() == 3)
        equal[0].cancel()
        native.release_names()
        errors = await asyncio.gather(*equal, *other, typed, return_exceptions=True)
        print(native.names_asked(), len(set(map(id, errors))))
        print([type(error).__name__ for error in errors[:2]])
        # An answer is not kept.
        await asyncio.gather(*asked(loop, "slow-a"), return_exceptions=True)
        print(native.names_asked())

    uringloop.run(main())
    """
    assert output(script, slow_names) == "3 13\n['CancelledError', 'gaierror']\n4\n"


def test_a_name_that_was_cancelled_can_be_asked_again_at_once(loop: uringloop.Loop) -> None:
    async def main() -> None:
        for turns in range(1000):
            first = asyncio.ensure_future(loop.getaddrinfo("localhost", 80))
            for _ in range(turns % 4):
                await asyncio.sleep(0)
            first.cancel()
            again = loop.getaddrinfo("localhost", 80)
            assert await asyncio.wait_for(again, PATIENCE) == expected
            await asyncio.gather(first, return_exceptions=True)

    expected = socket.getaddrinfo("localhost", 80)
    loop.run_until_complete(main())


def test_each_caller_has_a_list_of_its_own(loop: uringloop.Loop) -> None:
    async def main() -> None:
        one, two = await asyncio.gather(*(loop.getaddrinfo("localhost", 80) for _ in range(2)))
        assert one == two == socket.getaddrinfo("localhost", 80)
        assert one is not two

    loop.run_until_complete(main())


# ── nobody waits for the resolver ────────────────────────────────────────────────────────────


def test_a_loop_closes_while_names_are_asked(slow_names: str) -> None:
    script = """
    import gc, weakref
    loop = uringloop.Loop()
    async def main():
        tasks = asked(loop, "slow-a", 3)
        await until(lambda: native.names_asked() == 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    loop.run_until_complete(main())
    loop.close()
    reference = weakref.ref(loop)
    del loop
    gc.collect()
    print(reference())
    native.release_names()
    time.sleep(0.1)
    """
    assert output(script, slow_names) == "None\n"


def test_the_interpreter_ends_while_names_are_asked(slow_names: str) -> None:
    script = """
    async def main():
        asked(asyncio.get_running_loop(), "slow-a")
        await until(lambda: native.names_asked() == 1)
        print("done")

    uringloop.run(main())
    """
    assert output(script, slow_names) == "done\n"


@pytest.mark.parametrize("answer", ["never", "at the end"])
def test_the_interpreter_ends_with_a_loop_that_is_open(slow_names: str, answer: str) -> None:
    script = f"""
    import atexit
    if "{answer}" == "at the end":
        atexit.register(native.release_names)
    loop = uringloop.Loop()
    async def main():
        asked(loop, "slow-a")
        await until(lambda: native.names_asked() == 1)
    loop.run_until_complete(main())
    print("done")
    """
    warnings = "(.*(unclosed event loop|Task was destroyed).*)?"
    assert output(script, slow_names, warnings) == "done\n"


def test_answers_come_while_loops_close(slow_names: str) -> None:
    script = """
    def use_loop():
        for _ in range(100):
            loop = uringloop.Loop()
            async def main():
                tasks = [task for name in "abcd" for task in asked(loop, f"slow-{name}", 2)]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            loop.run_until_complete(main())
            loop.close()

    native.release_names()
    threads = [threading.Thread(target=use_loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("done")
    """
    assert output(script, slow_names) == "done\n"


def test_a_forked_child_resolves_names(slow_names: str) -> None:
    script = """
    import warnings
    warnings.simplefilter("ignore")

    def resolve_in_child():
        asyncio._set_running_loop(None)
        return uringloop.run(resolve("localhost"))

    async def main():
        slow = asked(asyncio.get_running_loop(), "slow-a", 2)
        await until(lambda: native.names_asked() == 1)
        print(forked(resolve_in_child))
        native.release_names()
        for task in slow:
            try:
                await task
            except socket.gaierror:
                print("gaierror")

    uringloop.run(main())
    """
    assert output(script, slow_names) == "0\ngaierror\ngaierror\n"


def test_a_forked_child_closes_a_loop_whose_thread_has_the_lock(slow_names: str) -> None:
    script = """
    import gc, warnings
    from uringloop._turn.stats import thread_state_of
    warnings.simplefilter("ignore")

    async def main():
        await asyncio.gather(*asked(loop, "slow-a", 2), return_exceptions=True)

    def close_in_child():
        global loop
        native.hold_wakes(0)
        loop.close()
        del loop
        gc.collect()
        return uringloop.run(resolve("localhost"))

    def wait_for(condition):
        while not condition():
            time.sleep(0.001)

    loop = uringloop.Loop()
    running = threading.Thread(target=loop.run_until_complete, args=(main(),))
    running.start()
    wait_for(lambda: native.names_asked() == 1 and thread_state_of(loop)[2])
    native.hold_wakes(1)
    native.release_names()
    # The thread holds the lock while it wakes the loop, which sleeps.
    wait_for(native.wakes_held)
    print(forked(close_in_child))
    native.hold_wakes(0)
    running.join()
    loop.close()
    """
    assert output(script, slow_names) == "0\n"


# ── threads that cannot be started ───────────────────────────────────────────────────────────


def test_a_name_fails_if_no_thread_can_be_started(slow_names: str) -> None:
    script = """
    async def main():
        loop = asyncio.get_running_loop()
        native.refuse_threads(1)
        for _ in range(2):
            for resolve in (loop.getaddrinfo("localhost", 80), loop.getnameinfo(("::1", 80))):
                try:
                    await resolve
                except RuntimeError as error:
                    print(error)
        print(await loop.getaddrinfo("127.0.0.1", 80) == socket.getaddrinfo("127.0.0.1", 80))
        native.refuse_threads(0)
        print(await loop.getaddrinfo("localhost", 80) == socket.getaddrinfo("localhost", 80))

    uringloop.run(main())
    """
    assert output(script, slow_names) == "can't start new thread\n" * 4 + "True\nTrue\n"


def test_a_name_waits_for_a_thread_if_no_more_can_be_started(slow_names: str) -> None:
    script = """
    async def main():
        loop = asyncio.get_running_loop()
        (slow,) = asked(loop, "slow-a")
        await until(lambda: native.names_asked() == 1)
        native.refuse_threads(1)
        more = asked(loop, "localhost") + asked(loop, "slow-b")
        await asyncio.sleep(0.05)
        print([task.done() for task in more], native.names_asked())
        native.release_names()
        answers = await asyncio.gather(slow, *more, return_exceptions=True)
        print([type(answer).__name__ for answer in answers])

    uringloop.run(main())
    """
    assert output(script, slow_names) == ("[False, False] 1\n['gaierror', 'list', 'gaierror']\n")


# ── who is asked instead ─────────────────────────────────────────────────────────────────────


class Replaced:
    """Functions in place of those of the socket module."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def getaddrinfo(self, *args: Any) -> list[Any]:
        self.calls.append(args)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.9", args[1]))]

    def getnameinfo(self, *args: Any) -> tuple[str, str]:
        self.calls.append(args)
        return "name", "service"


def test_functions_that_a_program_has_replaced_are_called(
    each_loop: AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = Replaced()
    monkeypatch.setattr(socket, "getaddrinfo", replaced.getaddrinfo)
    monkeypatch.setattr(socket, "getnameinfo", replaced.getnameinfo)

    async def main() -> None:
        for host in ("example.org", "127.0.0.1"):
            ((*_, address),) = await each_loop.getaddrinfo(host, 80, family=socket.AF_INET)
            assert address == ("127.0.0.9", 80)
        assert await each_loop.getnameinfo(("127.0.0.1", 80), 3) == ("name", "service")
        # Afterwards the socket module's own again.
        monkeypatch.undo()
        assert await each_loop.getaddrinfo("::1", 80) == socket.getaddrinfo("::1", 80)

    each_loop.run_until_complete(main())
    assert replaced.calls == [
        ("example.org", 80, socket.AF_INET, 0, 0, 0),
        ("127.0.0.1", 80, socket.AF_INET, 0, 0, 0),
        (("127.0.0.1", 80), 3),
    ]


class Counting(concurrent.futures.ThreadPoolExecutor):
    submitted = 0

    def submit(self, *args: Any, **options: Any) -> Any:
        self.submitted += 1
        return super().submit(*args, **options)


def test_a_default_executor_of_a_class_of_the_program_resolves_names(
    each_loop: AbstractEventLoop,
) -> None:
    executor = Counting(1)
    each_loop.set_default_executor(executor)

    async def main() -> None:
        infos = await each_loop.getaddrinfo("127.0.0.1", 80)
        assert infos == socket.getaddrinfo("127.0.0.1", 80)
        assert await each_loop.getnameinfo(("127.0.0.1", 80), 3) == ("127.0.0.1", "80")

    each_loop.run_until_complete(main())
    assert executor.submitted == 2


def test_a_default_executor_that_is_only_larger_is_not_needed_for_names(
    loop: uringloop.Loop,
) -> None:
    opened = threading.Event()
    loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))

    async def main() -> None:
        blocked = loop.run_in_executor(None, opened.wait, PATIENCE)
        assert await loop.getaddrinfo("localhost", 80)
        assert not blocked.done()
        opened.set()
        assert await blocked

    loop.run_until_complete(main())


def test_numeric_addresses_are_answered_at_once(loop: uringloop.Loop) -> None:
    numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV

    async def main() -> None:
        for resolve in (
            loop.getaddrinfo("127.0.0.1", 80),
            loop.getaddrinfo(b"::1", "443"),
            loop.getaddrinfo("fe80::1%lo", 80),
            loop.getaddrinfo(None, 80, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE),
            loop.getaddrinfo("no number", 80, flags=socket.AI_NUMERICHOST),
            loop.getaddrinfo("::1", 80, family=socket.AF_INET),
            loop.getaddrinfo("127.0.0.1", 80, family=9999),
            loop.getnameinfo(("127.0.0.1", 80), numeric),
        ):
            with pytest.raises((StopIteration, socket.gaierror)):
                resolve.send(None)

    loop.run_until_complete(main())


# ── what others see ──────────────────────────────────────────────────────────────────────────


def test_answers_are_written_as_those_of_the_socket_module(loop: uringloop.Loop) -> None:
    async def main() -> Any:
        return await loop.getaddrinfo("localhost", 80, flags=socket.AI_CANONNAME)

    infos = loop.run_until_complete(main())
    expected = socket.getaddrinfo("localhost", 80, flags=socket.AI_CANONNAME)
    assert list(map(repr, infos)) == list(map(repr, expected))


AUDITED = """
    heard = []
    def hook(event, args):
        if event.startswith("socket.get"):
            heard.append((event, args))
    sys.addaudithook(hook)

    async def main():
        loop = asyncio.get_running_loop()
        await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM, family=socket.AF_INET)
        await loop.getaddrinfo(b"localhost", "80")
        await loop.getaddrinfo(None, 80, proto=6, flags=socket.AI_PASSIVE)
        await loop.getnameinfo(("127.0.0.1", 80), 3)
        await loop.getnameinfo(("::1", 80, 0, 0))
        for resolve in (
            loop.getaddrinfo("a" * 64, 80),
            loop.getaddrinfo("a", 80, family="b"),
            loop.getaddrinfo("127.0.0.1", 80, family=9999),
            loop.getnameinfo(("a b", 80)),
            loop.getnameinfo("a"),
        ):
            await asyncio.gather(resolve, return_exceptions=True)

    loop = LOOP()
    loop.run_until_complete(main())
    loop.close()
    for each in heard:
        print(each)
"""


def test_audit_events_are_those_of_the_socket_module(slow_names: str) -> None:
    ours = output(AUDITED.replace("LOOP", "uringloop.Loop"), slow_names)
    assert ours == output(AUDITED.replace("LOOP", "asyncio.SelectorEventLoop"), slow_names)
    assert ours.count("socket.getaddrinfo") == 4
    assert ours.count("socket.getnameinfo") == 3


def test_an_audit_hook_may_refuse(slow_names: str) -> None:
    script = """
    def hook(event, args):
        if event.startswith("socket.get"):
            raise PermissionError(event)
    sys.addaudithook(hook)

    async def main():
        loop = asyncio.get_running_loop()
        for resolve in (loop.getaddrinfo("127.0.0.1", 80), loop.getaddrinfo("localhost", 80),
                        loop.getnameinfo(("127.0.0.1", 80), 3), loop.getnameinfo(("::1", 80))):
            try:
                await resolve
            except PermissionError as error:
                print(error)

    uringloop.run(main())
    """
    assert output(script, slow_names) == "socket.getaddrinfo\n" * 2 + "socket.getnameinfo\n" * 2


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """Each message that asyncio's logger gets, with its level, and without the time it took."""
    logger = logging.getLogger("asyncio")
    heard: list[str] = []
    handler = logging.Handler()

    def emit(record: logging.LogRecord) -> None:
        text = re.sub(r"took \d+\.\d{3}ms", "took TIME", record.getMessage())
        heard.append(f"{record.levelname} {text}")

    handler.emit = emit  # type: ignore[method-assign]
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield heard
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_debug_mode_logs_what_asyncio_logs(loop_factory: LoopFactory, messages: list[str]) -> None:
    async def main(loop: AbstractEventLoop) -> None:
        await loop.getaddrinfo("localhost", 80)
        await loop.getaddrinfo(
            "127.0.0.1", "80", family=socket.AF_INET, type=socket.SOCK_STREAM, proto=6
        )
        loop.slow_callback_duration = 0.0
        await loop.getaddrinfo(None, 80, flags=socket.AI_PASSIVE)
        loop.slow_callback_duration = 60.0
        with pytest.raises(socket.gaierror):
            await loop.getaddrinfo("no number", 80, flags=socket.AI_NUMERICHOST)

    heard = []
    for make in (loop_factory, asyncio.SelectorEventLoop):
        loop = make()
        loop.slow_callback_duration = 60.0
        loop.set_debug(True)
        messages.clear()
        loop.run_until_complete(main(loop))
        loop.close()
        heard.append([text for text in messages if "address info" in text])
    assert heard[0] == heard[1]
    assert len(heard[0]) == 7
