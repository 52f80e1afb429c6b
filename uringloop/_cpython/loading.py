"""Loads the compiled modules, which share one file: a file for each made the import 2 ms longer.

Each is a module of its own; only ``__file__`` is the same. Importing this module loads all of them
at once: a process may have no file system or no descriptors left when it first needs one.
"""

import importlib
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from types import ModuleType

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILE = f"{PACKAGE}/_compiled{EXTENSION_SUFFIXES[0]}"


def load(name: str) -> ModuleType:
    """Make the module *name* from its part of the file, as an import statement would."""
    loader = ExtensionFileLoader(name, FILE)
    spec = ModuleSpec(name, loader, origin=FILE)
    spec.has_location = True
    module = loader.create_module(spec)
    module.__spec__ = spec
    package, _, attribute = name.rpartition(".")
    setattr(importlib.import_module(package), attribute, module)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def load_all() -> tuple[str, ...]:
    """Load every compiled module and return their names, in the order of their imports."""
    # Python searches the current directory first, and finds a clone before an installed package.
    if not os.path.exists(FILE):
        raise ImportError(
            f"{PACKAGE} has no compiled modules for this Python, as a clone of the sources has "
            "none: start Python in another directory or with -P, or compile them here with "
            "`pip install --editable .`",
            name=__name__,
            path=FILE,
        )
    modules: tuple[str, ...] = load("uringloop._compiled").MODULES
    for name in modules:
        load(name)
    return modules


MODULES = load_all()
