"""Everything that asyncio promises is there: each probe of benchmarks/parity.py on this loop."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "parity.py"
    spec = importlib.util.spec_from_file_location("parity", path)
    assert spec is not None
    assert spec.loader is not None
    # Beside it are its probes.
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules["parity"] = module
    spec.loader.exec_module(module)
    return module


parity = load()


@pytest.mark.parametrize("name", parity.PROBES)
def test_the_loop_does(name: str) -> None:
    assert parity.outcome(name, "uringloop") == "yes"


def test_a_feature_that_is_missing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # A probe that could not fail would say nothing: here is a loop that lacks one.
    if importlib.util.find_spec("uvloop") is None:
        pytest.skip("needs uvloop: pip install '.[bench]'")
    assert parity.outcome("sock_sendto, sock_recvfrom, sock_recvfrom_into", "uvloop").startswith(
        "no"
    )
