"""Functions of the standard library that compiled code stands for, while nobody changes them.

Tests, tracers and gevent put a function of their own in the place of one (`setattr`, wrapt), or
change its code (ddtrace). Such a program expects the function to be called.
"""

import sys
from types import BuiltinFunctionType, FunctionType, ModuleType


cdef class Original:
    """A function of a module or a class, as it was when this object was made."""

    def __init__(self, owner, str name):
        home = owner if isinstance(owner, ModuleType) else sys.modules[owner.__module__]
        self.places = vars(owner)
        self.name = name
        self.function = function = self.places.get(name)
        self.code = getattr(function, "__code__", None)
        # A wrapper passes on the attributes of what it wraps, but has a type of its own.
        self.was_own = type(function) is BuiltinFunctionType or (
            type(function) is FunctionType and function.__globals__ is vars(home))

    def is_in_place(self):
        """Return whether the owner has it, as the standard library defines it."""
        function = self.function
        return (self.was_own and self.places.get(self.name) is function
                and getattr(function, "__code__", None) is self.code)
