"""Random sequences of calls have the same results on our files and on built-in ones."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.file_pairs import Call, compare

import uringloop

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

SETTINGS = settings(
    # EXAMPLES=5000 finds a fault that occurs in one of a thousand sequences.
    max_examples=int(os.environ.get("EXAMPLES", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# Longer than a chunk of text, so that lines and reads cross its end.
LINES = st.lists(st.sampled_from(["", "a", "ä€", "one line", "x" * 5000, "\r\n", "𐍈"]), max_size=8)
CONTENT = st.builds(lambda lines, end: end.join(lines), LINES, st.sampled_from(["\n", "\r\n"]))
SIZES = st.one_of(st.just(-1), st.integers(0, 12), st.integers(0, 30_000))


def calls_of(data: Any, others: Any) -> Any:
    def call(name: str, *arguments: Any) -> Any:
        return st.tuples(st.just(name), st.tuples(*arguments))

    return st.lists(
        st.one_of(
            call("read", SIZES),
            # readline(0) of a built-in file that is not readable does not raise.
            call("readline", SIZES.filter(bool)),
            call("readline"),
            call("write", data),
            call("flush"),
            call("tell"),
            call("truncate", st.integers(0, 9000)),
            call("truncate"),
            others,
        ),
        max_size=12,
    )


BYTES = st.one_of(st.binary(max_size=20), st.integers(0, 20_000).map(lambda n: b"y\n" * (n // 2)))
BYTE_CALLS = st.one_of(
    st.tuples(st.just("seek"), st.tuples(st.integers(-2, 20_000), st.just(0))),
    st.tuples(st.just("seek"), st.tuples(st.integers(-50, 50), st.integers(1, 2))),
    # Not of text: after a readlines() that stops early, tell() of a built-in file raises OSError.
    st.tuples(st.just("readlines"), st.tuples(st.integers(-1, 40))),
)
TEXT_CALLS = st.tuples(st.just("seek"), st.sampled_from([(0, 0), (0, 1), (0, 2), (-1, 0), (1, 1)]))


def settled(mode: str, calls: list[Call]) -> list[Call]:
    """Avoid calls after which the position of a built-in file in append mode is undefined."""
    if "a" not in mode:
        return calls
    known: list[Call] = []
    for call in calls:
        if call[0] != "truncate" or not call[1]:
            known.append(call)
        if call[0] == "write":
            known.append(("seek", (0, 2)))
    return known


@SETTINGS
@given(
    content=CONTENT,
    mode=st.sampled_from(["rb", "wb", "ab", "r+b", "w+b", "a+b"]),
    buffering=st.sampled_from([-1, 0, 7, 5000]),
    calls=calls_of(BYTES, BYTE_CALLS),
)
def test_binary_files_behave_like_built_in_ones(
    each_loop: asyncio.AbstractEventLoop,
    folder: Path,
    content: str,
    mode: str,
    buffering: int,
    calls: list[Call],
) -> None:
    compare(each_loop, folder, content.encode(), mode, settled(mode, calls), buffering=buffering)


@SETTINGS
@given(
    content=CONTENT,
    mode=st.sampled_from(["r", "w", "a", "r+", "w+", "a+"]),
    encoding=st.sampled_from(["utf-8", "utf-16", "utf-8-sig"]),
    newline=st.sampled_from([None, "", "\n", "\r", "\r\n"]),
    calls=calls_of(st.sampled_from(["", "b", "two\nlines\n", "ö\r\n", "z" * 9000]), TEXT_CALLS),
)
# A decoding error shows that as many bytes are read at once as the requested size needs.
@example(
    content="",
    mode="r+",
    encoding="utf-16",
    newline=None,
    calls=[("write", ("",)), ("truncate", (8195,)), ("read", (8193,)), ("read", (-1,))],
)
# From a position at which the decoder has state, less is decoded than before.
@example(
    content="a\r\n",
    mode="r",
    encoding="utf-8",
    newline="",
    calls=[("read", (2,)), ("seek", (0, 1)), ("readline", (-1,)), ("tell", ())],
)
def test_text_files_behave_like_built_in_ones(
    each_loop: asyncio.AbstractEventLoop,
    folder: Path,
    content: str,
    mode: str,
    encoding: str,
    newline: str | None,
    calls: list[Call],
) -> None:
    if "+" in mode and sys.version_info < (3, 13):
        # Before Python 3.13 a built-in text file may read before it writes its buffered text, which
        # then goes to the wrong place.
        written = [[call, ("flush", ())] if call[0] == "write" else [call] for call in calls]
        calls = [call for part in written for call in part]
    raw, calls = content.encode(encoding), settled(mode, calls)
    compare(each_loop, folder, raw, mode, calls, encoding=encoding, newline=newline)


@SETTINGS
@given(
    text=st.text(st.sampled_from("a\r\n€𐍈"), max_size=30),
    encoding=st.sampled_from(["utf-8", "utf-16", "utf-8-sig", "utf-7", "euc_jp", "gb18030"]),
    newline=st.sampled_from([None, "", "\n", "\r\n"]),
    sizes=st.lists(st.integers(0, 5), max_size=6),
)
def test_seek_restores_every_position_that_tell_returned(
    loop: asyncio.AbstractEventLoop,
    folder: Path,
    text: str,
    encoding: str,
    newline: str | None,
    sizes: list[int],
) -> None:
    path = folder / "text"
    path.write_bytes((("x" * 8190) + text).encode(encoding, "ignore"))
    with open(path, encoding=encoding, newline=newline) as plain:
        whole = plain.read()

    async def go_back_and_forth() -> None:
        async with uringloop.open(path, encoding=encoding, newline=newline) as file:
            read = await file.read(8188)
            places = []
            for size in sizes:
                places.append((len(read), await file.tell()))
                read += await file.read(size)
            for length, place in reversed(places):
                await file.seek(place)
                assert await file.tell() == place
                assert await file.read() == whole[length:]

    loop.run_until_complete(go_back_and_forth())
