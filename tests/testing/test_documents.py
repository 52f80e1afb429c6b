"""The pages about testing name every fault and every option."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from uringloop import testing

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "".join(path.read_text() for path in DOCS.glob("*/test*.md"))


def test_every_fault_is_documented() -> None:
    fields = {field.name for field in dataclasses.fields(testing.Faults)}
    assert fields - set(re.findall(r"`(\w+)`", TEXT)) == set()


def test_every_option_of_the_loop_is_documented() -> None:
    options = set(inspect.signature(testing.Loop).parameters) - {"seed"}
    documented = set(re.findall(r"\b(\w+)=", TEXT)) | set(re.findall(r"`(\w+)`", TEXT))
    assert options - documented == set()


def test_every_method_of_a_network_is_documented() -> None:
    methods = {"set_route", "partition", "heal", "kill", "reset", "on"}
    assert methods - set(re.findall(r"network\.(\w+)", TEXT)) == set()
