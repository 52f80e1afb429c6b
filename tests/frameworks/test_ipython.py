"""IPython runs top-level await on the loop, with input from a pipe and from a terminal."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import needs, needs_elsewhere, process, python
from support.roles import TIME_LIMIT

needs_elsewhere("IPython")
pexpect = needs("pexpect")

CELLS = """
import asyncio, uringloop
type(asyncio.get_running_loop()).__module__ if await asyncio.sleep(0, True) else None
async def echo(reader, writer): writer.write(await reader.read(5)); writer.close()

server = await asyncio.start_server(echo, "127.0.0.1", 0)
reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
writer.write(b"hello")
await reader.read()
writer.close(); await writer.wait_closed(); server.close()
await asyncio.to_thread(lambda: "from a thread")
raise LookupError("on purpose") if await asyncio.sleep(0.001, True) else None
print("still", "here")
exit
"""

# ── from a pipe ───────────────────────────────────────────────────────────────────────────────


def command(*options: str) -> list[str]:
    start = python("-m", "IPython", "--no-banner", "--colors=nocolor", "--no-confirm-exit")
    install = "--InteractiveShellApp.exec_lines=import uringloop; uringloop.install()"
    return [*start, "--HistoryManager.enabled=False", install, *options]


@pytest.mark.slow
def test_cells_from_a_pipe_are_awaited_on_the_loop(tmp_path: Path) -> None:
    script = tmp_path / "cells"
    script.write_text(CELLS)
    with (
        script.open() as cells,
        process(
            command("--simple-prompt"), stdin=cells, environment={"IPYTHONDIR": str(tmp_path)}
        ) as running,
    ):
        assert running.wait() == 0
        output = running.output
        # Without the traceback that a cell raises on purpose.
        running.output = output.replace("Traceback (most recent call last)", "", 1)
    assert "'uringloop.loop'" in output
    assert "b'hello'" in output
    assert "'from a thread'" in output
    assert "LookupError: on purpose" in output
    assert "still here" in output


# ── from a terminal ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Any]:
    """IPython in a terminal, where the prompt runs on an event loop, too."""
    # The test's terminal does not answer requests for the cursor's position (CPR).
    answers = {"PROMPT_TOOLKIT_NO_CPR": "1", "IPYTHONDIR": str(tmp_path), "TERM": "xterm"}
    program, *arguments = command()
    with warnings.catch_warnings():
        # forkpty() warns if there are threads; the child calls exec at once.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = pexpect.spawn(
            program,
            arguments,
            env={**os.environ, **answers},
            timeout=TIME_LIMIT,
            encoding="utf-8",
            dimensions=(50, 200),
        )
    with child:
        yield child


def cell(terminal: Any, number: int, source: str, answer: str = "") -> None:
    """Type *source* at the prompt *number*, and read *answer*."""
    terminal.expect_exact(f"In [{number}]:")
    terminal.send(source + "\r")
    if answer:
        terminal.expect_exact(f"Out[{number}]:")
        terminal.expect_exact(answer)


@pytest.mark.slow
@pytest.mark.parametrize("gui", ["", "%gui asyncio"])
def test_cells_from_a_terminal_are_awaited_on_the_loop(terminal: Any, gui: str) -> None:
    cell(terminal, 1, gui or "1")
    cell(terminal, 2, "import asyncio")
    cell(terminal, 3, "await asyncio.sleep(0) or asyncio.get_running_loop()", "<Loop running=True")
    cell(terminal, 4, "await asyncio.sleep(0.001, 40) + 2", "42")
    cell(terminal, 5, "late = 0.01, print, 'by', 'itself'")
    cell(terminal, 6, "await asyncio.sleep(0) or asyncio.get_running_loop().call_later(*late)")
    if gui:
        # The loop of the cells runs while the shell waits for the next cell.
        terminal.expect_exact("by itself")
    cell(terminal, 7, "print('wait' + 'ing'); await asyncio.Event().wait()")
    # Until the cell runs, the prompt reads the terminal and treats Ctrl-C as a key.
    terminal.expect_exact("waiting")
    terminal.sendintr()
    terminal.expect_exact("KeyboardInterrupt")
    cell(terminal, 8, "await asyncio.sleep(0.001, 'still here'.upper())", "STILL HERE")
    cell(terminal, 9, "exit")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
