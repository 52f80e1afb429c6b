"""Fixtures that more than one folder of tests uses, among them the loops under test.

``each_loop`` runs a test once on stock asyncio, the oracle, and once on uringloop: such a test
states a contract of asyncio. ``loop`` is uringloop only. ``each_virtual_loop`` and ``virtual_loop``
do the same in virtual time, uringloop's loop for tests under some seeds: for the logic above the
loop, where a test would wait for time to pass. All these fixtures compare the open file
descriptors and the running threads before and after the test, and fail it if one is left behind.
Functions and classes that tests import are in tests/support.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import machine
from support.leaks import leak_checked
from support.loops import FACTORIES, LoopFactory
from support.sites import Site
from support.tls_contexts import Contexts, client_context, server_context
from support.virtual_time import SEEDS, Oracle, new_virtual_loop

import uringloop

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs with SIGINT ignored, and children inherit that; the tests need
    # KeyboardInterrupt, here and in children.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def restored_sigterm() -> Iterator[None]:
    """Restore the SIGTERM handler, which the benchmarks' command lines replace."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> Iterator[None]:
    """Exclude objects that exist before a module's first test from garbage collection.

    Most tests call `gc.collect()` twice or more. Traversing all of pytest's objects each time would
    take three quarters of the whole run.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _machine() -> Iterator[None]:
    """Have no test of another process switch io_uring off meanwhile."""
    with machine.left_alone():
        yield


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening TCP socket on loopback, for tests that share it between servers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as sock:
        yield sock


@pytest.fixture(params=list(FACTORIES))
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    """A factory of loops: stock asyncio's, then uringloop's."""
    return FACTORIES[request.param]


@pytest.fixture
def each_loop(loop_factory: LoopFactory) -> Iterator[asyncio.AbstractEventLoop]:
    """A new loop of each kind, checked for leaks afterwards."""
    yield from leak_checked(loop_factory)


@pytest.fixture
def loop() -> Iterator[uringloop.Loop]:
    """A new uringloop loop, checked for leaks afterwards."""
    for created in leak_checked(uringloop.new_event_loop):
        assert isinstance(created, uringloop.Loop)
        yield created


@pytest.fixture(params=SEEDS, ids="seed{}".format)
def virtual_loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    """A new loop for tests, under each seed, checked for leaks afterwards."""
    yield from leak_checked(lambda: new_virtual_loop(request.param))


@pytest.fixture(params=["asyncio", *(f"seed{seed}" for seed in SEEDS)])
def each_virtual_loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    """Stock asyncio in virtual time, then a loop for tests under each seed; checked for leaks."""
    if request.param == "asyncio":
        yield from leak_checked(Oracle)
    else:
        yield from leak_checked(lambda: new_virtual_loop(int(request.param.removeprefix("seed"))))


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An empty folder: one in pytest's temporary folder, one on tmpfs in /dev/shm."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("this machine has no file system in memory")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def contexts() -> Contexts:
    """A server's and a client's TLS context that trust each other; tests must not modify them."""
    return Contexts(server_context(), client_context())


@pytest.fixture(params=["tcp", "given", "unix", "tls"])
def site(
    request: pytest.FixtureRequest, loop: uringloop.Loop, tmp_path: Path, contexts: Contexts
) -> Site:
    """A server of each kind."""
    return Site(loop, request.param, tmp_path, contexts)


@pytest.fixture(params=["tcp", "given", "unix"])
def plain(
    request: pytest.FixtureRequest, loop: uringloop.Loop, tmp_path: Path, contexts: Contexts
) -> Site:
    """A server without TLS: its protocol has a connection as soon as it is accepted."""
    return Site(loop, request.param, tmp_path, contexts)
