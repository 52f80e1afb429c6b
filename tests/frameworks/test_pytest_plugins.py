"""pytest-asyncio and anyio's pytest plugin run tests on the loop, configured or by our plugin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from programs import needs, process, python

import uringloop

TESTS = """
import asyncio
import pytest
import uringloop

async def echo(reader, writer):
    writer.write(await reader.read(5))
    writer.close()
    await writer.wait_closed()

@pytest.fixture
async def server():
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()

async def test_the_loop_is_ours():
    assert type(asyncio.get_running_loop()) is uringloop.Loop

@pytest.mark.parametrize("text", [b"hello", b"world"])
async def test_a_fixture_serves(server, text):
    reader, writer = await asyncio.open_connection(*server)
    writer.write(text)
    assert await reader.read() == text
    writer.close()
    await writer.wait_closed()

async def test_an_executor_is_there():
    assert await asyncio.to_thread(lambda: 1) == 1
"""

POLICY = """
import pytest
import uringloop

@pytest.fixture(scope="session")
def event_loop_policy():
    return uringloop.EventLoopPolicy()
"""

HOOK = """
import uringloop

def pytest_asyncio_loop_factories(config, item):
    return {"uringloop": uringloop.new_event_loop}
"""

BACKEND = """
import pytest
import uringloop

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": uringloop.new_event_loop}
"""


# Policies are deprecated, and the fixture that sets one raises pytest's own deprecation warning.
TOLERANT = ("-W", "ignore::DeprecationWarning", "-W", "ignore::pytest.PytestDeprecationWarning")


def run_suite(
    folder: Path, conftest: str, *options: str, tests: str = TESTS, passed: int = 4
) -> None:
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_suite.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = python("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options)
    # `-p` imports the suite's own plugin from here, even with PYTHONSAFEPATH.
    path = os.pathsep.join([str(folder), *filter(None, [os.getenv("PYTHONPATH")])])
    with process(command, cwd=folder, environment={"PYTHONPATH": path}) as running:
        assert running.wait() == 0, running.output
        assert f"{passed} passed" in running.output


def needs_hook() -> None:
    if not hasattr(needs("pytest_asyncio.plugin"), "PytestAsyncioSpecs"):
        pytest.skip("pytest-asyncio before 1.4 has no such hook")


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["function", "session"])
def test_pytest_asyncio_uses_the_policy(tmp_path: Path, scope: str) -> None:
    needs("pytest_asyncio")
    scopes = [f"asyncio_default_{what}_loop_scope={scope}" for what in ("fixture", "test")]
    options = ["-o", "asyncio_mode=auto", "-o", scopes[0], "-o", scopes[1]]
    run_suite(tmp_path, POLICY, *TOLERANT, *options)


@pytest.mark.slow
def test_pytest_asyncio_uses_the_factory(tmp_path: Path) -> None:
    needs_hook()
    run_suite(tmp_path, HOOK, *TOLERANT, "-o", "asyncio_mode=auto")


@pytest.mark.slow
def test_the_plugin_of_anyio_uses_the_factory(tmp_path: Path) -> None:
    needs("anyio")
    marked = f"{BACKEND}\n{TESTS}"
    run_suite(tmp_path, "", *TOLERANT, "-p", "no:asyncio", tests=marked)


# ── the plugin of this package ────────────────────────────────────────────────────────────────

# Settings under which pytest-asyncio gives no warning.
AUTO = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
NAME = "uringloop.pytest_plugin"
OURS = ("-p", NAME)

LISTED = f"pytest_plugins = [{NAME!r}]"
MARKED = f"import pytest\npytestmark = pytest.mark.anyio\n{TESTS}"


@pytest.mark.slow
@pytest.mark.parametrize("anyio", [(), ("-p", "no:anyio")], ids=["both", "alone"])
def test_the_plugin_works_with_pytest_asyncio(tmp_path: Path, anyio: tuple[str, ...]) -> None:
    needs("pytest_asyncio")
    run_suite(tmp_path, "", *OURS, *AUTO, *anyio)


@pytest.mark.slow
def test_the_plugin_works_with_loops_of_session_scope(tmp_path: Path) -> None:
    needs("pytest_asyncio")
    scopes = [f"asyncio_default_{what}_loop_scope=session" for what in ("fixture", "test")]
    run_suite(tmp_path, "", *OURS, *AUTO[:2], "-o", scopes[0], "-o", scopes[1])


@pytest.mark.slow
@pytest.mark.parametrize("asyncio", [AUTO[2:], ("-p", "no:asyncio")], ids=["both", "alone"])
def test_the_plugin_works_with_the_plugin_of_anyio(
    tmp_path: Path, asyncio: tuple[str, ...]
) -> None:
    needs("anyio")
    run_suite(tmp_path, "", *OURS, *asyncio, tests=MARKED)


@pytest.mark.slow
def test_the_plugin_can_be_named_in_conftest(tmp_path: Path) -> None:
    needs("pytest_asyncio")
    run_suite(tmp_path, LISTED, *AUTO)


MARKING = """
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker("anyio")
"""


@pytest.mark.slow
def test_the_plugin_works_for_tests_marked_during_collection(tmp_path: Path) -> None:
    if not hasattr(needs("anyio.pytest_plugin"), "pytest_collection_finish"):
        pytest.skip("this anyio runs no tests that are marked late")
    tests = (
        "import asyncio, uringloop\n"
        "async def test_it(request):\n"
        "    if request.getfixturevalue('anyio_backend_name') == 'asyncio':\n"
        "        assert type(asyncio.get_running_loop()) is uringloop.Loop\n"
    )
    # The test also runs on trio if that is installed.
    backends = len(needs("anyio").get_available_backends())
    run_suite(tmp_path, MARKING, *OURS, "-p", "no:asyncio", tests=tests, passed=backends)


MIXED = """
import asyncio
import pytest
import uringloop

@pytest.mark.asyncio
async def test_of_pytest_asyncio():
    assert type(asyncio.get_running_loop()) is uringloop.Loop

@pytest.mark.anyio
async def test_of_anyio(anyio_backend_name, anyio_backend_options):
    assert type(asyncio.get_running_loop()) is uringloop.Loop
    assert anyio_backend_name == "asyncio"
    assert list(anyio_backend_options) == ["loop_factory"]
"""


@pytest.mark.slow
def test_the_plugin_works_with_both_in_one_suite(tmp_path: Path) -> None:
    needs("pytest_asyncio")
    needs("anyio")
    run_suite(tmp_path, LISTED, *AUTO[2:], tests=MIXED, passed=2)


@pytest.mark.slow
def test_the_plugin_does_nothing_without_the_other_plugins(tmp_path: Path) -> None:
    tests = "def test_it(request):\n    assert 'anyio_backend' not in request.fixturenames\n"
    without = ("-p", "no:asyncio", "-p", "no:anyio")
    run_suite(tmp_path, "", *OURS, *without, tests=tests, passed=1)


# ── settings of a suite ───────────────────────────────────────────────────────────────────────

OWN_LOOP = """
import asyncio
import pytest

class OwnLoop(asyncio.SelectorEventLoop):
    pass
"""

OWN_POLICY = f"""{OWN_LOOP}
class OwnPolicy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = OwnLoop

@pytest.fixture(scope="session")
def event_loop_policy():
    return OwnPolicy()
"""

OWN_HOOK = f"""{OWN_LOOP}
def pytest_asyncio_loop_factories(config, item):
    return {{"own": OwnLoop}}
"""

OWN_BACKEND = f"""{OWN_LOOP}
@pytest.fixture
def anyio_backend():
    return "asyncio", {{"loop_factory": OwnLoop}}
"""

ON_OWN_LOOP = """
import asyncio
import pytest

async def test_on_its_own_loop():
    assert type(asyncio.get_running_loop()).__name__ == "OwnLoop"
"""


@pytest.mark.slow
@pytest.mark.parametrize("named", ["option", "conftest"])
@pytest.mark.parametrize(
    "own", [OWN_POLICY, OWN_HOOK, OWN_BACKEND], ids=["policy", "hook", "anyio"]
)
def test_the_settings_of_a_suite_override_the_plugin(tmp_path: Path, own: str, named: str) -> None:
    needs("pytest_asyncio")
    needs("anyio")
    if own == OWN_HOOK:
        needs_hook()
    options: tuple[str, ...] = TOLERANT if own == OWN_POLICY else ()
    conftest = own
    if named == "option":
        options += OURS
    else:
        conftest += LISTED
    mark = ""
    if own == OWN_BACKEND:
        options += AUTO[2:]
        mark = "pytestmark = pytest.mark.anyio\n"
    else:
        options += AUTO
    run_suite(tmp_path, conftest, *options, tests=f"{ON_OWN_LOOP}{mark}", passed=1)


@pytest.mark.slow
def test_the_backend_of_a_test_overrides_the_plugin(tmp_path: Path) -> None:
    needs("anyio")
    tests = (
        "import asyncio, pytest\n"
        "@pytest.mark.anyio\n"
        "@pytest.mark.parametrize('anyio_backend', ['asyncio'])\n"
        "async def test_it():\n"
        "    assert isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop)\n"
    )
    run_suite(tmp_path, "", *OURS, *AUTO[2:], tests=tests, passed=1)


# pytest-asyncio before 1.4 has this fixture, and no other way to choose a loop.
OLDER = """
import asyncio
import pytest

@pytest.fixture(scope="session", autouse=True)
def event_loop_policy():
    return None
"""


@pytest.mark.slow
def test_an_older_pytest_asyncio_gets_the_policy(tmp_path: Path) -> None:
    (tmp_path / "older.py").write_text(OLDER)
    tests = (
        "import uringloop\n"
        "def test_it(event_loop_policy):\n"
        "    assert isinstance(event_loop_policy, uringloop.EventLoopPolicy)\n"
    )
    options = ("-p", "no:asyncio", *OURS, "-p", "older")
    run_suite(tmp_path, "", *options, tests=tests, passed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "shown"),
    [
        ("soft", "on soft (asked for by URINGLOOP_BACKEND)"),
        ("nonsense", "on no ring: URINGLOOP_BACKEND='nonsense' is none of "),
    ],
)
def test_the_report_header_names_the_backend(tmp_path: Path, chosen: str, shown: str) -> None:
    command = python("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", *OURS)
    with process(command, cwd=tmp_path, environment={"URINGLOOP_BACKEND": chosen}) as running:
        assert running.wait() == pytest.ExitCode.NO_TESTS_COLLECTED
    assert f"\nuringloop: {uringloop.__version__}, {shown}" in running.output
