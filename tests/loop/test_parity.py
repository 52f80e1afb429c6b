"""Each probe of benchmarks/parity.py, which cover all features of asyncio, passes on this loop."""

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
    # Its probes are modules in the same directory.
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules["parity"] = module
    spec.loader.exec_module(module)
    return module


parity = load()


@pytest.mark.parametrize("name", parity.PROBES)
def test_the_loop_passes_the_probe(name: str) -> None:
    assert parity.outcome(name, "uringloop") == "yes"


def test_a_probe_detects_a_missing_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    # A probe that cannot fail proves nothing; uvloop lacks this feature.
    if importlib.util.find_spec("uvloop") is None:
        pytest.skip("needs uvloop: pip install '.[bench]'")
    assert parity.outcome("sock_sendto, sock_recvfrom, sock_recvfrom_into", "uvloop").startswith(
        "no"
    )
