"""CPython's own tests of asyncio: each test that stock asyncio passes must pass on this loop.

Each module of test.test_asyncio runs in two processes, on stock asyncio and on this loop (see
conformance.py), and those that use streams in a third one, with compiled streams. Tests that stock
asyncio fails or skips on this machine are ignored.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("conformance.py")
POOL_DRIVER = Path(__file__).with_name("thread_pools.py")

# What the names of the tests of thread pools begin with.
POOLS = "test.test_concurrent_futures."

# More than the slowest module takes on a busy machine.
MODULE_SECONDS = 400

# The modules, and the classes that run if not all do: the same tests on three selectors would all
# test this loop, and test_unix_events mostly tests the selector transports themselves.
MODULES: dict[str, tuple[str, ...]] = {
    "test_buffered_proto": (),
    "test_context": (),
    "test_eager_task_factory": (),
    "test_events": (
        "EPollEventLoopTests",
        "TestPyGetEventLoop",
        "TestCGetEventLoop",
        "PolicyTests",
        "TestServer",
        "TestAbstractServer",
        "HandleTests",
        "TimerTests",
        "AbstractEventLoopTests",
    ),
    "test_free_threading": (),
    "test_futures": (),
    "test_futures2": (),
    "test_locks": (),
    "test_pep492": (),
    "test_queues": (),
    "test_runners": (),
    "test_sendfile": ("EPollEventLoopTests",),
    "test_server": (),
    "test_sock_lowlevel": ("EPollEventLoopTests",),
    "test_ssl": (),
    "test_sslproto": (),
    "test_streams": (),
    "test_subprocess": (),
    "test_taskgroups": (),
    "test_tasks": (),
    "test_threads": (),
    "test_timeouts": (),
    "test_unix_events": ("SelectorEventLoopUnixSocketTests", "TestFork", "TestFunctional"),
    "test_waitfor": (),
}

# The modules whose tests read and write by asyncio's streams.
STREAMS = ("test_streams", "test_ssl", "test_subprocess", "test_sslproto", "test_server")

PIDFD = "test_subprocess.SubprocessPidfdWatcherTests."
THREADED = "test_subprocess.SubprocessThreadedWatcherTests."
SSL = "test_ssl.TestSSL."
WATCHER = "test_subprocess.GenericWatcherTests."
EVENTS = "test_events.EPollEventLoopTests."
UNIX = "test_unix_events.SelectorEventLoopUnixSocketTests."

# Tests of the selector loop's internals, which do not apply to another loop.
EXCLUDED: dict[str, str] = {
    EVENTS + "test_timeout_rounding": "counts calls of _run_once",
    EVENTS + "test_internal_fds": "looks for the selector loop's socket pair",
    EVENTS + "test_prompt_cancellation": "calls _stop_serving, with a listener of its own",
    EVENTS + "test_create_server_multiple_hosts_ipv4": "puts a mock in asyncio.base_events.socket",
    EVENTS + "test_create_server_multiple_hosts_ipv6": "puts a mock in asyncio.base_events.socket",
    WATCHER + "test_create_subprocess_fails_with_inactive_watcher": "mocks the child watcher",
    WATCHER + "test_create_subprocess_with_pidfd": "mocks the child watcher",
    PIDFD + "test_watcher_implementation": "looks for the selector loop's child watcher",
    THREADED + "test_watcher_implementation": "looks for the selector loop's child watcher",
    THREADED + "test_pid_not_reaped_before_exit_published": "looks into the child watcher",
    "test_sslproto.SslProtoHandshakeTests.test_connection_lost_when_busy": (
        "calls _make_socket_transport"
    ),
    SSL + "test_create_connection_memory_leak": (
        "needs asyncio's second close(), which drops the connection from its transport"
    ),
    SSL + "test_remote_shutdown_receives_trailing_data": (
        "calls _test__append_write_backlog, which asyncio has for this test"
    ),
    SSL + "test_remote_shutdown_receives_trailing_data_on_slow_socket": (
        "puts a mock in the selector transport's write"
    ),
    "test_sslproto.SelectorStartTLSTests.test_create_connection_ssl_failed_certificate_no_cycles": (
        "replaces SSLProtocol.connection_made"
    ),
    UNIX + "test_create_unix_server_bind_error": "puts a mock in asyncio.unix_events.socket",
    UNIX + "test_create_unix_server_chmod_error": "puts a mock in asyncio.unix_events.socket",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("test.test_asyncio") is None,
        reason="this Python has no test package: apt-get install libpython3-testsuite",
    ),
]


@dataclass
class Results:
    """The outcomes of one module's tests on one loop, with tracebacks of the failed ones."""

    outcomes: dict[str, str] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)

    def add(self, line: str) -> None:
        record = json.loads(line)
        name = record["test"].removeprefix("test.test_asyncio.").removeprefix(POOLS)
        # A test may be reported twice: its body may pass or fail, and then its teardown fails.
        if self.outcomes.get(name) != "failed":
            self.outcomes[name] = record["outcome"]
            self.details[name] = record["detail"]

    def passed(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome == "passed"}


@functools.cache
def results(module: str, loop: str) -> Results:
    # The tests in the variable run on neither loop. EXCLUDED tests run on asyncio, to count them.
    skips = os.environ.get("CONFORMANCE_SKIPS", "").split()
    if loop != "asyncio":
        skips += EXCLUDED
    return run_driver(DRIVER, module, loop, *MODULES[module], skips=skips)


def run_driver(driver: Path, *arguments: str, skips: list[str]) -> Results:
    done = subprocess.run(
        [sys.executable, str(driver), *arguments],
        capture_output=True,
        text=True,
        timeout=MODULE_SECONDS,
        check=False,
        env={**os.environ, "CONFORMANCE_SKIPS": " ".join(skips)},
    )
    found = Results()
    for line in done.stdout.splitlines():
        # Tests and their child processes write to stdout as well, some without a newline.
        _, begin, rest = line.partition('{"test": ')
        if begin:
            found.add(begin + rest)
    unfinished = [name for name, outcome in found.outcomes.items() if outcome == "started"]
    for name in unfinished:
        found.details[name] = f"exit status {done.returncode}\n{done.stderr[-4000:]}"
    return found


@pytest.mark.parametrize("module", MODULES)
def test_tests_that_pass_on_asyncio_pass_on_this_loop(module: str) -> None:
    check(module, "uringloop")


@pytest.mark.parametrize("module", STREAMS)
def test_tests_that_pass_on_asyncio_pass_with_compiled_streams(module: str) -> None:
    check(module, "streams")


def check(module: str, loop: str) -> None:
    """Compare the outcomes of a module's tests on *loop* with those on asyncio."""
    if importlib.util.find_spec(f"test.test_asyncio.{module}") is None:
        pytest.skip(f"this Python has no {module}")
    stock = results(module, "asyncio").passed()
    ours = results(module, loop)
    assert stock
    failed = sorted(stock - ours.passed() - set(EXCLUDED))
    report = [f"{name}: {ours.outcomes.get(name)}\n{ours.details.get(name, '')}" for name in failed]
    assert not failed, "\n\n".join(report)


@pytest.mark.skipif(
    importlib.util.find_spec("test.test_concurrent_futures") is None,
    reason="this Python has no tests of concurrent.futures",
)
def test_tests_that_pass_on_a_thread_pool_pass_on_the_default_executor() -> None:
    stock = run_driver(POOL_DRIVER, "stock", skips=[]).passed()
    ours = run_driver(POOL_DRIVER, "uringloop", skips=[])
    assert len(stock) > 30
    failed = sorted(stock - ours.passed())
    # They start programs that import the class by its name.
    failed = [name for name in failed if "cannot import name" not in ours.details[name]]
    report = [f"{name}: {ours.outcomes.get(name)}\n{ours.details.get(name, '')}" for name in failed]
    assert not failed, "\n\n".join(report)


def test_few_tests_are_excluded() -> None:
    stock: set[str] = set()
    for module in MODULES:
        if importlib.util.find_spec(f"test.test_asyncio.{module}") is not None:
            stock |= results(module, "asyncio").passed()
    excluded = stock & set(EXCLUDED)
    assert len(stock) > 1000
    assert len(excluded) < 0.05 * len(stock)
