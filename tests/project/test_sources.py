"""support.sources.constant(): the numbers of Cython files, for tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import sources

EXAMPLE = """\
LIMIT_NS = 1_000_000
cdef double WEIGHT = 1.0 / 64       # a sixty-fourth
cdef unsigned int ANY = 1 << 31
cdef enum:
    # A reason.
    SIZE = 16 * 1024
    SIZE_MAX = 2 * SIZE + (1 << 3)  # SIZE = 5
cpdef enum:
    LAST = SIZE_MAX - LIMIT_NS
"""


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "example.pyx").write_text(EXAMPLE)
    monkeypatch.setattr(sources, "PACKAGE", tmp_path)
    return "example.pyx"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LIMIT_NS", 1_000_000),
        ("WEIGHT", 0.015625),
        ("ANY", 2**31),
        ("SIZE", 16384),
        ("SIZE_MAX", 32776),
        ("LAST", -967224),
    ],
)
def test_a_constant_has_the_value_of_its_expression(example: str, name: str, value: float) -> None:
    found = sources.constant(example, name)
    assert (found, type(found)) == (value, type(value))


def test_an_unknown_constant_is_an_error(example: str) -> None:
    with pytest.raises(LookupError, match=r"^uringloop/example\.pyx has no constant MAX$"):
        sources.constant(example, "MAX")
