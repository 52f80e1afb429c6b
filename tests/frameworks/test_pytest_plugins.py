"""pytest-asyncio and anyio's pytest plugin run a suite's tests on the loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import needs, process, python

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


def run_suite(folder: Path, conftest: str, *options: str, tests: str = TESTS) -> None:
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_suite.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = python("-m", "pytest", "-q", "-W", "error", "-W", "ignore::DeprecationWarning")
    # What a fixture overrides, the plugin says with a category of its own.
    command += ["-W", "ignore::pytest.PytestDeprecationWarning", "-p", "no:cacheprovider", *options]
    with process(command, cwd=folder) as running:
        assert running.ended() == 0, running.output
        assert "4 passed" in running.output


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["function", "session"])
def test_pytest_asyncio_takes_the_policy(tmp_path: Path, scope: str) -> None:
    needs("pytest_asyncio")
    scopes = [f"asyncio_default_{what}_loop_scope={scope}" for what in ("fixture", "test")]
    run_suite(tmp_path, POLICY, "-o", "asyncio_mode=auto", "-o", scopes[0], "-o", scopes[1])


@pytest.mark.slow
def test_pytest_asyncio_takes_the_factory(tmp_path: Path) -> None:
    plugin = needs("pytest_asyncio.plugin")
    if not hasattr(plugin.PytestAsyncioSpecs, "pytest_asyncio_loop_factories"):
        pytest.skip("pytest-asyncio before 1.4 has no such hook")
    run_suite(tmp_path, HOOK, "-o", "asyncio_mode=auto")


@pytest.mark.slow
def test_the_plugin_of_anyio_takes_the_factory(tmp_path: Path) -> None:
    needs("anyio")
    marked = f"{BACKEND}\n{TESTS}"
    run_suite(tmp_path, "", "-p", "no:asyncio", tests=marked)
