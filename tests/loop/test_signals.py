"""Signals: add_signal_handler(), the wake-up descriptor, and prompt KeyboardInterrupt."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from support.loops import LoopFactory, run_turns

import uringloop

# Seconds. No wait in these tests takes a second; a failing test must not block the suite.
PATIENCE = 20.0


@pytest.fixture(autouse=True)
def dispositions() -> Iterator[None]:
    """Check that the test restores the signal handlers of the process."""
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
    before = [signal.getsignal(number) for number in watched]
    yield
    after = [signal.getsignal(number) for number in watched]
    wakeup_fd = signal.set_wakeup_fd(-1)
    for number, handler in zip(watched, before, strict=True):
        signal.signal(number, handler)
    assert after == before
    assert wakeup_fd == -1


@contextlib.contextmanager
def sending_signal(number: signal.Signals, loop: AbstractEventLoop) -> Iterator[None]:
    """Send *number* to this process from another thread, once *loop* has begun to run."""
    running = threading.Event()
    answered = threading.Event()
    main = threading.get_ident()

    def send() -> None:
        assert running.wait(PATIENCE)
        os.kill(os.getpid(), number)
        # Stock asyncio keeps sleeping if a signal arrives just before its select(), or if another
        # thread receives it: wake it by SIGALRM. uringloop must wake for the signal itself.
        while isinstance(loop, asyncio.SelectorEventLoop) and not answered.wait(0.01):
            signal.pthread_kill(main, signal.SIGALRM)

    is_inside = loop.is_running()
    thread = threading.Thread(target=send)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    thread.start()
    loop.call_soon(running.set)
    try:
        yield
    finally:
        answered.set()
        thread.join(PATIENCE)
        signal.signal(signal.SIGALRM, before)
        if loop.is_running() and not is_inside and isinstance(loop, asyncio.SelectorEventLoop):
            # Without a GIL KeyboardInterrupt may keep stock asyncio from ending the run.
            loop._run_forever_cleanup()  # type: ignore[attr-defined]


def nothing() -> None:
    """A handler that does nothing."""


# ── handlers ─────────────────────────────────────────────────────


def test_handler_runs_in_the_loop_with_its_arguments(each_loop: AbstractEventLoop) -> None:
    seen: list[object] = []

    def handle(*args: object) -> None:
        seen.extend([asyncio.get_running_loop(), args])
        each_loop.stop()

    each_loop.add_signal_handler(signal.SIGUSR1, handle, 1, "two")
    each_loop.call_soon(signal.raise_signal, signal.SIGUSR1)
    each_loop.run_forever()
    assert seen == [each_loop, (1, "two")]
    assert each_loop.remove_signal_handler(signal.SIGUSR1)


def test_handler_wakes_an_idle_loop(each_loop: AbstractEventLoop) -> None:
    each_loop.add_signal_handler(signal.SIGUSR1, each_loop.stop)
    for _ in range(20):
        with sending_signal(signal.SIGUSR1, each_loop):
            each_loop.run_forever()
    each_loop.remove_signal_handler(signal.SIGUSR1)


def test_handler_wakes_a_loop_asleep_until_a_far_deadline(each_loop: AbstractEventLoop) -> None:
    far = each_loop.call_later(3600, nothing)
    each_loop.add_signal_handler(signal.SIGALRM, each_loop.stop)
    signal.setitimer(signal.ITIMER_REAL, 0.005)
    each_loop.run_forever()
    each_loop.remove_signal_handler(signal.SIGALRM)
    far.cancel()


def test_handler_runs_when_another_thread_receives_the_signal(
    each_loop: AbstractEventLoop,
) -> None:
    def send() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    each_loop.add_signal_handler(signal.SIGUSR1, each_loop.stop)
    thread = threading.Thread(target=send)
    each_loop.call_soon(thread.start)
    each_loop.run_forever()
    thread.join(PATIENCE)
    each_loop.remove_signal_handler(signal.SIGUSR1)


def test_handler_runs_while_the_loop_is_busy(each_loop: AbstractEventLoop) -> None:
    def again() -> None:
        each_loop.call_soon(again)

    each_loop.add_signal_handler(signal.SIGUSR1, each_loop.stop)
    each_loop.call_soon(again)
    with sending_signal(signal.SIGUSR1, each_loop):
        each_loop.run_forever()
    each_loop.remove_signal_handler(signal.SIGUSR1)


def test_signal_before_the_run_is_handled_in_the_run(each_loop: AbstractEventLoop) -> None:
    each_loop.add_signal_handler(signal.SIGUSR1, each_loop.stop)
    signal.raise_signal(signal.SIGUSR1)
    each_loop.run_forever()
    each_loop.remove_signal_handler(signal.SIGUSR1)


def test_every_signal_of_a_burst_runs_the_handler_in_order(each_loop: AbstractEventLoop) -> None:
    ran: list[int] = []
    numbers = [signal.SIGUSR1, signal.SIGUSR2] * 50
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        each_loop.add_signal_handler(number, ran.append, number)

    async def burst() -> None:
        for number in numbers:
            signal.raise_signal(number)
        # The handlers run in the order of the signals, in one of the next turns.
        for _ in range(1000):
            await asyncio.sleep(0)

    each_loop.run_until_complete(burst())
    assert ran == numbers
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        each_loop.remove_signal_handler(number)


def test_new_handler_replaces_the_old_one(each_loop: AbstractEventLoop) -> None:
    ran: list[str] = []
    each_loop.add_signal_handler(signal.SIGUSR1, ran.append, "old")
    each_loop.add_signal_handler(signal.SIGUSR1, lambda: (ran.append("new"), each_loop.stop()))  # type: ignore[func-returns-value]
    each_loop.call_soon(signal.raise_signal, signal.SIGUSR1)
    each_loop.run_forever()
    assert ran == ["new"]
    assert each_loop.remove_signal_handler(signal.SIGUSR1) is True
    assert each_loop.remove_signal_handler(signal.SIGUSR1) is False


def test_handler_may_remove_itself(each_loop: AbstractEventLoop) -> None:
    removed: list[bool] = []

    def once() -> None:
        removed.append(each_loop.remove_signal_handler(signal.SIGUSR1))
        each_loop.stop()

    each_loop.add_signal_handler(signal.SIGUSR1, once)
    each_loop.call_soon(signal.raise_signal, signal.SIGUSR1)
    each_loop.run_forever()
    assert removed == [True]
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_exception_of_a_handler_is_reported(each_loop: AbstractEventLoop) -> None:
    def fail() -> None:
        each_loop.stop()
        raise ZeroDivisionError

    handler_calls: list[dict[str, object]] = []
    each_loop.set_exception_handler(lambda _loop, context: handler_calls.append(context))
    each_loop.add_signal_handler(signal.SIGUSR1, fail)
    each_loop.call_soon(signal.raise_signal, signal.SIGUSR1)
    each_loop.run_forever()
    each_loop.remove_signal_handler(signal.SIGUSR1)
    (call,) = handler_calls
    assert isinstance(call["exception"], ZeroDivisionError)


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_handler_may_end_the_run_by_an_exception(
    each_loop: AbstractEventLoop, leaving: type[BaseException]
) -> None:
    def leave() -> None:
        raise leaving

    each_loop.add_signal_handler(signal.SIGTERM, leave)
    each_loop.call_soon(signal.raise_signal, signal.SIGTERM)
    with pytest.raises(leaving):
        each_loop.run_forever()
    each_loop.remove_signal_handler(signal.SIGTERM)
    assert each_loop.run_until_complete(asyncio.sleep(0.001, "again")) == "again"


def test_handler_for_sigint_takes_the_place_of_keyboard_interrupt(
    each_loop: AbstractEventLoop,
) -> None:
    each_loop.add_signal_handler(signal.SIGINT, each_loop.stop)
    with sending_signal(signal.SIGINT, each_loop):
        each_loop.run_forever()
    assert each_loop.remove_signal_handler(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_removing_a_handler_restores_the_default_action(each_loop: AbstractEventLoop) -> None:
    each_loop.add_signal_handler(signal.SIGUSR1, nothing)
    each_loop.add_signal_handler(signal.SIGUSR2, nothing)
    assert callable(signal.getsignal(signal.SIGUSR1))
    assert each_loop.remove_signal_handler(signal.SIGUSR1) is True
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert callable(signal.getsignal(signal.SIGUSR2))
    assert each_loop.remove_signal_handler(signal.SIGUSR2) is True
    assert each_loop.remove_signal_handler(signal.SIGUSR2) is False


def test_close_removes_the_handlers(each_loop: AbstractEventLoop) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        each_loop.add_signal_handler(number, nothing)
    each_loop.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1


def test_next_loop_can_handle_the_signals_of_a_closed_loop(loop_factory: LoopFactory) -> None:
    for _ in range(3):
        with contextlib.closing(loop_factory()) as loop:
            loop.add_signal_handler(signal.SIGUSR1, loop.stop)
            with sending_signal(signal.SIGUSR1, loop):
                loop.run_forever()


# ── errors ───────────────────────────────────────────────────────


def test_wrong_signal_numbers_are_refused(each_loop: AbstractEventLoop) -> None:
    add: Callable[[object, Callable[[], None]], None] = each_loop.add_signal_handler  # type: ignore[assignment]
    remove: Callable[[object], bool] = each_loop.remove_signal_handler  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"^sig must be an int, not 'SIGINT'$"):
        add("SIGINT", nothing)
    with pytest.raises(TypeError, match=r"^sig must be an int, not None$"):
        remove(None)
    for number in (-1, 0, signal.NSIG + 1):
        with pytest.raises(ValueError, match=rf"^invalid signal number {number}$"):
            each_loop.add_signal_handler(number, nothing)
        with pytest.raises(ValueError, match=rf"^invalid signal number {number}$"):
            each_loop.remove_signal_handler(number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_uncatchable_signals_are_refused(
    each_loop: AbstractEventLoop, number: signal.Signals
) -> None:
    with pytest.raises(RuntimeError, match=rf"^sig {number} cannot be caught$"):
        each_loop.add_signal_handler(number, nothing)
    assert each_loop.remove_signal_handler(number) is False


def test_coroutines_are_refused_as_handlers(each_loop: AbstractEventLoop) -> None:
    async def handle() -> None: ...

    add: Callable[[int, object], None] = each_loop.add_signal_handler  # type: ignore[assignment]
    wording = r"^coroutines cannot be used with add_signal_handler\(\)$"
    with pytest.raises(TypeError, match=wording):
        add(signal.SIGUSR1, handle)
    coroutine = handle()
    with pytest.raises(TypeError, match=wording):
        add(signal.SIGUSR1, coroutine)
    coroutine.close()


def test_handlers_are_refused_outside_the_main_thread(each_loop: AbstractEventLoop) -> None:
    errors: list[BaseException] = []

    def add() -> None:
        try:
            each_loop.add_signal_handler(signal.SIGUSR1, nothing)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=add)
    thread.start()
    thread.join(PATIENCE)
    (error,) = errors
    assert str(error) == "set_wakeup_fd only works in main thread of the main interpreter"
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert each_loop.remove_signal_handler(signal.SIGUSR1) is False


def test_closed_loop_refuses_handlers(each_loop: AbstractEventLoop) -> None:
    each_loop.close()
    with pytest.raises(RuntimeError, match=r"^Event loop is closed$"):
        each_loop.add_signal_handler(signal.SIGUSR1, nothing)
    assert each_loop.remove_signal_handler(signal.SIGUSR1) is False


# ── the program's own signal settings ────────────────────────────


def test_run_without_handlers_leaves_the_wakeup_fd_of_the_user(
    each_loop: AbstractEventLoop,
) -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())
        try:
            run_turns(each_loop, 3)
            each_loop.run_until_complete(asyncio.sleep(0.001))
        finally:
            left = signal.set_wakeup_fd(-1)
        assert left == writer.fileno()


def test_plain_signal_handlers_still_run_while_the_loop_is_idle(
    each_loop: AbstractEventLoop,
) -> None:
    # A handler of the signal module runs in the main thread, at the latest between two turns.
    before = signal.signal(signal.SIGALRM, lambda *_: each_loop.stop())
    # Stock asyncio goes back to sleep after the handler unless another event wakes it.
    each_loop.call_later(0.05, nothing)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        each_loop.run_forever()
    finally:
        signal.signal(signal.SIGALRM, before)


# ── KeyboardInterrupt ────────────────────────────────────────────


def test_sigint_interrupts_an_idle_loop(each_loop: AbstractEventLoop) -> None:
    for _ in range(5):
        with sending_signal(signal.SIGINT, each_loop), pytest.raises(KeyboardInterrupt):
            each_loop.run_forever()
        assert not each_loop.is_running()
    assert each_loop.run_until_complete(asyncio.sleep(0.001, "again")) == "again"


def test_sigint_interrupts_a_loop_asleep_until_a_far_deadline(
    each_loop: AbstractEventLoop,
) -> None:
    async def main() -> None:
        await asyncio.sleep(3600)

    task = each_loop.create_task(main())
    with sending_signal(signal.SIGINT, each_loop), pytest.raises(KeyboardInterrupt):
        each_loop.run_until_complete(task)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        each_loop.run_until_complete(task)


def test_sigint_interrupts_a_busy_chain_of_callbacks(each_loop: AbstractEventLoop) -> None:
    def again() -> None:
        each_loop.call_soon(again)

    each_loop.call_soon(again)
    with sending_signal(signal.SIGINT, each_loop), pytest.raises(KeyboardInterrupt):
        each_loop.run_forever()
    assert not each_loop.is_running()


def test_sigint_interrupts_a_callback_that_does_not_return(each_loop: AbstractEventLoop) -> None:
    def spin() -> None:
        while True:
            pass

    with sending_signal(signal.SIGINT, each_loop):
        each_loop.call_soon(spin)
        with pytest.raises(KeyboardInterrupt):
            each_loop.run_forever()
    assert each_loop.run_until_complete(asyncio.sleep(0.001, "again")) == "again"


def test_sigint_interrupts_a_task_that_never_waits(each_loop: AbstractEventLoop) -> None:
    async def spin() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    task = each_loop.create_task(spin())
    with sending_signal(signal.SIGINT, each_loop), pytest.raises(KeyboardInterrupt):
        each_loop.run_until_complete(task)
    # KeyboardInterrupt was raised inside the task, and ended it, or between two turns.
    task.cancel()
    run_turns(each_loop, 3)
    # Stock asyncio may be interrupted while it schedules the next step, which is lost then.
    assert task.done() or isinstance(each_loop, asyncio.SelectorEventLoop)
    if task.done() and not task.cancelled():
        assert isinstance(task.exception(), KeyboardInterrupt)


def test_a_loop_can_run_again_after_an_interrupt_at_any_point() -> None:
    # Python raises KeyboardInterrupt at the start of a function and after a call of a C function,
    # the points at which a profiler is called. An asyncio loop that is interrupted at the end of a
    # run may be left in the state "running".
    def interrupted(loop: AbstractEventLoop, moment: int) -> bool:
        moments = 0

        def profile(frame: FrameType, event: str, argument: object) -> None:
            nonlocal moments
            if event in ("call", "c_return"):
                moments += 1
                if moments == moment:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        loop.call_soon(loop.stop)
        # Without finalizers of earlier loops, which would add calls.
        gc.disable()
        sys.setprofile(profile)
        try:
            loop.run_forever()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
            gc.enable()
        return False

    for moment in range(1, 1000):
        # A new loop each time, because the first run executes the most code.
        loop = uringloop.new_event_loop()
        with contextlib.closing(loop):
            if not interrupted(loop, moment):
                break
            assert not loop.is_running()
            assert asyncio._get_running_loop() is None
            # The scheduled stop() may not have run yet.
            loop.call_soon(loop.stop)
            loop.run_forever()
            assert loop.run_until_complete(asyncio.sleep(0, "again")) == "again"
    else:
        raise AssertionError("it is always interrupted")
    assert moment > 5


# ── runners ──────────────────────────────────────────────────────


def test_sigint_cancels_the_main_task_of_a_runner(loop_factory: LoopFactory) -> None:
    events: list[str] = []

    async def main() -> None:
        try:
            with sending_signal(signal.SIGINT, asyncio.get_running_loop()):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append("cancelled")
            await asyncio.sleep(0.001)
            events.append("cleaned up")
            raise

    with (
        asyncio.Runner(loop_factory=loop_factory) as runner,
        pytest.raises(KeyboardInterrupt),
    ):
        runner.run(main())
    assert events == ["cancelled", "cleaned up"]


def test_sigint_whose_cancellation_is_suppressed_raises_nothing(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(asyncio.CancelledError), sending_signal(signal.SIGINT, loop):
            await asyncio.Event().wait()
        return "survived"

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(main()) == "survived"


def test_second_sigint_ends_a_runner_whose_task_ignores_the_first(
    loop_factory: LoopFactory,
) -> None:
    events: list[str] = []

    async def main() -> None:
        for _ in range(2):
            try:
                with sending_signal(signal.SIGINT, asyncio.get_running_loop()):
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                events.append("cancelled")

    with (
        asyncio.Runner(loop_factory=loop_factory) as runner,
        pytest.raises(KeyboardInterrupt),
    ):
        runner.run(main())
    # The second SIGINT raised KeyboardInterrupt; the runner's close() cancelled the task again.
    assert events[0] == "cancelled"


# ── processes ────────────────────────────────────────────────────

SERVICE = """
    import asyncio
    import signal
    import uringloop

    async def tick():
        while True:
            await asyncio.sleep(0.02)

    async def main():
        loop = asyncio.get_running_loop()
        # Stock asyncio needs the ticks, because it may keep sleeping after a signal.
        ticking = asyncio.create_task(tick())
        stopped = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        print("ready", flush=True)
        await stopped.wait()
        ticking.cancel()
        server.close()
        await server.wait_closed()
        print("stopped", flush=True)

    with asyncio.Runner(loop_factory={factory}) as runner:
        runner.run(main())
"""


@pytest.mark.parametrize("factory", ["asyncio.SelectorEventLoop", "uringloop.new_event_loop"])
@pytest.mark.parametrize(
    ("number", "output", "status"),
    [(signal.SIGTERM, "stopped\n", 0), (signal.SIGINT, "", -signal.SIGINT)],
)
def test_service_stops_on_a_signal(
    factory: str, number: signal.Signals, output: str, status: int
) -> None:
    script = textwrap.dedent(SERVICE.format(factory=factory))
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, errors = process.communicate(timeout=PATIENCE)
    assert out == output
    assert process.returncode == status
    if number is signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt")
    else:
        assert errors == ""
