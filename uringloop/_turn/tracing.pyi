"""URINGLOOP_TRACE: what a loop's ring is asked and what it answers, told as it happens."""

from uringloop._turn.turn import LoopCore

STDERR: str
OFF: tuple[str, ...]

def output(where: str) -> int: ...
def trace(loop: LoopCore, fd: int) -> None: ...
