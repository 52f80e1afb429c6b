"""Runs a command whose output may go to a closed pipe or a full disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

# The exit status after an OSError, mostly a full disk.
REFUSED = 2


def run(program: str, command: Callable[[], int]) -> int:
    """Call *command*, flush its output and return its exit status.

    If the reader has closed the pipe (`| head`), the status is 0, or the command's own if it had
    returned. Any other OSError prints one line on stderr, and the status is 2.
    """
    status = 0
    try:
        status = command()
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard()
    except OSError as exc:
        _discard()
        print(f"{program}: {exc}", file=sys.stderr)
        return REFUSED
    return status


def _discard() -> None:
    """Discard buffered output: otherwise Python reports an error when it flushes stdout at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
