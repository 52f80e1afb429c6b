"""grpcio's asyncio API: its poller thread wakes the loop by a descriptor that the loop watches."""

from __future__ import annotations

import asyncio

import pytest
from programs import HERE, needs_elsewhere, process, python

import uringloop

needs_elsewhere("grpc")


@pytest.mark.slow
@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, uringloop.Loop])
def test_calls_and_streams_are_answered(loop: type) -> None:
    name = loop.__module__.partition(".")[0]
    # The program imports modules of its own folder.
    beside = {"PYTHONSAFEPATH": ""}
    with process(python(str(HERE / "grpc_program.py"), name), environment=beside) as running:
        assert running.wait() == 0, running.output
        assert f"all answered on {loop.__module__}" in running.output
