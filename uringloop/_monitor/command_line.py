"""What a command prints, to a reader that may have gone or a disk that may be full."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

# The exit status of a command that the system has refused something: room on a disk, mostly.
REFUSED = 2


def run(program: str, command: Callable[[], int]) -> int:
    """Call *command* and write what it has printed; return its exit status.

    A reader that has seen enough (`| head`) is no failure: the status is then 0 unless the command
    had ended with another. Any other OSError is one line on stderr, and the status is 2.
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
    """Throw away what is still buffered: Python would complain of it at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
