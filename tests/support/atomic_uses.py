"""The atomic operations in the package's sources, with their orders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.sources import LIBRARY, PACKAGE

HEADER = PACKAGE / "_kernel" / "atomics.h"
DECLARATIONS = HEADER.with_suffix(".pxd")
ORDERS = {
    "relaxed": "relaxed",
    "acquire": "acquire",
    "release": "release",
    "acq_rel": "acquire-release",
    "seq_cst": "sequential",
}
# Operations that do not name their order: of C, and of liburing.
UNNAMED = {
    "atomic_load": "sequential",
    "atomic_store": "sequential",
    "io_uring_smp_load_acquire": "acquire",
    "io_uring_smp_store_release": "release",
    "io_uring_get_sqe": "acquire",
    "io_uring_buf_ring_advance": "release",
}
NAMED = r"__atomic_\w+|atomic_\w+"


class Use(NamedTuple):
    """An operation on a variable or member in a file of the package; a fence is on `fence`."""

    file: str
    object: str
    operation: str
    order: str


def code_of(path: Path) -> str:
    """Return the text of a file without its comments."""
    text = path.read_text()
    if path.suffix in (".h", ".c") or '"""' not in text:
        return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"/\*.*?\*/|#(?!include|define|if|el|en).*", "", text)


def strongest(text: str) -> str:
    """Return the order that a call names; the first one of an exchange is that of its success."""
    found = re.search(r"(?:__ATOMIC|memory_order)_(\w+)", text)
    assert found is not None, text
    return ORDERS[found[1].lower()]


def defined() -> dict[str, str]:
    """Return the orders of the operations of atomics.h, and of their names in Cython."""
    orders: dict[str, str] = {}
    lines = code_of(HEADER).replace("\\\n", "").split("\n#define ")
    for text in [part for line in lines for part in line.split("\nstatic inline ")]:
        name = re.search(r"\b(uring_\w+)\(", text)
        if name is not None and name[1] not in orders:
            names_one = "__ATOMIC" in text
            orders[name[1]] = strongest(text) if names_one else orders["uring_count"]
    for path in (DECLARATIONS, PACKAGE / "_transport" / "transport.pxd"):
        for alias, name in re.findall(r'(\w+) "(uring_\w+)" \(', path.read_text()):
            orders[alias] = orders[name]
    return orders


def arguments_at(text: str, begin: int) -> tuple[str, str]:
    """Return the first argument, and all of them, of a call whose arguments begin there."""
    depth, first = 0, -1
    for index in range(begin, len(text)):
        if text[index] in "([":
            depth += 1
        elif text[index] in ")]":
            depth -= 1
        if depth < 0 or (depth == 0 and text[index] == ","):
            first = index if first < 0 else first
        if depth < 0:
            return text[begin:first], text[begin:index]
    raise AssertionError(text[begin : begin + 80])


def object_of(argument: str) -> str:
    """Return the last name of an expression: `began_ns` of `&times->began_ns`."""
    names: list[str] = re.findall(r"[A-Za-z_]\w*", re.sub(r"\[[^\]]*\]", "", argument))
    return names[-1]


def uses_in(path: Path, orders: dict[str, str]) -> Iterator[Use]:
    text = code_of(path)
    pattern = rf"(?<![\w\"])({'|'.join((*orders, *UNNAMED, NAMED))})\("
    for found in re.finditer(pattern, text):
        first, every = arguments_at(text, found.end())
        if text[found.end() :].startswith("const ") or re.match(r"\w+ \*\w+[,)]", first):
            continue
        name = found[1]
        order = orders.get(name) or UNNAMED.get(name) or strongest(every)
        what = "fence" if "fence" in name else object_of(first)
        yield Use(str(path.relative_to(PACKAGE)), what, name, order)


def uses() -> set[Use]:
    """Return all uses of atomic operations in the package, but not those that define them."""
    orders = defined()
    files = [path for path in LIBRARY if path.suffix in (".c", ".h", ".pyx", ".pxd")]
    return {
        use for path in files if path not in (HEADER, DECLARATIONS) for use in uses_in(path, orders)
    }
