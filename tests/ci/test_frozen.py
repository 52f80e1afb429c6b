"""Programs that PyInstaller has frozen, by the hook that this package ships.

docs/how-to/packaging.md says what was seen with other tools.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("PyInstaller", reason="pip install pyinstaller")

pytestmark = pytest.mark.slow

# Uses a module of each kind: compiled ones, those that are imported later, a public submodule.
PROGRAM = """
import asyncio
import sys

import uringloop

async def serve(reader, writer):
    writer.write(await reader.readline())
    await writer.drain()
    writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"echoed ")
        writer.write_eof()
        text = (await reader.read()).decode()
        writer.close()
    async with uringloop.open(sys.argv[1], "w") as file:
        await file.write("written ")
    print(text + await uringloop.fs.read_text(sys.argv[1]) + str(sys.frozen), end="")

uringloop.run(main())
"""


def has_hook() -> bool:
    """Return whether the installed package has the entry point: editable ones may be older."""
    named = importlib.metadata.entry_points(group="pyinstaller40")
    return any(one.value == "uringloop._pyinstaller:hook_dirs" for one in named)


@pytest.mark.parametrize("form", ["--onedir", "--onefile"])
def test_a_frozen_program_runs(tmp_path: Path, form: str) -> None:
    if not has_hook():
        pytest.skip("the package was installed before it had a hook: make dev")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level=ERROR", form]
    frozen = subprocess.run(
        [*command, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert frozen.returncode == 0, frozen.stderr
    program = tmp_path / "dist" / "program"
    if form == "--onedir":
        program /= "program"
    done = subprocess.run(
        [program, tmp_path / "file"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("echoed written True", "")
