"""The policy, install(), run(), new_event_loop() and the version."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
import warnings
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from support.roles import in_thread, run_script

import uringloop

T = TypeVar("T")

PATIENCE = 20.0

HAS_POLICIES = sys.version_info < (3, 16)
policies = pytest.mark.skipif(not HAS_POLICIES, reason="asyncio has no policies since 3.16")


@contextlib.contextmanager
def policies_allowed() -> Iterator[None]:
    """Ignore DeprecationWarning in the block: policies raise it from Python 3.14 on."""
    with warnings.catch_warnings():
        if sys.version_info >= (3, 14):
            warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.fixture
def restored_policy() -> Iterator[None]:
    """Restore the process's policy after the test."""
    with policies_allowed():
        before = asyncio.get_event_loop_policy()
    yield
    with policies_allowed():
        asyncio.set_event_loop_policy(before)


async def running_loop() -> AbstractEventLoop:
    await asyncio.sleep(0)
    return asyncio.get_running_loop()


# ── the package ──────────────────────────────────────────────────


def test_version_is_a_release_number() -> None:
    assert re.match(r"\d+\.\d+(\.\d+)?([.-]?(a|b|rc|dev|post)\d*)?$", uringloop.__version__)


def test_import_gives_no_warning() -> None:
    ended = run_script("import uringloop", "-W", "error")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_import_changes_neither_policy_nor_running_loop() -> None:
    script = """
        import asyncio
        import uringloop
        loop = asyncio.new_event_loop()
        assert not isinstance(loop, uringloop.Loop)
        assert asyncio._get_running_loop() is None
        loop.close()
    """
    ended = run_script(script, "-W", "error")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_new_event_loop_returns_a_new_loop_each_time() -> None:
    make: Callable[[], uringloop.Loop] = uringloop.Loop
    with (
        contextlib.closing(uringloop.new_event_loop()) as one,
        contextlib.closing(uringloop.new_event_loop()) as other,
        contextlib.closing(make()) as made,
    ):
        assert one is not other
        for loop in (one, other, made):
            assert type(loop) is uringloop.Loop
            assert isinstance(loop, asyncio.AbstractEventLoop)
        assert asyncio._get_running_loop() is None


# ── run ──────────────────────────────────────────────────────────


def test_run_returns_the_result_and_closes_its_loop() -> None:
    loop = uringloop.run(running_loop())
    assert isinstance(loop, uringloop.Loop)
    assert loop.is_closed()


def test_run_raises_the_exception_of_the_coroutine() -> None:
    async def fail() -> None:
        raise ZeroDivisionError("from main")

    with pytest.raises(ZeroDivisionError, match="from main"):
        uringloop.run(fail())


def test_run_takes_debug_and_a_loop_factory() -> None:
    made: list[uringloop.Loop] = []

    def factory() -> uringloop.Loop:
        made.append(uringloop.new_event_loop())
        return made[-1]

    async def main() -> bool:
        assert asyncio.get_running_loop() is made[-1]
        return asyncio.get_running_loop().get_debug()

    assert uringloop.run(main(), loop_factory=factory) is sys.flags.dev_mode
    assert uringloop.run(main(), loop_factory=factory, debug=True) is True
    assert uringloop.run(main(), loop_factory=factory, debug=False) is False
    assert len(made) == 3
    assert all(loop.is_closed() for loop in made)


def test_run_refuses_an_object_that_is_not_a_coroutine() -> None:
    run: Callable[[object], object] = uringloop.run  # type: ignore[assignment]
    with pytest.raises((ValueError, TypeError), match=r"a coroutine was expected|is required"):
        run("not a coroutine")


def test_run_raises_in_a_thread_with_a_running_loop() -> None:
    async def main() -> None:
        inner = running_loop()
        with pytest.raises(RuntimeError, match=r"cannot be called from a running event loop"):
            uringloop.run(inner)
        inner.close()

    uringloop.run(main())


def test_run_cancels_remaining_tasks_and_ends_threads() -> None:
    ended: list[str] = []
    kept: list[asyncio.Task[None]] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def main() -> str:
        kept.append(asyncio.create_task(wait()))
        return await asyncio.to_thread(lambda: threading.current_thread().name)

    threads = set(threading.enumerate())
    assert uringloop.run(main()).startswith("asyncio_")
    assert ended == ["cancelled"]
    assert kept[0].cancelled()
    assert not set(threading.enumerate()) - threads


def test_run_works_in_every_thread() -> None:
    assert isinstance(in_thread(lambda: uringloop.run(running_loop())), uringloop.Loop)


# ── the policy ───────────────────────────────────────────────────


@policies
def test_policy_makes_asyncio_run_use_uringloop(restored_policy: None) -> None:
    with policies_allowed():
        asyncio.set_event_loop_policy(uringloop.EventLoopPolicy())
    assert isinstance(asyncio.run(running_loop()), uringloop.Loop)
    assert isinstance(in_thread(lambda: asyncio.run(running_loop())), uringloop.Loop)
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        assert isinstance(loop, uringloop.Loop)
    with asyncio.Runner() as runner:
        assert isinstance(runner.get_loop(), uringloop.Loop)


@policies
def test_environment_applies_to_loops_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URINGLOOP_BACKEND", "soft")
    with (
        policies_allowed(),
        contextlib.closing(uringloop.EventLoopPolicy().new_event_loop()) as loop,
    ):
        assert isinstance(loop, uringloop.Loop)
        assert loop.backend == "soft"


@policies
def test_install_sets_the_policy(restored_policy: None) -> None:
    with policies_allowed():
        uringloop.install()
        assert isinstance(asyncio.get_event_loop_policy(), uringloop.EventLoopPolicy)
    assert isinstance(asyncio.run(running_loop()), uringloop.Loop)


@policies
def test_install_within_a_loop_of_another_kind_warns(restored_policy: None) -> None:
    async def main() -> None:
        with pytest.warns(RuntimeWarning, match=r"too late: <_UnixSelectorEventLoop running=True"):
            uringloop.install()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(main())


@policies
def test_install_after_set_event_loop_warns(restored_policy: None) -> None:
    def late() -> str:
        with policies_allowed(), contextlib.closing(asyncio.SelectorEventLoop()) as loop:
            asyncio.set_event_loop(loop)
            with pytest.warns(RuntimeWarning, match="too late") as warned:
                uringloop.install()
        # The warning names the caller of install().
        assert warned[0].filename == __file__
        # The policy is set in spite of the warning.
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            return type(loop).__name__

    assert in_thread(late) == "Loop"


@policies
def test_install_in_time_does_not_warn(restored_policy: None) -> None:
    async def again() -> None:
        with policies_allowed():
            uringloop.install()

    with warnings.catch_warnings(), policies_allowed():
        warnings.simplefilter("error", RuntimeWarning)
        with contextlib.closing(asyncio.SelectorEventLoop()) as closed:
            asyncio.set_event_loop(closed)
        uringloop.install()
        uringloop.install()
    asyncio.run(again())


@policies
def test_policy_is_an_asyncio_policy() -> None:
    with policies_allowed():
        assert isinstance(uringloop.EventLoopPolicy(), asyncio.AbstractEventLoopPolicy)


@policies
def test_policy_remembers_the_loop_of_each_thread() -> None:
    with (
        policies_allowed(),
        contextlib.closing(uringloop.new_event_loop()) as mine,
        contextlib.closing(uringloop.new_event_loop()) as theirs,
    ):
        policy = uringloop.EventLoopPolicy()

        def there() -> AbstractEventLoop:
            policy.set_event_loop(theirs)
            return policy.get_event_loop()

        policy.set_event_loop(mine)
        assert in_thread(there) is theirs
        assert policy.get_event_loop() is mine


@policies
def test_policy_has_no_loop_in_other_threads_until_one_is_set() -> None:
    with policies_allowed():
        policy = uringloop.EventLoopPolicy()
        with pytest.raises(RuntimeError, match=r"^There is no current event loop in thread '"):
            in_thread(policy.get_event_loop)


@policies
def test_policy_has_no_loop_after_set_event_loop_none() -> None:
    with policies_allowed(), contextlib.closing(uringloop.new_event_loop()) as loop:
        policy = uringloop.EventLoopPolicy()
        policy.set_event_loop(loop)
        policy.set_event_loop(None)
        wording = r"^There is no current event loop in thread 'MainThread'\.$"
        with pytest.raises(RuntimeError, match=wording):
            policy.get_event_loop()


@policies
def test_policy_refuses_an_object_that_is_not_a_loop() -> None:
    with policies_allowed():
        policy = uringloop.EventLoopPolicy()
        with pytest.raises(
            TypeError, match="loop must be an instance of AbstractEventLoop or None"
        ):
            policy.set_event_loop("spam")  # type: ignore[arg-type]


@policies
def test_first_loop_of_the_main_thread_is_created_as_by_the_default_policy() -> None:
    def first_loop(policy: asyncio.AbstractEventLoopPolicy) -> tuple[str, list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                policy.get_event_loop().close()
            except RuntimeError as error:
                return str(error), [str(warning.message) for warning in caught]
        return "a loop", [str(warning.message) for warning in caught]

    with policies_allowed():
        stock = first_loop(asyncio.DefaultEventLoopPolicy())
        assert first_loop(uringloop.EventLoopPolicy()) == stock


@policies
def test_get_event_loop_gives_the_running_loop(restored_policy: None) -> None:
    async def main() -> AbstractEventLoop:
        return asyncio.get_event_loop()

    with policies_allowed():
        asyncio.set_event_loop_policy(uringloop.EventLoopPolicy())
    with contextlib.closing(uringloop.new_event_loop()) as loop:
        assert loop.run_until_complete(main()) is loop


@policies
def test_get_event_loop_gives_the_loop_that_was_set(restored_policy: None) -> None:
    with policies_allowed():
        asyncio.set_event_loop_policy(uringloop.EventLoopPolicy())
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        asyncio.set_event_loop(loop)
        assert asyncio.get_event_loop() is loop
        asyncio.set_event_loop(None)


# ── without policies ─────────────────────────────────────────────


@pytest.mark.skipif(HAS_POLICIES, reason="asyncio has policies up to 3.15")
@pytest.mark.parametrize("name", ["install", "EventLoopPolicy"])
def test_without_policies_the_error_names_the_alternatives(name: str) -> None:
    with pytest.raises(RuntimeError, match=rf"uringloop\.{name}\(\) needs .* use uringloop\.run"):
        getattr(uringloop, name)()
    # The default loop is unchanged.
    assert not isinstance(asyncio.run(running_loop()), uringloop.Loop)


# ── pytest-asyncio ───────────────────────────────────────────────


# Newer versions of pytest-asyncio prefer a hook, but programs still define this fixture.
@pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy.")
@policies
class TestClassWithThePolicy:
    """A class whose asynchronous tests run on uringloop."""

    @pytest.fixture
    def event_loop_policy(self) -> uringloop.EventLoopPolicy:
        with policies_allowed():
            return uringloop.EventLoopPolicy()

    @pytest.mark.asyncio
    async def test_runs_on_uringloop(self) -> None:
        assert isinstance(asyncio.get_running_loop(), uringloop.Loop)
        await asyncio.sleep(0.001)

    @pytest.mark.asyncio
    async def test_talks_to_a_server(self) -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(5))
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()


@policies
class TestClassWithoutThePolicy:
    """A class whose asynchronous tests run on the default loop."""

    @pytest.mark.asyncio
    async def test_runs_on_the_default_loop(self) -> None:
        assert not isinstance(asyncio.get_running_loop(), uringloop.Loop)
