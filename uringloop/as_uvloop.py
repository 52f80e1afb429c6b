"""Runs a program whose `import uvloop` gives uringloop: `python -m uringloop.as_uvloop PROGRAM`.

A folder with a package `uvloop` is put first on PYTHONPATH, and this process becomes the program: a
process has one Python, started as the program would be without this. Child processes have the
folder by PYTHONPATH, however they are started. Nothing is installed, and without this command
`import uvloop` finds what it always has found.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys

import uringloop
from uringloop import _as_uvloop

NAME = "uringloop.as_uvloop"
USAGE = f"""\
usage: python -m {NAME} PROGRAM [argument ...]
       python -m {NAME} -m MODULE [argument ...]
       python -m {NAME} -c CODE [argument ...]

Run a program whose `import uvloop` gives uringloop, in the program and in its child processes.

PROGRAM is a file or folder for Python, or the name of a command: `uvicorn`, `vllm`.
"""
# One line, of the first process only.
SAID = "{name}: `import uvloop` gives uringloop {version} here and in child processes\n"


def environment(before: dict[str, str]) -> dict[str, str]:
    """Return the variables of the program, with the folder first on PYTHONPATH."""
    (folder,) = _as_uvloop.__path__
    others = before.get("PYTHONPATH", "").split(os.pathsep) if before.get("PYTHONPATH") else []
    paths = [folder, *(path for path in others if path != folder)]
    return {**before, "PYTHONPATH": os.pathsep.join(paths)}


def interpreter() -> list[str]:
    """Return the command of this Python, with its options and without the name of this module."""
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    # `-m NAME`, `-mNAME`, or behind other letters, `-uBm NAME`.
    last = options.pop().removesuffix(NAME) or options.pop()
    flags = last.removesuffix("m")
    return [sys.executable, *options, *([flags] if flags != "-" else [])]


def command(arguments: list[str]) -> list[str]:
    """Return what to execute for *arguments*, those of this module.

    Raises FileNotFoundError if there is no such program.
    """
    program = arguments[0]
    # A folder may have the name of a command.
    if program in ("-m", "-c") or any(
        os.path.isfile(path) for path in (program, os.path.join(program, "__main__.py"))
    ):
        return [*interpreter(), *arguments]
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"{program} is neither a file nor a command")
    return [found, *arguments[1:]]


def say(text: str) -> None:
    """Write *text* to stderr, if there is one that takes it: the program may be a daemon."""
    with contextlib.suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)


def stop(problem: str) -> int:
    say(f"{NAME}: {problem}\n")
    return 2


def main(arguments: list[str]) -> int:
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-m", "-c")):
        say(USAGE)
        return 2
    if arguments[0] in ("-m", "-c") and len(arguments) == 1:
        return stop(f"{arguments[0]} needs an argument")
    if sys.flags.ignore_environment:
        return stop("Python's options -E and -I ignore PYTHONPATH, which this needs")
    try:
        wanted = command(arguments)
    except FileNotFoundError as exc:
        return stop(str(exc))
    say(SAID.format(name=NAME, version=uringloop.__version__))
    try:
        os.execve(wanted[0], wanted, environment(dict(os.environ)))
    except OSError as exc:
        return stop(f"{wanted[0]}: {exc.strerror}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
