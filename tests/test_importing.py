"""Importing the package: what it loads, and where the compiled modules come from."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path

import pytest
from roles import run_script

import uringloop
from uringloop import _core

PACKAGE = Path(uringloop.__file__).parent

LOADED = "import sys, uringloop; print(*(m for m in sys.modules if m.startswith('uringloop.')))"
INTERRUPTED = """
from importlib.machinery import ExtensionFileLoader
load = ExtensionFileLoader.exec_module

def interrupted(loader, module):
    if module.__name__ == "uringloop._core.stream":
        raise KeyboardInterrupt
    load(loader, module)

ExtensionFileLoader.exec_module = interrupted
try:
    import uringloop
except KeyboardInterrupt:
    ExtensionFileLoader.exec_module = load
import uringloop

async def main():
    return "ran"

print(uringloop.run(main()))
"""

# The modules have different names, and tell of an exception in different ways.
SECOND_INTERPRETER = """
import asyncio, sys, uringloop
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
else:
    import _xxsubinterpreters as interpreters
second = interpreters.create()
script = f"import sys; sys.path[:0] = {sys.path}; import uringloop"
try:
    failure = interpreters.run_string(second, script)
    print(failure.formatted)
except interpreters.RunFailedError as exc:
    print(exc)
print(uringloop.run(asyncio.sleep(0, "ran")))
"""


def test_an_import_loads_every_module_of_a_loop() -> None:
    done = run_script(LOADED)
    assert done.returncode == 0, done.stderr
    # What `uringloop.fs` needs takes longer than all of a loop: imported when it is asked for.
    python = {path.stem for path in PACKAGE.glob("*.py")} - {
        "__init__",
        "as_uvloop",
        "doctor",
        "fs",
        "folders",
        "monitor",
        "prometheus",
        "pytest_plugin",
        "tempfile",
        "top",
        "views",
        "watching",
    }
    stubs = {f"_core.{path.stem}" for path in (PACKAGE / "_core").glob("*.pyi")}
    loaded = {name.removeprefix("uringloop.") for name in done.stdout.split()}
    assert loaded == python | stubs | {"_core"}


def test_the_functions_of_paths_come_when_they_are_asked_for() -> None:
    done = run_script(
        "import sys, uringloop\n"
        "assert 'uringloop.fs' not in sys.modules\n"
        "print(uringloop.fs.stat.__name__, uringloop.fs is sys.modules['uringloop.fs'])\n"
        "uringloop.nothing"
    )
    assert done.stdout.split() == ["stat", "True"]
    assert "AttributeError: module 'uringloop' has no attribute 'nothing'" in done.stderr


@pytest.mark.parametrize("name", _core.MODULES)
def test_a_compiled_module_knows_its_name(name: str) -> None:
    module = importlib.import_module(f"uringloop._core.{name}")
    assert module is getattr(_core, name)
    assert module.__name__ == f"uringloop._core.{name}"
    assert module.__package__ == "uringloop._core"
    assert module.__file__ == _core.FILE
    spec = module.__spec__
    assert spec is not None
    assert (spec.name, spec.origin, spec.has_location) == (module.__name__, _core.FILE, True)
    assert module.__loader__ is spec.loader
    # What it defines bears its name, and is found again by it.
    own = [value for value in vars(module).values() if isinstance(value, type)]
    own = [one for one in own if one.__module__ == module.__name__]
    assert [one for one in own if pickle.loads(pickle.dumps(one)) is not one] == []


def test_an_interrupted_import_can_be_tried_again() -> None:
    done = run_script(INTERRUPTED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ran\n"


def test_a_second_interpreter_of_the_process_is_refused() -> None:
    done = run_script(SECOND_INTERPRETER)
    assert done.returncode == 0, done.stderr
    refusal, ran = done.stdout.splitlines()
    assert "ImportError" in refusal
    assert "interpreter" in refusal
    assert ran == "ran"
