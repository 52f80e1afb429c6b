"""Tests on this loop: `pytest -p uringloop.pytest_plugin`, or this name in `pytest_plugins`.

It tells pytest-asyncio and anyio's plugin, whichever is there, which loop to make; the header of
pytest's report says which ring that is on. What a suite says itself, by a fixture or by a hook, is
what holds. No entry point leads here: having the package installed changes no suite.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Mapping

import pytest

import uringloop
from uringloop.policy import EventLoopPolicy, new_event_loop, ring_here

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

# The fixture that a suite may have instead of the hook, and that of anyio.
POLICY = "event_loop_policy"
BACKEND = "anyio_backend"

# anyio's plugin as an entry point, and as an option.
ANYIO = ("anyio", "anyio.pytest_plugin")


@pytest.hookimpl(optionalhook=True, trylast=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Tell pytest-asyncio from 1.4 on which loop to make."""
    if _has_own_policy(item):
        # asyncio asks the policy, which pytest-asyncio has set by then.
        return {POLICY: asyncio.new_event_loop}
    return {"uringloop": new_event_loop}


def _has_own_policy(item: pytest.Item) -> bool:
    information = getattr(item, "_fixtureinfo", None)
    if information is None:
        return False
    fixtures = information.name2fixturedefs.get(POLICY, ())
    return any(not fixture.func.__module__.startswith("pytest_asyncio.") for fixture in fixtures)


def _register(config: pytest.Config, name: str, fixture: object) -> None:
    """Register *fixture* late: of two plugins' the later one's holds, and this may be the first."""
    plugin = types.ModuleType(f"{__name__}.{name}")
    setattr(plugin, name, fixture)
    config.pluginmanager.register(plugin, plugin.__name__)


def pytest_report_header() -> str:
    """Tell which ring the loops of this run are on, and why."""
    return f"uringloop: {uringloop.__version__}, on {ring_here()}"


def pytest_configure(config: pytest.Config) -> None:
    if not config.hook.pytest_asyncio_loop_factories.has_spec():
        # What pytest-asyncio before 1.4 asks for.
        _register(config, POLICY, pytest.fixture(_policy, scope="session", name=POLICY))
    if any(map(config.pluginmanager.has_plugin, ANYIO)):
        # The scope is that of anyio's own.
        _register(config, BACKEND, pytest.fixture(_backend, scope="module", name=BACKEND))


def _policy() -> EventLoopPolicy:
    return EventLoopPolicy()


def _backend(request: pytest.FixtureRequest) -> object:
    # There is a parameter where a test was marked after it was collected.
    chosen: object = getattr(request, "param", "asyncio")
    if chosen == "asyncio":
        return "asyncio", {"loop_factory": new_event_loop}
    return chosen
