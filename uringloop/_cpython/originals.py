"""Functions of the standard library that compiled code stands for, as long as nobody changes them.

Tests, tracers and gevent put a function of their own in the place of one (`setattr`, wrapt), or
change its code (ddtrace). Such a program expects the function to be called.
"""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FunctionType, ModuleType


class Original:
    """A function of a module or a class, as it was when this object was made."""

    def __init__(self, owner: ModuleType | type, name: str) -> None:
        home = owner if isinstance(owner, ModuleType) else sys.modules[owner.__module__]
        function = vars(owner).get(name)
        self._places = vars(owner)
        self._name = name
        self._function = function
        self._code = getattr(function, "__code__", None)
        # A wrapper passes on the attributes of what it wraps, but has a type of its own.
        self._was_own = type(function) is BuiltinFunctionType or (
            type(function) is FunctionType and function.__globals__ is vars(home)
        )

    def is_in_place(self) -> bool:
        """Return whether the owner has it, as the standard library defines it."""
        function = self._function
        return (
            self._was_own
            and self._places.get(self._name) is function
            and getattr(function, "__code__", None) is self._code
        )
