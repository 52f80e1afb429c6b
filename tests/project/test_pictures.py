"""The pictures of the architecture page are those that docs/pictures.py draws."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from support.core import ORDER
from support.sources import ROOT

SCRIPT = ROOT / "docs" / "pictures.py"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses looks up annotations in sys.modules.
    sys.modules["pictures"] = module
    spec.loader.exec_module(module)
    return module


PICTURES = loaded()


@pytest.mark.parametrize("name", sorted(PICTURES.drawn()))
def test_a_picture_is_up_to_date(name: str) -> None:
    assert (PICTURES.FOLDER / name).read_text() == PICTURES.drawn()[name]


def test_the_picture_shows_every_package_in_order() -> None:
    shown = [name for names, _ in PICTURES.ROWS for name in names]
    assert sorted({*shown, *PICTURES.NOT_SHOWN}) == sorted(ORDER)
    # From the top down, in the order of the list.
    private = [
        [ORDER.index(name) for name in names]
        for names, _ in PICTURES.ROWS
        if names[0].startswith("_") and not names[0].startswith("__")
    ]
    lowest = [min(places) for places in private]
    assert lowest == sorted(lowest, reverse=True)
