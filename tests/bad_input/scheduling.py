"""Callbacks and their delays, running and closing, tasks, handlers, executors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import decimal
import fractions
import functools
import multiprocessing
from typing import Any

from bad_input.stage import AsyncCallable, Call, Stage, cases, coroutine_function

# Any, because none of these is a valid callback.
NOT_CALLABLE: dict[str, Any] = {"None": None, "'text'": "text", "1": 1, "object": object()}
DELAYS: dict[str, Any] = {
    "None": None,
    "Decimal": decimal.Decimal(0),
    "Fraction": fractions.Fraction(-1),
    "-1": -1,
    "-1e300": -1e300,
    "True": True,
    "inf": float("inf"),
    "-inf": float("-inf"),
    "nan": float("nan"),
    "1e300": 1e300,
    "2**64": 2**64,
}
NO_DELAYS: dict[str, Any] = {"'1'": "1", "b'1'": b"1", "[1]": [1], "10**400": 10**400}
# Values that asyncio accepts as a time, although every later turn then raises.
NO_TIMES: dict[str, Any] = {"'1'": "1", "1j": 1j, "10**400": 10**400}

# ── callbacks ────────────────────────────────────────────────────────────────────────────────


def _callbacks() -> dict[str, Any]:
    calls: dict[str, Any] = {}
    before: dict[str, tuple[object, ...]] = {
        "call_soon": (),
        "call_soon_threadsafe": (),
        "call_later": (0,),
        "call_at": (0,),
    }
    wrong = {
        **{name: lambda s, value=value: value for name, value in NOT_CALLABLE.items()},  # type: ignore[misc]
        "coroutine function": lambda s: coroutine_function,
        "partial coroutine function": lambda s: functools.partial(coroutine_function),
        "async callable": lambda s: AsyncCallable(),
        "coroutine": lambda s: s.coroutine(),
        "future": lambda s: s.loop.create_future(),
    }
    for method, first in before.items():
        for name, make in wrong.items():
            calls[f"{method}({name})"] = lambda s, method=method, first=first, make=make: getattr(
                s.loop, method
            )(*first, make(s))
    return calls


def _contexts() -> dict[str, Any]:
    calls: dict[str, Any] = {}
    for name, context in {"1": 1, "'text'": "text", "{}": {}, "object": AsyncCallable()}.items():
        calls[f"call_soon(context={name})"] = lambda s, context=context: s.loop.call_soon(
            s.note, context=context
        )
        calls[f"call_soon_threadsafe(context={name})"] = lambda s, context=context: (
            s.loop.call_soon_threadsafe(s.note, context=context)
        )
        calls[f"call_later(context={name})"] = lambda s, context=context: s.loop.call_later(
            0, s.note, context=context
        )
        calls[f"call_at(context={name})"] = lambda s, context=context: s.loop.call_at(
            0, s.note, context=context
        )
    return calls


def _enter_twice(s: Stage) -> None:
    """Run a callback in a context that is entered already."""
    context = contextvars.copy_context()
    s.loop.call_soon(s.note, "inside", context=context)
    context.run(s.loop.call_soon, s.loop.stop)
    context.run(s.loop.run_forever)


def _later(delay: Any) -> Call:
    return lambda s: s.loop.call_later(delay, s.note)


def _at(when: Any) -> Call:
    return lambda s: s.loop.call_at(when, s.note)


def _elsewhere(call: Call) -> Call:
    return lambda s: s.elsewhere(lambda: call(s))


ELSEWHERE: dict[str, Call] = {
    "call_soon": lambda s: s.loop.call_soon(s.note),
    "call_later": lambda s: s.loop.call_later(0, s.note),
    "call_at": lambda s: s.loop.call_at(0, s.note),
    "call_soon_threadsafe": lambda s: s.loop.call_soon_threadsafe(s.note),
    "call_soon(None)": lambda s: s.loop.call_soon(None),
    "call_later(None)": lambda s: s.loop.call_later(None, s.note),
    "call_soon(coroutine function)": lambda s: s.loop.call_soon(coroutine_function),
    "create_future": lambda s: [s.loop.create_future().done()],
    "create_task": lambda s: s.loop.create_task(coroutine_function()),
    "run_forever": lambda s: s.loop.run_forever(),
    "run_until_complete": lambda s: s.loop.run_until_complete(s.coroutine()),
    "close": lambda s: s.loop.close(),
    "set_debug": lambda s: s.loop.set_debug(True),
}

CALLBACKS = [
    *cases("plain debug running closed", _callbacks()),
    *cases("plain debug", _contexts()),
    *cases(
        "plain debug",
        {
            "call_soon(context that is already entered)": _enter_twice,
            "call_soon(context=None)": lambda s: s.loop.call_soon(s.note, context=None),
            "call_soon(wrong number of arguments)": lambda s: s.loop.call_soon(lambda: None, 1),
            "call_soon(unknown=1)": lambda s: s.loop.call_soon(s.note, unknown=1),
        },
    ),
    *cases(
        "plain debug closed",
        {
            f"call_later(delay={name})": _later(delay)
            for name, delay in (DELAYS | NO_DELAYS).items()
        },
    ),
    *cases(
        "plain debug closed",
        {f"call_at(when={name})": _at(when) for name, when in DELAYS.items()},
    ),
    *cases(
        "plain",
        {
            "call_soon()": lambda s: s.loop.call_soon(),
            "call_later(0)": lambda s: s.loop.call_later(0),
            "stop(1)": lambda s: s.loop.stop(1),
        },
    ),
    *cases("plain closed", {"call_later(delay=1j)": lambda s: s.loop.call_later(1j, s.note)}),
    *cases(
        "plain closed",
        {f"call_at(when={name})": _at(when) for name, when in NO_TIMES.items()},
    ),
    *cases(
        "running running_debug",
        {f"{name} in another thread": _elsewhere(call) for name, call in ELSEWHERE.items()},
    ),
]

# ── running, closing, tasks ──────────────────────────────────────────────────────────────────


def _run_another(s: Stage) -> None:
    other = asyncio.SelectorEventLoop()
    try:
        other.run_forever()
    finally:
        other.close()


def _run_inside_another(s: Stage) -> object:
    async def main() -> object:
        return s.loop.run_until_complete(s.coroutine())

    other = asyncio.SelectorEventLoop()
    try:
        return other.run_until_complete(main())
    finally:
        other.close()


def _foreign_future(s: Stage) -> object:
    other = asyncio.SelectorEventLoop()
    try:
        return s.loop.run_until_complete(other.create_future())
    finally:
        other.close()


def _stopped_early(s: Stage) -> object:
    s.loop.call_soon(s.loop.stop)
    return s.loop.run_until_complete(s.loop.create_future())


def _two_argument_factory(s: Stage) -> object:
    s.loop.set_task_factory(lambda loop, coro: asyncio.Task(coro, loop=loop))
    return s.loop.create_task(coroutine_function(), context=contextvars.copy_context())


def _factory_of_nothing(s: Stage) -> object:
    s.loop.set_task_factory(lambda loop, coro, **options: coro.close())
    try:
        return s.loop.create_task(coroutine_function(), name="named")
    finally:
        s.loop.set_task_factory(None)


def _raising_factory(s: Stage) -> object:
    def factory(loop: object, coro: Any, **options: object) -> None:
        coro.close()
        raise ValueError("factory")

    s.loop.set_task_factory(factory)
    return s.loop.create_task(coroutine_function())


def _named_task(s: Stage, name: Any) -> object:
    task = s.loop.create_task(coroutine_function(), name=name)
    return task.get_name() if name is not None else None


def _close_twice(s: Stage) -> object:
    s.loop.close()
    return s.loop.close()


LIFE = [
    *cases(
        "plain debug running closed",
        {
            "run_forever()": lambda s: s.loop.call_soon(s.loop.stop) and s.loop.run_forever(),
            "run_forever(1)": lambda s: s.loop.run_forever(1),
            "run_until_complete(None)": lambda s: s.loop.run_until_complete(None),
            "run_until_complete(1)": lambda s: s.loop.run_until_complete(1),
            "run_until_complete(function)": lambda s: s.loop.run_until_complete(lambda: None),
            "run_until_complete(coroutine function)": lambda s: s.loop.run_until_complete(
                coroutine_function
            ),
            "run_until_complete(coroutine)": lambda s: s.loop.run_until_complete(
                coroutine_function()
            ),
            "run_until_complete(generator)": lambda s: s.loop.run_until_complete(x for x in (1, 2)),
            "run_until_complete(foreign future)": _foreign_future,
            "run inside another": _run_inside_another,
            "close()": lambda s: s.loop.close(),
            "stop()": lambda s: s.loop.stop(),
            "is_closed()": lambda s: s.loop.is_closed(),
            "is_running()": lambda s: s.loop.is_running(),
            "create_future()": lambda s: s.loop.create_future().done(),
            "create_future(1)": lambda s: s.loop.create_future(1),
            "create_task(None)": lambda s: s.loop.create_task(None),
            "create_task(1)": lambda s: s.loop.create_task(1),
            "create_task(coroutine function)": lambda s: s.loop.create_task(coroutine_function),
            "create_task(future)": lambda s: s.loop.create_task(s.loop.create_future()),
            "create_task(generator)": lambda s: s.loop.create_task(x for x in (1, 2)),
            "create_task(coroutine)": lambda s: s.loop.create_task(coroutine_function()),
            "create_task(name=1)": lambda s: _named_task(s, 1),
            "create_task(name=[])": lambda s: _named_task(s, []),
            "create_task(unknown=1)": lambda s: s.loop.create_task(s.coroutine(), unknown=1),
            "create_task, factory with two parameters": _two_argument_factory,
            "create_task, factory that returns None": _factory_of_nothing,
            "create_task, factory that raises": _raising_factory,
            "set_task_factory(1)": lambda s: s.loop.set_task_factory(1),
            "set_task_factory('text')": lambda s: s.loop.set_task_factory("text"),
            "set_exception_handler(1)": lambda s: s.loop.set_exception_handler(1),
            "set_exception_handler('text')": lambda s: s.loop.set_exception_handler("text"),
            "shutdown_asyncgens()": lambda s: s.loop.shutdown_asyncgens(),
        },
    ),
    *cases(
        "plain debug",
        {
            "create_task(context=1)": lambda s: s.loop.create_task(s.coroutine(), context=1),
            "stopped before the future ended": _stopped_early,
            "close() twice": _close_twice,
        },
    ),
    *cases("running", {"run another inside": _run_another}),
    *cases(
        "plain running closed",
        {
            "set_debug('text')": lambda s: (s.loop.set_debug("text"), bool(s.loop.get_debug()))[1],
            "set_debug(None)": lambda s: (s.loop.set_debug(None), bool(s.loop.get_debug()))[1],
            "set_debug()": lambda s: s.loop.set_debug(),
            "slow_callback_duration": lambda s: s.loop.slow_callback_duration,
        },
    ),
]

# ── exception handlers ───────────────────────────────────────────────────────────────────────

# Any: contexts of every kind but the right one.
CONTEXTS: dict[str, Any] = {
    "None": None,
    "1": 1,
    "'text'": "text",
    "[]": [],
    "{}": {},
    "message=None": {"message": None},
    "message=1": {"message": 1},
    "exception='text'": {"message": "said", "exception": "text"},
    "exception=type": {"message": "said", "exception": ValueError},
    "exception=interrupt": {"message": "said", "exception": KeyboardInterrupt("held")},
    "task=1": {"message": "said", "task": 1},
    "future='text'": {"message": "said", "future": "text"},
    "handle=None": {"message": "said", "handle": None},
    "source_traceback=None": {"message": "said", "source_traceback": None},
    "source_traceback=1": {"message": "said", "source_traceback": 1},
    "source_traceback='text'": {"message": "said", "source_traceback": "text"},
    "handle_traceback=[1]": {"message": "said", "handle_traceback": [1]},
    "source_traceback=()": {"message": "said", "source_traceback": ()},
    "keys of two kinds": {"message": "said", 1: 1},
    "key of one kind": {1: 1},
}


def _to_handler(context: Any) -> Any:
    def call(s: Stage) -> object:
        s.loop.set_exception_handler(lambda loop, context: s.note(context))
        return s.loop.call_exception_handler(context)

    return call


def _to_raising_handler(context: Any) -> Any:
    def call(s: Stage) -> object:
        s.loop.set_exception_handler(lambda loop, context: context["missing"])
        return s.loop.call_exception_handler(context)

    return call


def _to_default(context: Any) -> Any:
    def call(s: Stage) -> object:
        s.loop.set_exception_handler(None)
        return s.loop.call_exception_handler(context)

    return call


def _default(context: Any) -> Any:
    return lambda s: s.loop.default_exception_handler(context)


HANDLERS = [
    case
    for name, context in CONTEXTS.items()
    for case in cases(
        "plain",
        {
            f"call_exception_handler({name}), own": _to_handler(context),
            f"call_exception_handler({name}), own that raises": _to_raising_handler(context),
            f"call_exception_handler({name}), default": _to_default(context),
            f"default_exception_handler({name})": _default(context),
        },
    )
]
HANDLERS += cases("running_debug", {"handler in debug mode": _to_default({"message": "said"})})

# ── executors ────────────────────────────────────────────────────────────────────────────────


async def _after_shutdown(s: Stage) -> object:
    await s.loop.shutdown_default_executor()
    return await s.loop.run_in_executor(None, int)


def _in_shut_pool(s: Stage) -> object:
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.shutdown()
    return s.loop.run_in_executor(pool, int)


def _process_pool(s: Stage) -> object:
    # Forked processes end with the test; newer start methods have a server process that does not.
    forking = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=forking) as pool:
        return s.loop.set_default_executor(pool)


def _in_executor_and_cancelled(s: Stage) -> None:
    # From 3.14 on the future may be done at once, if the thread was faster: cancel() tells this.
    s.loop.run_in_executor(None, coroutine_function).cancel()


EXECUTORS = [
    *cases(
        "plain debug running running_debug closed",
        {
            "run_in_executor(coroutine function)": _in_executor_and_cancelled,
            "run_in_executor(coroutine)": lambda s: s.loop.run_in_executor(None, s.coroutine()),
            "run_in_executor(None)": lambda s: s.loop.run_in_executor(None, None),
            "run_in_executor('text')": lambda s: s.loop.run_in_executor(None, "text"),
            "run_in_executor(executor=1)": lambda s: s.loop.run_in_executor(1, int),
            "run_in_executor(executor='text')": lambda s: s.loop.run_in_executor("text", int),
            "run_in_executor(executor=0)": lambda s: s.loop.run_in_executor(0, int),
            "run_in_executor(wrong arguments)": lambda s: s.loop.run_in_executor(None, int, "x"),
            "run_in_executor()": lambda s: s.loop.run_in_executor(),
            "run_in_executor, pool that is shut down": _in_shut_pool,
            "set_default_executor(None)": lambda s: s.loop.set_default_executor(None),
            "set_default_executor(1)": lambda s: s.loop.set_default_executor(1),
            "set_default_executor(class)": lambda s: s.loop.set_default_executor(
                concurrent.futures.ThreadPoolExecutor
            ),
            "set_default_executor(abstract)": lambda s: s.loop.set_default_executor(
                concurrent.futures.Executor()
            ),
            "shutdown_default_executor()": lambda s: s.loop.shutdown_default_executor(),
        },
    ),
    *cases(
        "plain",
        {
            "set_default_executor(process pool)": _process_pool,
            "run_in_executor after the shutdown": _after_shutdown,
        },
    ),
]

CASES = [*CALLBACKS, *LIFE, *HANDLERS, *EXECUTORS]
