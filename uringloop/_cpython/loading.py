"""Load the compiled modules, which share one file: with a file for each the import took 2 ms more.

Each is a module of its own; only ``__file__`` is the same. Importing this module loads at once all
those that a loop needs, the modules of the private packages: a process may have no file system or
no descriptors left when it first needs one of them. The others, a quarter, are loaded when a
program first imports them, as `uringloop.open` imports those of files.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    ExtensionFileLoader,
    ModuleSpec,
    SourceFileLoader,
)
from types import ModuleType

# The folder itself: if an upgrade replaces a link in its path, this process still imports parts of
# the version that runs.
PACKAGE = os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The build's name is the first one; Nuitka takes the last one, which has only ".so".
FILES = [f"{PACKAGE}/_compiled{suffix}" for suffix in EXTENSION_SUFFIXES]
FILE = next(filter(os.path.exists, FILES), FILES[0])
# The names of the modules that a loop needs begin like this.
NEEDED = "uringloop._"
# Whether the C library opens the file anew each time: glibc finds the mapped one by its path.
REOPENED = "musl" in FILE


def package(name: str) -> ModuleType:
    """Return the package *name*. Not reading its `__init__.py`, a docstring, saves 0.2 ms."""
    module = sys.modules.get(name)
    if module is None:
        parent, _, attribute = name.rpartition(".")
        folder = f"{PACKAGE}/{attribute}"
        loader = SourceFileLoader(name, f"{folder}/__init__.py")
        spec = ModuleSpec(name, loader, origin=loader.path, is_package=True)
        spec.submodule_search_locations = [folder]
        spec.has_location = True
        module = ModuleType(name)
        module.__spec__ = spec
        module.__loader__ = loader
        module.__file__ = loader.path
        module.__package__ = name
        module.__path__ = [folder]
        sys.modules[name] = module
        setattr(sys.modules[parent], attribute, module)
    return module


def specify(name: str, loader: ExtensionFileLoader) -> ModuleSpec:
    """Return the spec of the module *name*, which is in the shared file."""
    spec = ModuleSpec(name, loader, origin=FILE)
    spec.has_location = True
    return spec


def load(name: str) -> ModuleType:
    """Load the module *name* from the shared file, as an import statement would."""
    loader = ExtensionFileLoader(name, FILE)
    spec = specify(name, loader)
    module = loader.create_module(spec)
    module.__spec__ = spec
    parent, _, attribute = name.rpartition(".")
    setattr(package(parent), attribute, module)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


class LaterFinder:
    """Finds the modules that are loaded when a program imports them."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith(NEEDED) or name not in MODULES:
            return None
        if REOPENED and os.stat(FILE).st_ino != INODE:
            raise ImportError(
                f"{PACKAGE} was replaced while this process runs, perhaps by another version, and "
                f"{name} does not match the modules that are loaded already: restart the process",
                name=name,
                path=FILE,
            )
        return specify(name, ExtensionFileLoader(name, FILE))


def cause_of_absence() -> str:
    """Return why the shared file may be absent, and what to do about it."""
    folder = os.path.dirname(PACKAGE)
    if getattr(sys, "frozen", False) or "__compiled__" in globals():
        return (
            "this frozen program was made without them. If it was made in a clone of uringloop's "
            "sources, make it in another folder. Otherwise add `--collect-all uringloop` for "
            "PyInstaller, `--include-package=uringloop` for Nuitka, or `uringloop` to the packages "
            "for cx_Freeze"
        )
    if not os.path.isdir(PACKAGE):
        return (
            "it is in an archive, from which Python loads no compiled modules: unpack the archive "
            "first, as shiv and PEX do, or install the package into a folder"
        )
    if os.path.exists(f"{PACKAGE}/_turn/turn.pyx"):
        return (
            f"{folder} is a clone of the sources, which Python searches first: start the program "
            "in another folder to use the installed package (`python -P` does not search the "
            "clone, but uvicorn and gunicorn do), or compile the modules here with "
            "`pip install --editable .`"
        )
    others = [name for name in os.listdir(PACKAGE) if name.startswith("_compiled.cpython")]
    return (
        f"it was installed for another Python ({', '.join(others) or 'or in part'}): install it "
        f"again with `{sys.executable} -m pip install --force-reinstall`"
    )


def load_all() -> tuple[str, ...]:
    """Load what a loop needs; return the names of all modules, in the order of their imports."""
    if not os.path.exists(FILE):
        raise ImportError(
            f"{PACKAGE} has no compiled modules for this Python "
            f"({os.path.basename(FILE)}): {cause_of_absence()}",
            name=__name__,
            path=FILE,
        )
    modules: tuple[str, ...] = load("uringloop._compiled").MODULES
    for name in modules:
        if name.startswith(NEEDED):
            load(name)
    return modules


MODULES = load_all()
sys.modules["uringloop"].__path__[:] = [PACKAGE]
INODE = os.stat(FILE).st_ino
# After Python's own finders, which look for a file and find none.
sys.meta_path.append(LaterFinder)
