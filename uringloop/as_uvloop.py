"""Run a program whose `import uvloop` gives uringloop: `python -m uringloop.as_uvloop PROGRAM`.

This command puts a directory with a package `uvloop` first on PYTHONPATH and replaces its own
process with the program (execve), in a new interpreter that is started as it would be without this
command. Child processes inherit PYTHONPATH, however they are started. Nothing is installed: without
this command, `import uvloop` finds what it found before.
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

Run a program in which `import uvloop` gives uringloop, as it does in the program's child processes.

PROGRAM is a Python file, a directory with a __main__.py, or a command such as `uvicorn` or `vllm`.
"""
# Printed once, by this command; child processes print nothing.
NOTICE = "{name}: `import uvloop` gives uringloop {version} here and in child processes\n"


def environment(before: dict[str, str]) -> dict[str, str]:
    """Return the program's environment: *before*, with the directory first on PYTHONPATH."""
    (folder,) = _as_uvloop.__path__
    others = before.get("PYTHONPATH", "").split(os.pathsep) if before.get("PYTHONPATH") else []
    paths = [folder, *(path for path in others if path != folder)]
    return {**before, "PYTHONPATH": os.pathsep.join(paths)}


def interpreter() -> list[str]:
    """Return the command line of this interpreter: its options, without `-m` and this module."""
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    # The last option is `-m NAME`, `-mNAME` or, after other letters, `-uBm NAME`.
    last = options.pop().removesuffix(NAME) or options.pop()
    flags = last.removesuffix("m")
    return [sys.executable, *options, *([flags] if flags != "-" else [])]


def command(arguments: list[str]) -> list[str]:
    """Return the command to execute for *arguments*, the arguments of this module.

    Raises FileNotFoundError if the program does not exist.
    """
    program = arguments[0]
    # A directory without __main__.py may have the name of a command: then the command runs.
    if program in ("-m", "-c") or any(
        os.path.isfile(path) for path in (program, os.path.join(program, "__main__.py"))
    ):
        return [*interpreter(), *arguments]
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"{program} is neither a file nor a command")
    return [found, *arguments[1:]]


def say(text: str) -> None:
    """Write *text* to stderr. Errors are ignored: a daemon's stderr may be closed or full."""
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
        return stop("Python's options -E and -I ignore PYTHONPATH, which this command needs")
    try:
        wanted = command(arguments)
    except FileNotFoundError as exc:
        return stop(str(exc))
    say(NOTICE.format(name=NAME, version=uringloop.__version__))
    try:
        os.execve(wanted[0], wanted, environment(dict(os.environ)))
    except OSError as exc:
        return stop(f"{wanted[0]}: {exc.strerror}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
