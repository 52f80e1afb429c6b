"""URINGLOOP_TRACE: submissions and completions of a loop's ring, written as they happen."""

from uringloop._turn.turn import LoopCore

STDERR: str

def output(where: str) -> int: ...
def trace(loop: LoopCore, fd: int) -> None: ...
