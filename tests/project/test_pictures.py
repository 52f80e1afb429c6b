"""The pictures of the architecture page: as docs/pictures.py draws them, with every package."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from support.sources import ROOT
from test_imports import ORDER

SCRIPT = ROOT / "docs" / "pictures.py"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Where dataclasses look up their annotations.
    sys.modules["pictures"] = module
    spec.loader.exec_module(module)
    return module


PICTURES = loaded()


@pytest.mark.parametrize("name", sorted(PICTURES.drawn()))
def test_a_picture_is_what_the_script_draws(name: str) -> None:
    assert (PICTURES.FOLDER / name).read_text() == PICTURES.drawn()[name]


def test_the_picture_has_every_package_in_its_place() -> None:
    shown = [name for names, _ in PICTURES.ROWS for name in names]
    assert sorted({*shown, *PICTURES.NOT_SHOWN}) == sorted(ORDER)
    # From the top down, as the list: what is in a row is not above what is in a higher one.
    private = [
        [ORDER.index(name) for name in names]
        for names, _ in PICTURES.ROWS
        if names[0].startswith("_") and not names[0].startswith("__")
    ]
    lowest = [min(places) for places in private]
    assert lowest == sorted(lowest, reverse=True)
