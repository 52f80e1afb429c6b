"""Reports of errors: exception handlers, their contexts, and the default handler's messages."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import sys
import traceback
from asyncio import AbstractEventLoop

import pytest
from support.loops import LoopFactory, run_turns
from support.roles import record_handler_calls

Report = dict[str, object]

VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="unset")


def fail() -> None:
    """A callback that raises."""
    raise ZeroDivisionError("from the callback")


def errors_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the records of asyncio's logger, which must all be errors."""
    assert {record.name for record in caplog.records} <= {"asyncio"}
    assert {record.levelno for record in caplog.records} <= {logging.ERROR}
    return caplog.records


def exception_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


# ── callbacks that raise ─────────────────────────────────────────


def test_exception_in_a_callback_does_not_stop_the_loop(each_loop: AbstractEventLoop) -> None:
    handler_calls = record_handler_calls(each_loop)
    ran: list[int] = []
    for number in range(100):
        each_loop.call_soon(fail)
        each_loop.call_soon(ran.append, number)
    run_turns(each_loop)
    assert ran == list(range(100))
    assert len(handler_calls) == 100


def test_report_of_a_callback_names_message_exception_and_handle(
    each_loop: AbstractEventLoop,
) -> None:
    handler_calls = record_handler_calls(each_loop)
    handle = each_loop.call_soon(fail)
    run_turns(each_loop)
    (call,) = handler_calls
    line = fail.__code__.co_firstlineno
    assert sorted(call) == ["exception", "handle", "message"]
    assert call["message"] == f"Exception in callback fail() at {__file__}:{line}"
    assert call["handle"] is handle
    assert isinstance(call["exception"], ZeroDivisionError)


def test_reported_exception_carries_the_traceback_of_the_callback(
    each_loop: AbstractEventLoop,
) -> None:
    handler_calls = record_handler_calls(each_loop)
    each_loop.call_soon(fail)
    run_turns(each_loop)
    exception = handler_calls[0]["exception"]
    assert isinstance(exception, ZeroDivisionError)
    assert traceback.extract_tb(exception.__traceback__)[-1].name == "fail"


def test_report_in_debug_mode_has_the_traceback_of_creation(
    each_loop: AbstractEventLoop,
) -> None:
    each_loop.set_debug(True)
    handler_calls = record_handler_calls(each_loop)
    each_loop.call_soon(fail)
    line = sys._getframe().f_lineno - 1
    each_loop.call_soon_threadsafe(fail)
    each_loop.call_later(-1, fail)
    each_loop.call_at(0, fail)
    run_turns(each_loop)
    lines: set[int | None] = set()
    for call in handler_calls:
        stack = call["source_traceback"]
        assert isinstance(stack, traceback.StackSummary)
        assert stack[-1].filename == __file__
        lines.add(stack[-1].lineno)
    assert lines == {line, line + 2, line + 3, line + 4}


def test_callback_without_source_is_named_by_its_repr(each_loop: AbstractEventLoop) -> None:
    handler_calls = record_handler_calls(each_loop)
    each_loop.call_soon([].pop)
    run_turns(each_loop)
    (call,) = handler_calls
    assert call["message"] == "Exception in callback list.pop()"
    assert isinstance(call["exception"], IndexError)


def test_exception_of_a_done_callback_is_reported(each_loop: AbstractEventLoop) -> None:
    handler_calls = record_handler_calls(each_loop)
    future = each_loop.create_future()
    future.add_done_callback(lambda _future: fail())
    future.set_result(None)
    run_turns(each_loop)
    (call,) = handler_calls
    assert str(call["message"]).startswith("Exception in callback test_exception_of_a_done_")
    assert isinstance(call["exception"], ZeroDivisionError)


# ── the default handler ──────────────────────────────────────────


def test_default_handler_logs_message_handle_and_traceback(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    handle = each_loop.call_soon(fail)
    run_turns(each_loop)
    (record,) = errors_of(caplog)
    source = f"fail() at {__file__}:{fail.__code__.co_firstlineno}"
    assert record.getMessage() == f"Exception in callback {source}\nhandle: {handle!r}"
    assert isinstance(exception_of(record), ZeroDivisionError)


def test_default_handler_in_debug_mode_logs_where_the_handle_was_created(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    each_loop.set_debug(True)
    each_loop.call_soon(fail)
    line = sys._getframe().f_lineno - 1
    run_turns(each_loop)
    (record,) = errors_of(caplog)
    message = record.getMessage()
    assert "source_traceback: Object created at (most recent call last):\n" in message
    assert f'File "{__file__}", line {line}, in test_default_handler_in_debug' in message


def test_default_handler_lists_the_other_keys_in_order(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    each_loop.default_exception_handler(
        {"zebra": 1, "message": "Something happened", "apple": "two", "transport": None}
    )
    (record,) = errors_of(caplog)
    expected = "Something happened\napple: 'two'\ntransport: None\nzebra: 1"
    assert record.getMessage() == expected
    assert exception_of(record) is None


def test_default_handler_has_a_default_message(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    each_loop.default_exception_handler({"exception": ValueError("quiet")})
    each_loop.default_exception_handler({"message": ""})
    each_loop.default_exception_handler({})
    messages = [record.getMessage() for record in errors_of(caplog)]
    assert messages == ["Unhandled exception in event loop"] * 3
    assert isinstance(exception_of(caplog.records[0]), ValueError)


def test_default_handler_in_debug_mode_names_the_handle_that_runs(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    each_loop.set_debug(True)
    each_loop.call_soon(each_loop.call_exception_handler, {"message": "reported"})
    run_turns(each_loop)
    (record,) = errors_of(caplog)
    message = record.getMessage()
    assert message.startswith("reported\n")
    assert "handle_traceback: Handle created at (most recent call last):\n" in message


def test_default_handler_that_raises_is_logged(
    loop_factory: LoopFactory, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_loop: AbstractEventLoop, _context: Report) -> None:
        raise ValueError("broken default handler")

    with contextlib.closing(loop_factory()) as plain:
        kind = type(plain)
    broken_kind = type("Broken", (kind,), {"default_exception_handler": broken})
    with contextlib.closing(broken_kind()) as loop:
        loop.call_soon(fail)
        run_turns(loop)
    (record,) = errors_of(caplog)
    assert record.getMessage() == "Exception in default exception handler"
    assert isinstance(exception_of(record), ValueError)


# ── the program's own handler ────────────────────────────────────


def test_handler_receives_the_loop_and_the_context(each_loop: AbstractEventLoop) -> None:
    calls: list[tuple[AbstractEventLoop, Report]] = []
    context: Report = {"message": "reported", "own": 1}
    each_loop.set_exception_handler(lambda loop, context: calls.append((loop, context)))
    each_loop.call_exception_handler(context)
    assert calls == [(each_loop, context)]
    assert calls[0][1] is context


def test_handler_can_be_read_replaced_and_removed(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def first(_loop: AbstractEventLoop, _context: Report) -> None:
        calls.append("first")

    def second(_loop: AbstractEventLoop, _context: Report) -> None:
        calls.append("second")

    assert each_loop.get_exception_handler() is None
    each_loop.set_exception_handler(first)
    assert each_loop.get_exception_handler() is first
    each_loop.call_exception_handler({"message": "one"})
    each_loop.set_exception_handler(second)
    each_loop.call_exception_handler({"message": "two"})
    each_loop.set_exception_handler(None)
    assert each_loop.get_exception_handler() is None
    each_loop.call_exception_handler({"message": "three"})
    assert calls == ["first", "second"]
    assert [record.getMessage() for record in errors_of(caplog)] == ["three"]


def test_handler_that_is_not_callable_is_refused(each_loop: AbstractEventLoop) -> None:
    with pytest.raises(TypeError, match=r"^A callable object or None is expected, got 'spam'$"):
        each_loop.set_exception_handler("spam")  # type: ignore[arg-type]
    assert each_loop.get_exception_handler() is None


def test_handler_may_call_the_default_handler(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    each_loop.set_exception_handler(
        lambda loop, context: loop.default_exception_handler({"message": "passed on", **context})
    )
    each_loop.call_exception_handler({"own": 1})
    (record,) = errors_of(caplog)
    assert record.getMessage() == "passed on\nown: 1"


def test_handler_that_raises_is_logged(
    each_loop: AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_loop: AbstractEventLoop, _context: Report) -> None:
        raise ValueError("broken handler")

    ran: list[str] = []
    each_loop.set_exception_handler(broken)
    each_loop.call_soon(fail)
    each_loop.call_soon(ran.append, "next")
    run_turns(each_loop)
    assert ran == ["next"]
    (record,) = errors_of(caplog)
    message = record.getMessage()
    assert message.startswith("Unhandled error in exception handler\ncontext: {'message': ")
    assert isinstance(exception_of(record), ValueError)


def test_both_handlers_raising_is_logged(
    loop_factory: LoopFactory, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_loop: AbstractEventLoop, _context: Report) -> None:
        raise ValueError("broken")

    with contextlib.closing(loop_factory()) as plain:
        kind = type(plain)
    with contextlib.closing(
        type("Broken", (kind,), {"default_exception_handler": broken})()
    ) as loop:
        loop.set_exception_handler(broken)
        loop.call_exception_handler({"message": "lost"})
    (record,) = errors_of(caplog)
    assert record.getMessage() == (
        "Exception in default exception handler while handling an unexpected error in custom "
        "exception handler"
    )


def test_handler_runs_in_the_context_of_the_failed_object(each_loop: AbstractEventLoop) -> None:
    if sys.version_info < (3, 12):
        pytest.skip("exception handlers run in the context of the failed object since 3.12")
    seen: list[str] = []
    each_loop.set_exception_handler(lambda _loop, _context: seen.append(VAR.get()))
    context = contextvars.copy_context()
    context.run(VAR.set, "of the handle")
    each_loop.call_soon(fail, context=context)
    run_turns(each_loop)

    async def main() -> asyncio.Task[None]:
        return each_loop.create_task(asyncio.sleep(0), context=context)

    context.run(VAR.set, "of the task")
    task = each_loop.run_until_complete(main())
    each_loop.run_until_complete(task)
    each_loop.call_exception_handler({"message": "about a task", "task": task})
    each_loop.call_exception_handler({"message": "about a future", "future": task})
    each_loop.call_exception_handler({"message": "about nothing"})
    assert seen == ["of the handle", "of the task", "of the task", "unset"]


# ── exceptions that end the run ──────────────────────────────────


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_exceptions_that_end_a_run_are_not_reported(
    each_loop: AbstractEventLoop, leaving: type[BaseException]
) -> None:
    def leave() -> None:
        raise leaving

    handler_calls = record_handler_calls(each_loop)
    each_loop.call_soon(leave)
    with pytest.raises(leaving):
        each_loop.run_forever()
    assert handler_calls == []


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_handler_may_raise_keyboard_interrupt_and_system_exit(
    each_loop: AbstractEventLoop, leaving: type[BaseException]
) -> None:
    def leave(_loop: AbstractEventLoop, _context: Report) -> None:
        raise leaving

    each_loop.set_exception_handler(leave)
    each_loop.call_soon(fail)
    with pytest.raises(leaving):
        each_loop.run_forever()
    with pytest.raises(leaving):
        each_loop.call_exception_handler({"message": "outside a run"})
    assert not each_loop.is_running()


def test_cancelled_error_of_a_callback_is_reported(each_loop: AbstractEventLoop) -> None:
    def cancel() -> None:
        raise asyncio.CancelledError

    handler_calls = record_handler_calls(each_loop)
    each_loop.call_soon(cancel)
    run_turns(each_loop)
    assert isinstance(handler_calls[0]["exception"], asyncio.CancelledError)


# ── futures and tasks whose exception is not retrieved ───────────


def test_unretrieved_exception_of_a_task_is_reported(each_loop: AbstractEventLoop) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("from the task")

    handler_calls = record_handler_calls(each_loop)
    each_loop.create_task(broken(), name="unasked")
    run_turns(each_loop, 2)
    gc.collect()
    (call,) = handler_calls
    assert call["message"] == "Task exception was never retrieved"
    assert isinstance(call["exception"], ZeroDivisionError)
    assert isinstance(call["future"], asyncio.Task)
    assert call["future"].get_name() == "unasked"


def test_unretrieved_exception_of_a_future_is_reported(each_loop: AbstractEventLoop) -> None:
    handler_calls = record_handler_calls(each_loop)
    future = each_loop.create_future()
    future.set_exception(ZeroDivisionError("unasked"))
    del future
    gc.collect()
    (call,) = handler_calls
    assert call["message"] == "Future exception was never retrieved"
    assert isinstance(call["exception"], ZeroDivisionError)


def test_destroyed_pending_task_is_reported(each_loop: AbstractEventLoop) -> None:
    async def wait() -> None:
        await each_loop.create_future()

    handler_calls = record_handler_calls(each_loop)
    each_loop.create_task(wait(), name="forgotten")
    run_turns(each_loop)
    gc.collect()
    (call,) = handler_calls
    assert call["message"] == "Task was destroyed but it is pending!"
    assert isinstance(call["task"], asyncio.Task)
    assert call["task"].get_name() == "forgotten"


def test_exception_that_run_until_complete_raises_is_not_reported_again(
    each_loop: AbstractEventLoop,
) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("from the task")

    handler_calls = record_handler_calls(each_loop)
    with pytest.raises(ZeroDivisionError):
        each_loop.run_until_complete(broken())
    gc.collect()
    assert handler_calls == []


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_exception_that_ended_run_until_complete_is_not_reported_again(
    each_loop: AbstractEventLoop, leaving: type[BaseException]
) -> None:
    async def leave() -> None:
        raise leaving

    handler_calls = record_handler_calls(each_loop)
    with pytest.raises(leaving):
        each_loop.run_until_complete(leave())
    gc.collect()
    assert handler_calls == []


def test_runner_reports_exceptions_of_tasks_at_shutdown(loop_factory: LoopFactory) -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError("while shutting down")

    async def main() -> list[Report]:
        kept.append(asyncio.ensure_future(stubborn()))
        await asyncio.sleep(0)
        return record_handler_calls(asyncio.get_running_loop())

    kept: list[asyncio.Future[None]] = []
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        reports = runner.run(main())
    (report,) = reports
    assert report["message"] == "unhandled exception during asyncio.run() shutdown"
    assert report["task"] is kept[0]
