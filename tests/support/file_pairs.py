"""Compares the same calls on a plain file and on a file of uringloop's."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uringloop

Call = tuple[str, tuple[Any, ...]]


def outcome(exc: BaseException) -> tuple[Any, ...]:
    """Return the type and errno of an exception; messages are not compared."""
    return type(exc).__name__, getattr(exc, "errno", None)


def plain_results(path: Path, mode: str, calls: list[Call], **options: Any) -> list[Any]:
    """Return the results and exceptions of calls on a plain file, and the final content."""
    results: list[Any] = []
    with open(path, mode, **options) as file:
        for name, arguments in calls:
            try:
                result = getattr(file, name)(*arguments)
                results.append(bytes(result) if isinstance(result, memoryview) else result)
            except (OSError, ValueError, TypeError) as exc:
                results.append(outcome(exc))
    results.append(path.read_bytes())
    return results


async def our_results(path: Path, mode: str, calls: list[Call], **options: Any) -> list[Any]:
    results: list[Any] = []
    async with uringloop.open(path, mode, **options) as file:
        for name, arguments in calls:
            try:
                result = getattr(file, name)(*arguments)
                if inspect.isawaitable(result):
                    result = await result
                results.append(result)
            except (OSError, ValueError, TypeError) as exc:
                results.append(outcome(exc))
    return results


def compare(
    loop: asyncio.AbstractEventLoop,
    folder: Path,
    content: bytes | None,
    mode: str,
    calls: list[Call],
    **options: Any,
) -> None:
    """Fail unless the calls have the same results on a plain file and on uringloop's."""
    ours, plain = folder / "ours", folder / "plain"
    for path in (ours, plain):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
    expected = plain_results(plain, mode, calls, **options)
    found = loop.run_until_complete(our_results(ours, mode, calls, **options))
    found.append(ours.read_bytes())
    named = [name for name, _ in calls] + ["the file"]
    assert comparable(named, found) == comparable(named, expected)


def comparable(names: list[str], results: list[Any]) -> list[tuple[str, Any]]:
    """Pair names and results; of a text position only the low 64 bits are comparable."""
    return [
        (name, result % 2**64 if name in ("tell", "seek") and isinstance(result, int) else result)
        for name, result in zip(names, results, strict=True)
    ]


def run(loop: asyncio.AbstractEventLoop, main: Callable[[], Awaitable[Any]]) -> Any:
    async def call() -> Any:
        return await main()

    return loop.run_until_complete(call())


def raised(call: Callable[[], object]) -> BaseException:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except Exception as exc:
        return exc
    raise AssertionError("nothing was raised")


async def opened(path: Any, mode: str) -> Any:
    return await uringloop.open(path, mode)
