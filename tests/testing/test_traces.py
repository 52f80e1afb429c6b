"""python -m uringloop.testing: where do two traces begin to differ?"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from uringloop import testing


async def wake_three() -> None:
    event = asyncio.Event()
    tasks = [asyncio.create_task(event.wait(), name=f"waiter-{number}") for number in range(3)]
    await asyncio.sleep(1)
    event.set()
    await asyncio.gather(*tasks)


def trace(path: Path, seed: int) -> Path:
    with asyncio.Runner(loop_factory=lambda: testing.Loop(seed, trace=path)) as runner:
        runner.run(wake_three())
    return path


def compare(*paths: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "uringloop.testing", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_equal_traces(tmp_path: Path) -> None:
    paths = [trace(tmp_path / str(number), 1) for number in range(2)]
    lines = len(paths[0].read_text().splitlines())
    assert compare(*paths) == (0, f"equal: {lines} lines\n")


def test_the_first_difference(tmp_path: Path) -> None:
    one, other = trace(tmp_path / "one", 1), trace(tmp_path / "other", 4)
    code, out = compare(one, other)
    assert code == 1
    first, second = one.read_text().splitlines(), other.read_text().splitlines()
    # Without the numbers of descriptors, which are not the run's.
    pairs = [
        [re.sub(r"fd=\d+", "", line) for line in pair] for pair in zip(first, second, strict=False)
    ]
    index = next(index for index, (left, right) in enumerate(pairs) if left != right)
    lines = out.splitlines()
    assert lines[0] == f"the traces differ from line {index + 1} on, after"
    assert lines[lines.index(f"{one}:") + 1] == f"  {first[index]}"
    assert lines[lines.index(f"{other}:") + 1] == f"  {second[index]}"


def test_a_trace_that_ends_earlier(tmp_path: Path) -> None:
    one = trace(tmp_path / "one", 1)
    shorter = tmp_path / "shorter"
    shorter.write_text("".join(one.read_text().splitlines(keepends=True)[:3]))
    code, out = compare(shorter, one)
    assert code == 1
    assert f"{shorter}:\n  (it has ended)\n" in out


def test_a_missing_trace(tmp_path: Path) -> None:
    code, out = compare(trace(tmp_path / "one", 1), tmp_path / "none")
    assert code == 2
    assert f"{tmp_path / 'none'}: No such file or directory" in out
