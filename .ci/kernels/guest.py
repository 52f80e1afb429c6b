"""Runs inside a kernel that .ci/kernels boots: the init, and a plugin of pytest.

The init mounts the file systems that the tests need, checks which ring a loop gets when the kernel
permits and forbids io_uring, and runs the core of the suite on each ring. On request it ends UNIX
streams or resets connections instead. It prints the results on the console as lines of JSON. Only
process 1 does this: a program that imports this module gets the plugin.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
import traceback
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

RESULT = "##kernels "
SOURCES = "/src"
SYSCTL = Path("/proc/sys/kernel/io_uring_disabled")
GROUP_SYSCTL = Path("/proc/sys/kernel/io_uring_group")
NOBODY = 65534

MOUNTS = (
    ("devtmpfs", "/dev", ""),
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devpts", "/dev/pts", ""),
    ("tmpfs", "/dev/shm", "mode=1777"),
)
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
# The number of the system call init_module(2).
INIT_MODULE = {"x86_64": 175, "aarch64": 105}
# LINUX_REBOOT_CMD_POWER_OFF of reboot(2).
POWER_OFF = 0x4321FEDC

# The test files of subjects that depend on the kernel. `make test` runs the others: layers above
# the ring (tasks, policies, text files), long comparisons with asyncio, and tests that wait.
CORE = (
    "accepting", "connections", "streams", "unix", "writing", "flow_control", "large_messages",
    "readiness", "data_before_reset", "stream_ends", "unix_ends", "large_ends", "full_queues",
    "sockets", "watchers", "datagrams", "datagram_sending", "datagram_endpoints", "files",
    "files_ends", "files_descriptors", "sendfile", "sendfile_ends", "pipes", "pipe_writing",
    "subprocesses", "subprocess_ends", "signals", "threads", "timers", "lifecycle", "pressure",
    "tls", "start_tls", "leaks", "lasting_errors", "system_calls", "softring", "softring_files",
    "task_filters",
)  # fmt: skip

# Tests that sometimes fail on a slow emulated machine, each with its deadline.
TOO_SLOW = {
    "test_large_messages.py::test_a_flood_does_not_delay_others": "half a second, with 2 threads",
    "test_timers.py::test_timer_shorter_than_a_millisecond_is_not_rounded_up": "a millisecond",
}

ASK = """
import sys, uringloop
try:
    loop = uringloop.Loop(backend=sys.argv[1] if sys.argv[1] != "auto" else None)
except OSError as exc:
    print("refused:", exc)
else:
    print(loop.backend + ":", loop.backend_reason)
    loop.run_until_complete(loop.create_task(__import__("asyncio").sleep(0)))
    loop.close()
"""


def tell(kind: str, value: object) -> None:
    print(f"\n{RESULT}{json.dumps([kind, value])}", flush=True)


# ── as a plugin of pytest ────────────────────────────────────────────────────────────────────


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deselect tests on asyncio, which is only the reference, and without --slow the slow tests."""
    items[:] = [item for item in items if is_wanted(item)]


def is_wanted(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if parameters.get("loop_factory") == "asyncio":
        return False
    if item.get_closest_marker("slow") and "KERNELS_SLOW" not in os.environ:
        return False
    return item.nodeid.rpartition("/")[2].partition("[")[0] not in TOO_SLOW


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Print a line for each file: a silent machine is killed."""
    if report.nodeid.endswith(".py"):
        print(report.nodeid, flush=True)


def pytest_collection_finish() -> None:
    """Exclude pytest's objects from the garbage collections of each test: they take most time."""
    gc.collect()
    gc.freeze()


class Tally:
    """Counts passed, skipped and failed tests."""

    def __init__(self) -> None:
        self.passed = self.skipped = 0
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid.removeprefix("tests/"))
            # At once: a machine that hangs later does not print pytest's summary.
            print(f"\n{report.nodeid}: {report.when}\n{report.longreprtext}", flush=True)
        elif report.skipped:
            self.skipped += 1
        elif report.when == "call":
            self.passed += 1


def run_suite(backend: str, tests: list[str], match: str) -> None:
    """Run pytest in this process, which ends afterwards."""
    # Not imported by the init.
    import pytest

    tally = Tally()
    started = time.monotonic()
    arguments = ["-q", "--tb=short", "--color=no", "-p", "no:cacheprovider", "--durations=12"]
    # The suite's limit of 60 s would report a slow machine, not a deadlock.
    arguments += ["-o", "faulthandler_timeout=240"]
    arguments += ["-k", match] if match else []
    for name in tests or CORE:
        arguments += map(str, Path("tests").glob(f"*/test_{name}.py"))
    status = pytest.main(arguments, plugins=[sys.modules[__name__], tally])
    failed = list(dict.fromkeys(tally.failed))
    value = {"backend": backend, "status": int(status), "passed": tally.passed}
    seconds = round(time.monotonic() - started)
    tell("suite", {**value, "failed": failed, "skipped": tally.skipped, "seconds": seconds})


# ── the machine ──────────────────────────────────────────────────────────────────────────────


def mount(libc: ctypes.CDLL, kind: str, place: str, options: str, source: str = "none") -> None:
    os.makedirs(place, exist_ok=True)
    if libc.mount(source.encode(), place.encode(), kind.encode(), 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {place}")


def load_modules(libc: ctypes.CDLL) -> None:
    number = INIT_MODULE[os.uname().machine]
    for module in sorted(Path("/modules").iterdir()):
        data = module.read_bytes()
        if libc.syscall(number, data, ctypes.c_ulong(len(data)), b"") != 0:
            raise OSError(ctypes.get_errno(), f"init_module {module.name}")


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh", b"lo", 0).ljust(40, b"\0")
        _, flags = struct.unpack_from("16sh", fcntl.ioctl(sock, SIOCGIFFLAGS, request))
        request = struct.pack("16sh", b"lo", flags | IFF_UP).ljust(40, b"\0")
        fcntl.ioctl(sock, SIOCSIFFLAGS, request)


def furnish(libc: ctypes.CDLL) -> None:
    """Set up the environment that the tests expect: mounts, modules, network, variables."""
    for kind, place, options in MOUNTS:
        if not (place == "/dev" and Path("/dev/null").exists()):
            mount(libc, kind, place, options)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"/dev/{name}")
    os.symlink("/proc/self/fd", "/dev/fd")
    load_modules(libc)
    mount(libc, "ext4", "/disk", "", "/dev/vda")
    for place in ("/tmp", "/disk"):
        os.chmod(place, 0o1777)
    raise_loopback()
    socket.sethostname("kernels")
    os.environ.update(
        HOME="/root",
        LANG="C.UTF-8",
        PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        PYTHONPATH="/guest",
        PYTHONSAFEPATH="1",
        TMPDIR="/disk",
    )


def libc_version() -> str:
    """Return the name and version of the C library that Python uses."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "?"
    except (OSError, ValueError):
        # musl's dynamic linker prints its version on standard error.
        (linker, *_) = Path("/lib").glob("ld-musl-*")
        done = subprocess.run([linker], capture_output=True, text=True, check=False)
        return f"musl {done.stderr.split('Version')[1].split()[0]}"


def machine() -> dict[str, object]:
    pages = f"{os.sysconf('SC_PAGE_SIZE') // 1024} KiB"
    return {"processor": os.uname().machine, "libc": libc_version(), "pages": pages}


def command_line() -> dict[str, str]:
    words = Path("/proc/cmdline").read_text().split()
    pairs = (word.removeprefix("kernels.").split("=", 1) for word in words if "kernels." in word)
    return {name: urllib.parse.unquote(value) for name, value in pairs}


# ── which ring ───────────────────────────────────────────────────────────────────────────────


def ask(backend: str, uid: int = 0) -> str:
    """Create a loop with *backend* in a new process of *uid*; return the ring or the error."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, backend],
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
        user=uid,
        group=uid,
        extra_groups=[],
    )
    return done.stdout.strip() or done.stderr.strip()[-300:] or f"status {done.returncode}"


def check(name: str, answer: str, *wanted: str) -> None:
    """Report whether *answer* contains all *wanted* parts."""
    lacks = [part for part in wanted if part not in answer]
    tell("check", {"name": name, "problem": f"{answer!r} lacks {lacks}" if lacks else ""})


def check_backends(expected: str) -> None:
    if expected == "io_uring":
        check("auto", ask("auto"), "io_uring: ")
        check("forced io_uring", ask("io_uring"), "io_uring: ", "asked for")
    else:
        check("auto", ask("auto"), "soft: ", "too old")
        check("forced io_uring", ask("io_uring"), "refused: ", "too old")
    check("forced software ring", ask("soft"), "soft: ", "asked for")


def check_sysctl() -> None:
    """Test kernel.io_uring_disabled (6.6+) with all its values, as root and as another user."""
    if not SYSCTL.exists():
        return
    for value, uid in (("1", NOBODY), ("2", NOBODY), ("2", 0)):
        SYSCTL.write_text(value)
        name = f"kernel.io_uring_disabled = {value}, uid {uid}"
        cause = f"io_uring_disabled = {value}"
        check(f"{name}, auto", ask("auto", uid), "soft: ", cause)
        check(f"{name}, forced", ask("io_uring", uid), "refused: ", cause, "sysctl")
    SYSCTL.write_text("1")
    check("kernel.io_uring_disabled = 1, uid 0, auto", ask("auto"), "io_uring: ")
    GROUP_SYSCTL.write_text(str(NOBODY))
    check("kernel.io_uring_group has the user, auto", ask("auto", NOBODY), "io_uring: ")
    GROUP_SYSCTL.write_text("-1")
    SYSCTL.write_text("0")
    check("kernel.io_uring_disabled = 0, uid 65534, auto", ask("auto", NOBODY), "io_uring: ")


# ── UNIX streams ─────────────────────────────────────────────────────────────────────────────

ENDS_LINE = re.compile(r"(\w+) +(\w+) .*: +(\d+) ends, (\d+) lost, (\d+) wrong")
# A round takes some seconds, and a minute on a busy machine.
ENDS_OF_A_ROUND = 2_000
# Rounds without the poll show whether the kernel has the fault: waiting for a lost end takes time.
ROUNDS_WITHOUT_POLL = 10


def end_streams(count: int) -> None:
    """End *count* UNIX streams of each kind with unix-ends, in rounds, and report each round."""
    rounds = -(-count // ENDS_OF_A_ROUND)
    unwatched = min(rounds, ROUNDS_WITHOUT_POLL)
    for mode in (*["MULTISHOT"] * unwatched, *["WATCHED"] * rounds):
        sums: dict[str, list[int]] = {}
        program = ["/guest/unix-ends", mode, str(min(count, ENDS_OF_A_ROUND))]
        done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=False)
        for _, end, *numbers in ENDS_LINE.findall(done.stdout):
            sums[end] = [a + int(b) for a, b in zip(sums.get(end, [0] * 3), numbers, strict=True)]
        for end, totals in sums.items():
            tell("ends", [mode, end, *totals])
        if done.returncode not in (0, 1):
            raise RuntimeError(f"unix-ends: status {done.returncode}")


# ── resets ───────────────────────────────────────────────────────────────────────────────────


def reset_connections(count: int, only: str) -> None:
    """Reset *count* connections of each kind, and report each kind."""
    program = [sys.executable, "tests/net/resets.py", "--count", str(count), "--only", only]
    with subprocess.Popen(program, cwd=SOURCES, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tell("resets", json.loads(line))
    if process.returncode not in (0, 1):
        raise RuntimeError(f"resets: status {process.returncode}")


def work() -> None:
    options = command_line()
    expected = options["expected"]
    tell("machine", machine())
    doctor = [sys.executable, "-m", "uringloop.doctor", "--json"]
    told = subprocess.run(doctor, stdout=subprocess.PIPE, text=True, cwd="/", check=False)
    tell("doctor", json.loads(told.stdout))
    if "ends" in options:
        end_streams(int(options["ends"]))
        tell("end", None)
        return
    if "resets" in options:
        reset_connections(int(options["resets"]), options.get("match", ""))
        tell("end", None)
        return
    check_backends(expected)
    check_sysctl()
    tests = [name for name in options.get("tests", "").split(",") if name]
    os.environ.update({"KERNELS_SLOW": "1"} if "slow" in options else {})
    for backend in ("io_uring", "soft"):
        if backend == "io_uring" and expected != backend:
            continue
        if backend != options.get("ring", backend):
            continue
        program = f"import kernels_guest as g; g.run_suite({backend!r}, {tests!r}, "
        program += f"{options.get('match', '')!r})"
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=SOURCES,
            env={**os.environ, "URINGLOOP_BACKEND": backend},
            stdin=subprocess.DEVNULL,
            check=False,
            start_new_session=True,
        )
    tell("end", None)


def main() -> None:
    """Run work() in a child, reap orphans while it runs, then power off."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        furnish(libc)
        worker = os.fork()
        if worker == 0:
            try:
                work()
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        while os.wait()[0] != worker:
            pass
    except BaseException:
        # Print now: the machine powers off before this process could exit.
        traceback.print_exc()
    finally:
        os.sync()
        libc.reboot(POWER_OFF)


if __name__ == "__main__" and os.getpid() == 1:
    main()
