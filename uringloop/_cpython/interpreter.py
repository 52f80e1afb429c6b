"""What compiled code leaves to the interpreter."""

from __future__ import annotations


def act_between_calls() -> None:
    """Do nothing: the interpreter acts before it runs a function.

    It gives the GIL to a thread that has waited for sys.getswitchinterval(), takes part in a garbage
    collection, and runs the handlers of signals in the main thread. Compiled code that calls one
    function in C after the other calls this one between them, or nobody else would run.
    """
