"""Each probe of benchmarks/parity, which cover all features of asyncio, passes on this loop."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

import uringloop

# The packages of this folder are imported by name.
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
parity = importlib.import_module("parity.cli")


@pytest.mark.parametrize("name", parity.PROBES)
def test_the_loop_passes_the_probe(name: str) -> None:
    assert parity.outcome(name, "uringloop") == "yes"


def test_a_probe_detects_a_missing_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    # Shows that a probe can fail: uvloop lacks this feature.
    if importlib.util.find_spec("uvloop") is None:
        pytest.skip("needs uvloop: pip install '.[bench]'")
    assert parity.outcome("sock_sendto, sock_recvfrom, sock_recvfrom_into", "uvloop").startswith(
        "no"
    )


def test_the_table_names_the_version_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parity, "PROBES", {})
    monkeypatch.setattr(sys, "argv", ["parity", "uringloop"])
    parity.main()
    assert f": uringloop {uringloop.__version__}." in capsys.readouterr().out
