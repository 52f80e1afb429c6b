"""The package's commands when their output cannot be written."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

import uringloop

COMMANDS = ["uringloop", "uringloop.doctor", "uringloop.top --once"]
every_command = pytest.mark.parametrize("command", COMMANDS)


def ended(command: str, rest: str) -> subprocess.CompletedProcess[str]:
    """Run *command* in a shell, with the *rest* of its line."""
    line = f"{shlex.quote(sys.executable)} -m {command} {rest}"
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)


@every_command
def test_a_closed_pipe_is_not_an_error(command: str) -> None:
    # The reader exits before the first line.
    done = ended(command, "| :")
    assert (done.stdout, "Traceback" in done.stderr, "Exception" in done.stderr) == (
        "",
        False,
        False,
    )


@every_command
def test_a_full_disk_prints_one_line_and_exits_with_status_2(command: str) -> None:
    done = ended(command, ">/dev/full")
    name = command.split()[0]
    if name == "uringloop.top":
        # If no program can be watched, nothing is written.
        assert done.returncode in (1, 2)
    else:
        assert done.returncode == 2
        assert done.stderr == f"python -m {name}: [Errno 28] No space left on device\n"
    assert "Traceback" not in done.stderr


@every_command
def test_a_closed_stdout_does_not_change_status_and_stderr(command: str) -> None:
    open_, closed = ended(command, ""), ended(command, ">&-")
    assert (closed.returncode, closed.stderr) == (open_.returncode, open_.stderr)


def test_option_version_prints_the_version() -> None:
    assert ended("uringloop", "--version").stdout == f"uringloop {uringloop.__version__}\n"
