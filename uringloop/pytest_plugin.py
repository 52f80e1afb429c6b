"""Run tests on uringloop: `pytest -p uringloop.pytest_plugin`, or add it to `pytest_plugins`.

The plugin makes pytest-asyncio, anyio's plugin and unittest's IsolatedAsyncioTestCase create
uringloop loops; the header of pytest's report names the ring, or the seeds. A fixture, hook or
`loop_factory` of the test suite itself takes precedence. The package has no pytest entry point:
installing it does not change a test suite.

With `--uringloop-seeds=100` each asynchronous test runs on `uringloop.testing.Loop`, in virtual
time, under the seeds 0 to 99, or under as many from `--uringloop-first-seed` on; with
`--uringloop-seed=7` under that seed only. The marker `@pytest.mark.uringloop_seeds(100)` does so
for a single test. A test that makes its loop by itself asks for the fixture `uringloop_seed`.
"""

from __future__ import annotations

import asyncio
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

import pytest

import uringloop
from uringloop import policy
from uringloop.policy import EventLoopPolicy, describe_ring
from uringloop.testing import pytest_seeds, seeds

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

# The fixtures by which a test suite chooses a loop: pytest-asyncio's and anyio's.
POLICY = "event_loop_policy"
BACKEND = "anyio_backend"

# The hooks that repeat the tests of a session.
SEED_RUNS = pytest.StashKey[pytest_seeds.SeedRuns]()

# The names of anyio's plugin: loaded by its entry point, and by `-p`.
ANYIO = ("anyio", "anyio.pytest_plugin")


def pytest_addoption(parser: pytest.Parser) -> None:
    pytest_seeds.add_options(parser)


def new_event_loop() -> uringloop.Loop:
    """Return a new loop: one for tests if the test runs with a seed."""
    return seeds.new_loop() if seeds.is_active() else policy.new_event_loop()


@pytest.hookimpl(optionalhook=True, trylast=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Return the loop factory for pytest-asyncio 1.4 and later."""
    if _has_own_policy(item):
        # new_event_loop() uses the suite's policy, which pytest-asyncio has set by then.
        return {POLICY: asyncio.new_event_loop}
    return {"uringloop": new_event_loop}


def _has_own_policy(item: pytest.Item) -> bool:
    information = getattr(item, "_fixtureinfo", None)
    if information is None:
        return False
    fixtures = information.name2fixturedefs.get(POLICY, ())
    return any(not fixture.func.__module__.startswith("pytest_asyncio.") for fixture in fixtures)


def _register(config: pytest.Config, name: str, fixture: object) -> None:
    """Register *fixture* now, in a plugin of its own.

    The fixture of the plugin that was registered last takes precedence, and this module may have
    been registered first.
    """
    plugin = types.ModuleType(f"{__name__}.{name}")
    setattr(plugin, name, fixture)
    config.pluginmanager.register(plugin, plugin.__name__)


def pytest_report_header(config: pytest.Config) -> str:
    """Return a line that names the seeds, or the ring of this run's loops and the reason for it."""
    where = config.stash[SEED_RUNS].describe() or f"on {describe_ring()}"
    return f"uringloop: {uringloop.__version__}, {where}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", pytest_seeds.DESCRIPTION)
    config.stash[SEED_RUNS] = pytest_seeds.SeedRuns(config)
    config.pluginmanager.register(config.stash[SEED_RUNS], pytest_seeds.NAME)
    if not config.hook.pytest_asyncio_loop_factories.has_spec():
        # pytest-asyncio before 1.4 has no hook, only the policy fixture.
        _register(config, POLICY, pytest.fixture(_policy, scope="session", name=POLICY))
    if any(map(config.pluginmanager.has_plugin, ANYIO)):
        # anyio's own fixture has the same scope.
        _register(config, BACKEND, pytest.fixture(_backend, scope="module", name=BACKEND))


class _Policy(EventLoopPolicy):
    def new_event_loop(self) -> uringloop.Loop:
        return new_event_loop()


@pytest.fixture
def uringloop_seed() -> int:
    """The seed of this run of the test; 0 if it runs without one."""
    return seeds.current_seed()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let an IsolatedAsyncioTestCase make its loop by this module."""
    __tracebackhide__ = True
    case = getattr(item, "cls", None)
    if isinstance(case, type) and issubclass(case, unittest.IsolatedAsyncioTestCase):
        with _loops_of(case):
            return (yield)
    return (yield)


@contextmanager
def _loops_of(case: type[unittest.IsolatedAsyncioTestCase]) -> Iterator[None]:
    """Let *case* make loops by this module, unless the test suite has its own way."""
    if sys.version_info >= (3, 13):
        own = case.loop_factory
        with mock.patch.object(case, "loop_factory", own or staticmethod(new_event_loop)):
            yield
        return
    before = asyncio.get_event_loop_policy()
    if type(before) is asyncio.DefaultEventLoopPolicy:
        asyncio.set_event_loop_policy(_Policy())
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(before)


def _policy() -> EventLoopPolicy:
    return _Policy()


def _backend(request: pytest.FixtureRequest) -> object:
    # A test that was marked after its collection has a parameter.
    chosen: object = getattr(request, "param", "asyncio")
    if chosen == "asyncio":
        return "asyncio", {"loop_factory": new_event_loop}
    return chosen
