"""python -m uringloop.doctor: report which ring a loop gets, why, and how to change that.

The doctor creates one loop, as a program would, and reads settings and limits of the system. It
changes nothing. With `URINGLOOP_BACKEND=soft` it makes no io_uring system call.

The exit status is 0 if loops are on io_uring, and 1 otherwise.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from uringloop import __version__
from uringloop._cpython import gil, stdlib
from uringloop._loop import options
from uringloop._ring import backends, features, limits, system_calls
from uringloop.loop import Loop
from uringloop.monitor import command_line

__all__ = ["examine"]

PROGRAM = "python -m uringloop.doctor"

GVISOR_BUILT = "Sun Jan 10 15:06:54 PST 2016"

BENEFITS = {
    "shared_accept": "a connection wakes one of the processes that share a listening socket",
    "multishot_recv": "one submission for all receives of a socket",
    "unix_multishot": "the same on UNIX sockets, with a poll that watches for the peer's end",
    "quiet_sends": "no completion for a send that sent everything",
    "no_iowait": "a sleeping loop does not count as iowait",
    "min_wait": "the option batch_wait_us has an effect",
    "cached_files": "data in the page cache is read without a submission",
    "cached_paths": "paths in the kernel's cache are examined and opened without one",
    "truncate": "a file's size is changed by a submission, not in a thread",
    "epoll_wait": "add_reader and add_writer need no system call for each turn",
    "epoll_sleep": "a loop busy with add_reader and add_writer sleeps in epoll_wait(2)",
    "nameless_files": "a file written by `write_atomic` has no name until it is complete",
    "bio_memory": "OpenSSL reads and writes records in place, without copies",
    "stream_reader": "received bytes go into a StreamReader's buffer without Python code",
    "socket_slots": "a socket call that waits reads the socket's fields from C",
    "kept_bytes": "the memory of received messages is used again, without malloc",
    "task_set": "tasks are put into asyncio's set of all tasks without Python code (until 3.13)",
    "job_queue": "calls in threads of the default executor, and their results, are compiled",
}

# The first kernel that has a feature, for features that KERNEL_MIN lacks.
SINCE = {
    "no_iowait": (6, 15),
    "min_wait": (6, 12),
    "cached_paths": (6, 8),
    "truncate": (6, 9),
    "epoll_wait": (6, 15),
}

# A filter may refuse these, too: a loop then does without the feature `epoll_wait`, or without
# anything.
NOT_OF_FILES = frozenset(("IORING_OP_NOP", "IORING_OP_EPOLL_WAIT"))

Report = dict[str, object]


def benefit(feature: str) -> str:
    """Return the benefit of a feature, and the first kernel that has the feature."""
    since = SINCE.get(feature)
    return BENEFITS[feature] + (f" ({since[0]}.{since[1]})" if since else "")


def known(fact: Callable[[], str]) -> str:
    """Return what *fact* returns, or "unknown" where a sandbox refuses uname(2)."""
    try:
        return fact()
    except OSError:
        return "unknown"


def container() -> str | None:
    """Return the kind of container that this process seems to run in, or None."""
    # Look for gVisor first, as it also has the marker files of the engine that runs it. The version
    # of its kernel always has this date.
    if "gvisor" in known(platform.release) or GVISOR_BUILT in known(platform.version):
        return "gvisor"
    for path, name in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if Path(path).exists():
            return name
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    # systemd's convention; the name of the variable is in lower case.
    named = os.environ.get("container")  # noqa: SIM112
    if named:
        return named
    return None


# The first aiohttp that takes aiofastnet's transports where they are installed.
AIOHTTP_WITH_AIOFASTNET = (3, 15)


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def other_transports() -> list[str]:
    """Return advice about aiofastnet, whose transports a program may get without choosing them."""
    version = version_of("aiofastnet")
    if version is None:
        return []
    aiohttp = version_of("aiohttp") or ""
    numbers = tuple(int(part) for part in aiohttp.split(".")[:2] if part.isdigit())
    lines = [
        f"aiofastnet {version}: aiohttp from 3.15 on, and programs that patch the loop with it, use"
        " its transports, on add_reader, in place of the loop's"
    ]
    if numbers >= AIOHTTP_WITH_AIOFASTNET:
        lines.append(f"aiohttp {aiohttp}: its servers and clients use aiofastnet's transports")
    lines.append(
        "they take 1.2 to 1.4 times the CPU time of the loop's own over TCP with many clients, and"
        " 1.0 to 1.2 times with one client or over TLS; to leave them out: `pip uninstall"
        ' aiofastnet`, or sys.modules["aiofastnet"] = None before the first import of aiohttp'
    )
    return lines


def advice(backend: str, reason: str, states: dict[str, str]) -> list[str]:
    """Return one line for each problem that the user can do something about."""
    lines = []
    if backend != backends.IO_URING:
        remedy = backends.remedy_in(reason)
        if remedy is not None:
            beside = backend != backends.SOFT and "io_uring" not in remedy
            lines.append(f"to {'run a loop' if beside else 'use io_uring'}: {remedy}")
        elif backend == backends.SOFT:
            lines.append(f"the software ring was {reason}; unset it to try io_uring first")
        else:
            lines.append(reason)
    disabled = [name for name, state in states.items() if state == "disabled"]
    if disabled:
        lines.append(f"{backends.DISABLE_VARIABLE} switches off: {', '.join(disabled)}")
    if backend == backends.IO_URING:
        absent = [name for name in features.FEATURES if states[name] == "absent"]
        old = [name for name in absent if backends.release() < SINCE.get(name, (0, 0))]
        if old:
            lines.append(f"a newer kernel supports: {', '.join(old)}")
        refused = [name for name in absent if name not in old]
        if refused:
            lines.append(f"a sandbox, or the lack of a privilege, refuses: {', '.join(refused)}")
        in_threads = [name for name in features.refused_operations() if name not in NOT_OF_FILES]
        if in_threads:
            lines.append(
                "a filter for io_uring refuses operations of files, which threads of the default "
                f"executor perform instead: {', '.join(in_threads)}"
            )
    lines += system_calls.advice()
    return lines + other_transports() + limits.advice(backend)


def restrictions(backend: str) -> str:
    """Return whose list says what the loop's ring may do, for the report."""
    if backend != backends.IO_URING:
        return "no ring of the kernel"
    return "inherited" if features.has_inherited_list() else "the loop's own"


def examine() -> Report:
    """Create a loop and return the report."""
    try:
        # No fallback warning: the report says which ring the loop got.
        loop = Loop(warn_fallback=False)
    except (OSError, ValueError) as exc:
        backend, reason = "none", str(exc)
    else:
        backend, reason = loop.backend, loop.backend_reason
        loop.close()
    states = {**features.report(backend), **stdlib.report()}
    return {
        "uringloop": __version__,
        "python": platform.python_version(),
        "GIL": gil.state(),
        "liburing": features.LIBURING,
        "kernel": f"{backends.kernel()} {known(platform.machine)}",
        "kernel.io_uring_disabled": backends.read(backends.SYSCTL) or "no such setting",
        "kernel.io_uring_group": backends.read(backends.GROUP_SYSCTL) or "no such setting",
        "seccomp mode": backends.seccomp_mode(),
        "container": container() or "none detected",
        "locked memory": limits.limit_text(resource.RLIMIT_MEMLOCK),
        "descriptors": limits.limit_text(resource.RLIMIT_NOFILE),
        "processes of the user": limits.limit_text(resource.RLIMIT_NPROC),
        "processes of the cgroup": str(limits.cgroup("pids", "pids.max") or "no limit found"),
        "memory of the cgroup": str(limits.memory() or "no limit found"),
        "backend": backend,
        "reason": reason,
        "restrictions of the ring": restrictions(backend),
        "operations refused": ", ".join(features.refused_operations()) or "none",
        "variables": {one.variable: text for one in options.TABLE if (text := one.text())},
        "features": states,
        "advice": advice(backend, reason, states),
    }


def text_of(report: Report) -> str:
    lines = []
    effects = {option.variable: option.effect for option in options.TABLE}
    for name, value in report.items():
        if name == "variables" and isinstance(value, dict):
            lines += ["", "Variables"] if value else []
            lines += [f"  {f'{key}={text}':<28}  {effects[key]}" for key, text in value.items()]
        elif isinstance(value, dict):
            lines += ["", "Features"]
            lines += [f"  {key:<18}{state:<10}{benefit(key)}" for key, state in value.items()]
        elif isinstance(value, list):
            lines += ["", "Advice", *(f"  {line}" for line in value or ["nothing to do"])]
        else:
            lines.append(f"{name:<26}{value}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Report which ring a loop gets, why, and how to change that.",
        epilog="The exit status is 0 if loops are on io_uring, and 1 otherwise.",
    )
    parser.add_argument("--json", action="store_true", help="write the report as JSON")
    parsed = parser.parse_args(arguments)

    def show() -> int:
        report = examine()
        print(json.dumps(report, indent=2) if parsed.json else text_of(report))
        return 0 if report["backend"] == backends.IO_URING else 1

    return command_line.run(PROGRAM, show)


if __name__ == "__main__":
    sys.exit(main())
