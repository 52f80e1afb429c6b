"""Whether a function of the standard library is still the one that it was."""

from __future__ import annotations

import json
import socket
import types
from collections.abc import Callable
from typing import Any

import pytest

from uringloop._cpython.stdlib import Original


class Wrapper:
    """Passes on what is asked of it, like a wrapper of wrapt."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


def copied(function: types.FunctionType) -> types.FunctionType:
    return types.FunctionType(function.__code__, {})


def test_a_function_in_its_place() -> None:
    assert Original(json, "dumps").is_in_place()
    assert Original(json.JSONEncoder, "encode").is_in_place()
    assert Original(socket, "getnameinfo").is_in_place()
    assert not Original(json, "no_such_name").is_in_place()
    # What a module has imported from another one may be anybody's.
    assert not Original(socket, "IntEnum").is_in_place()


@pytest.mark.parametrize("make", [Wrapper, copied, lambda function: lambda: None])
@pytest.mark.parametrize("owner", [json, json.JSONEncoder])
def test_a_function_that_is_replaced(
    monkeypatch: pytest.MonkeyPatch, owner: Any, make: Callable[[Any], Any]
) -> None:
    name = "dumps" if owner is json else "encode"
    before = Original(owner, name)
    monkeypatch.setattr(owner, name, make(vars(owner)[name]))
    assert not before.is_in_place()
    assert not Original(owner, name).is_in_place()
    monkeypatch.undo()
    assert before.is_in_place()


def test_a_function_with_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Original(json, "dumps")
    monkeypatch.setattr(json.dumps, "__code__", (lambda *args: "traced").__code__)
    assert not before.is_in_place()
    monkeypatch.undo()
    assert before.is_in_place()


def test_a_function_with_other_code_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Original(json, "dumps", uses="JSONEncoder").is_in_place()
    monkeypatch.setattr(json.dumps, "__code__", (lambda *args: "traced").__code__)
    assert not Original(json, "dumps", uses="JSONEncoder").is_in_place()


def test_a_function_that_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Original(json, "dumps")
    monkeypatch.delattr(json, "dumps")
    assert not before.is_in_place()
