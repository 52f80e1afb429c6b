"""A filter for io_uring that the kernel passes on to children (Linux 7.0), for a child process.

As a script it registers the filter and executes a command: `python task_filters.py OPENAT+STATX
command...` refuses two operations. `OPENAT:create` refuses opens that create a file, `SEND:late`
all sends but those that ask what is allowed. `list:STATX` registers a list of restrictions in place
of a filter: of all that a loop does but STATX. `run` starts such a child, `run_each` forks one for
each of several filters.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "filter_io_uring.py"
LOAD_WORD, JUMP_IF_EQUAL, JUMP_IF_SET = 0x20, 0x15, 0x45
# struct io_uring_bpf_ctx, on a little-endian machine: the words of an open's flags, and of the high
# half of user_data, which is 0 in the loop's questions and an address in its requests.
OPEN_FLAGS, USER_DATA_HIGH = 16, 4

# linux/io_uring.h.
IORING_REGISTER_RESTRICTIONS = 11
RESTRICT_REGISTER, RESTRICT_OPERATION, RESTRICT_FLAGS = 0, 1, 2
# Buffer rings, workers, an eventfd; restrictions and the enabling of a ring.
REGISTRATIONS = (22, 19, 4, 11, 12)
ALL_FLAGS = 0xFF


def example() -> dict[str, Any]:
    """Return the names of the example that registers filters."""
    return runpy.run_path(str(EXAMPLE))


def refuse(names: dict[str, Any], specification: str) -> None:
    """Register the filter of one *specification*."""
    instruction = names["instruction"]
    operation, _, condition = specification.partition(":")
    refused = instruction(names["RETURN"], names["REFUSE"])
    allowed = instruction(names["RETURN"], names["ALLOW"])
    program = {
        "": refused,
        "create": instruction(LOAD_WORD, OPEN_FLAGS)
        + instruction(JUMP_IF_SET, os.O_CREAT, 0, 1)
        + refused
        + allowed,
        "late": instruction(LOAD_WORD, USER_DATA_HIGH)
        + instruction(JUMP_IF_EQUAL, 0, 1, 0)
        + refused
        + allowed,
    }[condition]
    names["register"]({**names["SOCKETS"], **names["FILES"]}[operation], program)


def restrict(names: dict[str, Any], missing: list[str]) -> None:
    """Register the list of all that a loop does, without what *missing* names."""
    operations = {**names["SOCKETS"], **names["FILES"]}
    entries = [(RESTRICT_REGISTER, number) for number in REGISTRATIONS]
    entries += [(RESTRICT_OPERATION, n) for name, n in operations.items() if name not in missing]
    entries += [(RESTRICT_FLAGS, ALL_FLAGS)] if "flags" not in missing else []
    packed = b"".join(struct.pack("=HB13x", *entry) for entry in entries)
    argument = ctypes.create_string_buffer(struct.pack("=HH12x", 0, len(entries)) + packed)
    number = ctypes.c_long(names["IO_URING_REGISTER"])
    address = ctypes.c_void_p(ctypes.addressof(argument))
    if names["libc"].syscall(number, -1, IORING_REGISTER_RESTRICTIONS, address, 1) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def run(kind: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with *arguments* under the filter or the list *kind*."""
    # Imported here, because the filtered script finds no other module.
    from support import seccomp

    command = [sys.executable, "-IS", __file__, kind, sys.executable, *arguments]
    return seccomp.run_child(command, 3 * seccomp.PATIENCE, variables)


# Runs a program under each filter. No loop may be made before the forks.
EACH = """
import json, os, sys, tempfile, traceback
import asyncio, uringloop, uringloop.fs
from support import task_filters

program, *kinds = sys.argv[1:]
results = {}
for kind in kinds:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            try:
                task_filters.register(kind)
                exec(program, {"__name__": "__main__"})
            except BaseException as exc:
                print(type(exc).__name__, exc)
            os._exit(0)
        os.waitpid(child, 0)
        output.seek(0)
        results[kind] = output.read().decode().splitlines()
print(json.dumps(results))
"""


def run_each(program: str, *kinds: str) -> dict[str, list[str]]:
    """Return the lines that *program* prints under each filter, the last one for an exception."""
    from support import seccomp

    command = [sys.executable, "-c", EACH, textwrap.dedent(program), *kinds]
    ended = seccomp.run_child(command, seccomp.PATIENCE * len(kinds), {})
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    results: dict[str, list[str]] = json.loads(ended.stdout)
    return results


def are_supported() -> bool:
    """Return whether the kernel has such filters."""
    return run("NOP", "-c", "").returncode == 0


def register(kind: str) -> None:
    """Register the filter or the list *kind* for this thread."""
    names = example()
    names["give_up_privileges"]()
    if kind.startswith("list:"):
        restrict(names, kind.removeprefix("list:").split("+"))
        return
    for specification in kind.split("+"):
        refuse(names, specification)


def main() -> None:
    kind, *command = sys.argv[1:]
    try:
        register(kind)
    except OSError as exc:
        sys.exit(str(exc))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
