"""Child processes: starts them, reads their output, and leaves none behind.

Runs in the benchmark's own process, whose core and policy the children do not share.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from .placement import inherited
from .settings import Refused

# Seconds that a process may take to end after SIGTERM before it is killed.
STOP_TIMEOUT = 5.0


def _last_line(stream: IO[bytes]) -> str:
    stream.seek(0)
    lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


class Child:
    """A pinned process whose output is read, and which ends with this process at the latest.

    It has a process group of its own, so that Ctrl-C reaches only this process, which then stops
    its children. Root may start it as another *user*.
    """

    def __init__(
        self,
        command: list[str],
        cpu: int,
        batch: bool,
        *,
        user: str | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by stop
        with inherited(cpu, batch):
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                process_group=0,
                cwd=cwd,
                user=user,
                group=pwd.getpwnam(user).pw_gid if user is not None else None,
                extra_groups=[] if user is not None else None,
            )

    def read_line(self, timeout: float) -> str:
        """Return the next line of output; empty if none comes within *timeout* seconds."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            return ""
        return self.process.stdout.readline().decode()

    def read_all(self, timeout: float) -> str:
        """Return the output until its end, or until *timeout* seconds have passed without any."""
        assert self.process.stdout is not None
        parts = []
        end = time.monotonic() + timeout
        while select.select([self.process.stdout], [], [], max(end - time.monotonic(), 0))[0]:
            # Bypass the stream's buffer, whose content select does not see.
            if not (part := os.read(self.process.stdout.fileno(), 65536)):
                break
            parts.append(part)
        return b"".join(parts).decode()

    def read_answer(self, what: str, timeout: float) -> dict[str, Any]:
        """Return the next line, which is JSON; raise Refused if none comes or if it is an error.

        *what* is the name of the process in messages.
        """
        line = self.read_line(timeout)
        if not line and not self.wait_for_end():
            raise Refused("failed", f"{what} did not answer in {timeout:.0f} seconds")
        if not line:
            raise Refused("failed", f"{what} failed: {self.last_error()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Refused(answer["kind"], answer["error"])
        return answer

    def last_error(self) -> str:
        """Return the last line on standard error, or how the process ended."""
        return _last_line(self._errors) or f"exit status {self.process.poll()}"

    def wait_for_end(self) -> bool:
        """Return whether the process ends by itself, as it should after closing its output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT)
        return self.process.poll() is not None

    def stop(self) -> None:
        """Terminate the process, kill it if it does not end, and close its streams."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            for stream in (self.process.stdin, self.process.stdout, self._errors):
                if stream is not None:
                    stream.close()


def run_for_json(
    what: str, command: list[str], cpu: int, batch: bool, timeout: float
) -> dict[str, Any]:
    """Run a process that prints one line of JSON, and return it, see `Child.read_answer`."""
    child = Child(command, cpu, batch)
    try:
        return child.read_answer(what, timeout)
    finally:
        child.stop()
