"""Importing the package: the modules that are loaded, public names, the compiled modules."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import pickle
import platform
import pydoc
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support import seccomp
from support.roles import run_script
from support.sources import LIBRARY, module_of

import uringloop
from uringloop._cpython import loading

PACKAGE = Path(uringloop.__file__).parent

# Prints how many blocks of 256 KiB, a large receive, malloc() maps instead of taking them from its
# heap: before the shared file is loaded, and after. Nothing else is imported, as the compiler of
# Python code may free a large block.
BLOCKS_MAPPED = """
import ctypes, sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec

class Mallinfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo
libc.malloc.restype = ctypes.c_void_p

def mapped():
    before = libc.mallinfo2().hblks
    assert libc.malloc(ctypes.c_size_t(256 * 1024))
    return libc.mallinfo2().hblks - before

before = mapped()
loader = ExtensionFileLoader("uringloop._compiled", sys.argv[1])
loader.exec_module(loader.create_module(ModuleSpec(loader.name, loader, origin=loader.path)))
print(before, mapped())
"""

LOADED = "import sys, uringloop; print(*(m for m in sys.modules if m.startswith('uringloop.')))"
INTERRUPTED = """
from importlib.machinery import ExtensionFileLoader
load = ExtensionFileLoader.exec_module

def interrupted(loader, module):
    if module.__name__ == "uringloop._net.stream_transport":
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

# The module's name and its way to report an exception differ between versions of Python.
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


def loaded_by_an_import() -> set[str]:
    done = run_script(LOADED)
    assert done.returncode == 0, done.stderr
    return {name.removeprefix("uringloop.") for name in done.stdout.split()}


def test_an_import_loads_every_module_of_a_loop() -> None:
    # `uringloop.fs` is imported on first use: its imports take longer than all that a loop needs.
    python = {path.stem for path in PACKAGE.glob("*.py")} - {
        "__init__",
        "__main__",
        "as_uvloop",
        "doctor",
        "fs",
        "prometheus",
        "pytest_plugin",
        "sockets",
        "tempfile",
        "threads",
        "tls",
        "top",
    }
    # The modules of private packages, except those that are loaded on first use.
    private = {path for path in LIBRARY if path.suffix in (".py", ".pyx")}
    private = {path for path in private if path.parent.name.startswith("_")}
    apart = ("_as_uvloop", "_pyinstaller")
    private = {p for p in private if p.parent.name not in apart}
    names = {f"{path.parent.name}.{path.stem}" for path in private}
    names -= {"_ring.limits", "_ring.system_calls"}
    names -= {"_cpython.gil", "_loop.stats"}
    packages = {path.parent.name for path in private}
    names -= {f"{package}.__init__" for package in packages}
    assert loaded_by_an_import() == python | names | packages | {"_compiled"}


def test_fs_is_imported_on_first_use() -> None:
    done = run_script(
        "import sys, uringloop\n"
        "assert 'uringloop.fs' not in sys.modules\n"
        "print(uringloop.fs.stat.__name__, uringloop.fs is sys.modules['uringloop.fs'])\n"
        "uringloop.nothing"
    )
    assert done.stdout.split() == ["stat", "True"]
    assert "AttributeError: module 'uringloop' has no attribute 'nothing'" in done.stderr


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's malloc")
def test_large_blocks_come_from_the_heap_after_an_import() -> None:
    # The developer's settings of malloc would hold for the child, too.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))
    }
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS_MAPPED, loading.FILE],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    before, after = done.stdout.split()
    if before == "0":
        pytest.skip("something has freed a large block before, or malloc() is another one")
    assert after == "0"


def test_files_are_imported_on_first_use() -> None:
    done = run_script(
        "import sys, uringloop\n"
        "before = set(sys.modules)\n"
        "print(uringloop.open, *sorted(set(sys.modules) - before))"
    )
    assert done.stderr == ""
    assert "uringloop.files.open_file" in done.stdout.split()
    # Also where nothing has imported the package's names before.
    done = run_script("from uringloop.files.lines import LineFile; print(LineFile.__module__)")
    assert (done.stdout, done.stderr) == ("uringloop.files.lines\n", "")


THREADS_IMPORT = """
import threading, uringloop
names = ["BufferedFile", "RawFile", "TextFile", "connect_file", "open", "fs", "tempfile"] * 3
together = threading.Barrier(len(names))
def get(name):
    together.wait()
    getattr(uringloop, name)
threads = [threading.Thread(target=get, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_threads_may_import_the_files_at_the_same_time() -> None:
    for _ in range(5):
        done = run_script(THREADS_IMPORT)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_compiled_module_that_does_not_exist_is_not_found() -> None:
    assert importlib.util.find_spec("uringloop.files.nothing") is None
    assert importlib.util.find_spec("uringloop._nothing") is None


def test_public_names_are_listed_and_internals_are_not() -> None:
    names = dir(uringloop)
    assert names == sorted(names)
    assert set(uringloop.__all__) < set(names)
    submodules = set(names) - set(uringloop.__all__)
    # Submodules loaded with the package are internals; users import or run the others.
    loaded = {name.partition(".")[0] for name in loaded_by_an_import()}
    assert submodules.isdisjoint(loaded)
    assert {"fs", "tempfile", "tls", "monitor", "prometheus", "doctor", "top", "bench"} < submodules
    for name in names:
        assert getattr(uringloop, name) is not None


# Every public class and function, and every module in which users find more of them.
PUBLIC = [
    (module, name)
    for module in ("uringloop", "uringloop.fs", "uringloop.streams", "uringloop.testing")
    for name in importlib.import_module(module).__all__
    if name != "__version__"
]
# Written in Cython: their source is not installed.
COMPILED = {
    ("uringloop", "StreamTransport"),
    ("uringloop.streams", "StreamReader"),
    ("uringloop.streams", "StreamWriter"),
}


def definitions(path: str) -> dict[str, str]:
    """Return the source of each class and function of a file, with its decorators, by name.

    The last one counts: overloads stand before it.
    """
    text = Path(path).read_text()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            lines = text.splitlines(keepends=True)[first - 1 : node.end_lineno]
            found[node.name] = "".join(lines)
    return found


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=lambda value: value)
def test_the_source_of_a_public_object_is_found(module: str, name: str) -> None:
    public = getattr(importlib.import_module(module), name)
    if isinstance(public, ModuleType):
        assert inspect.getsource(public) == Path(str(public.__file__)).read_text()
        return
    assert pickle.loads(pickle.dumps(public)) is public
    assert public.__doc__
    assert name in pydoc.render_doc(public)
    if (module, name) in COMPILED:
        with pytest.raises((OSError, TypeError)):
            inspect.getsource(public)
        return
    defined = sys.modules[public.__module__]
    assert getattr(defined, name) is public
    assert inspect.getsourcefile(public) == defined.__file__
    assert inspect.getsource(public) == definitions(str(defined.__file__))[name]


def test_submodules_are_imported_on_first_use() -> None:
    names = sorted(set(dir(uringloop)) - set(uringloop.__all__))
    # Each in its own process, since some import others.
    for name in names:
        done = run_script(f"import uringloop\nprint(uringloop.{name}.__name__)")
        assert (done.stdout, done.stderr) == (f"uringloop.{name}\n", "")


def test_a_submodule_that_lacks_a_package_raises_attribute_error() -> None:
    done = run_script(
        "import sys, uringloop\n"
        "sys.modules['pytest'] = None\n"
        "print(hasattr(uringloop, 'pytest_plugin'))\n"
        "uringloop.pytest_plugin"
    )
    assert done.stdout == "False\n"
    assert "AttributeError: uringloop.pytest_plugin cannot be imported: " in done.stderr


def test_python_m_uringloop_lists_the_tools() -> None:
    done = seccomp.run("-m", "uringloop", URINGLOOP_BACKEND="soft")
    assert (done.returncode, done.stderr) == (0, "")
    first, second, empty, *tools = done.stdout.splitlines()
    assert f"uringloop {uringloop.__version__}," in first
    assert second == "Here a loop is on soft (asked for by URINGLOOP_BACKEND)."
    assert empty == ""
    for line in tools:
        python, option, module = line.split()[:3]
        assert (python, option) == ("python", "-m")
        assert importlib.util.find_spec(module) is not None
    assert {"uringloop.doctor", "uringloop.top", "uringloop.bench"} <= {
        line.split()[2] for line in tools
    }
    wrong = seccomp.run("-m", "uringloop", URINGLOOP_BACKEND="nonsense")
    assert (wrong.returncode, wrong.stderr) == (0, "")
    assert "no ring: URINGLOOP_BACKEND='nonsense'" in wrong.stdout


def test_every_compiled_module_can_be_loaded() -> None:
    sources = [path for path in LIBRARY if path.suffix == ".pyx" and path.parent.name != "bench"]
    assert sorted(loading.MODULES) == sorted(f"uringloop.{module_of(path)}" for path in sources)


@pytest.mark.parametrize("name", loading.MODULES)
def test_a_compiled_module_knows_its_name(name: str) -> None:
    module = importlib.import_module(name)
    package, _, attribute = name.rpartition(".")
    assert module is getattr(importlib.import_module(package), attribute)
    assert module.__name__ == name
    assert module.__package__ == package
    assert module.__file__ == loading.FILE
    spec = module.__spec__
    assert spec is not None
    assert (spec.name, spec.origin, spec.has_location) == (name, loading.FILE, True)
    assert module.__loader__ is spec.loader
    # The classes that the module defines can be pickled by its name.
    own = [value for value in vars(module).values() if isinstance(value, type)]
    own = [one for one in own if one.__module__ == module.__name__]
    assert [one for one in own if pickle.loads(pickle.dumps(one)) is not one] == []


@pytest.mark.parametrize(
    "name",
    sorted({n.rpartition(".")[0] for n in loading.MODULES if n.startswith(loading.NEEDED)}),
)
def test_a_package_whose_file_is_not_read_is_as_if_imported(name: str) -> None:
    made = importlib.import_module(name)
    assert made.__spec__ is not None
    usual = importlib.machinery.PathFinder.find_spec(name, uringloop.__path__)
    assert usual is not None
    assert (made.__name__, made.__package__, made.__file__) == (name, name, usual.origin)
    assert list(made.__path__) == usual.submodule_search_locations
    assert made.__spec__.submodule_search_locations == usual.submodule_search_locations
    assert (made.__spec__.name, made.__spec__.origin) == (usual.name, usual.origin)
    # The file has nothing but a docstring, so that the loader need not read it.
    assert made.__file__ is not None
    (only,) = ast.parse(Path(made.__file__).read_text()).body
    assert isinstance(only, ast.Expr)


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


def install_into(folder: Path) -> None:
    shutil.copytree(PACKAGE, folder / "uringloop", ignore=shutil.ignore_patterns("*.so", "*.pyx"))
    os.symlink(loading.FILE, folder / "uringloop" / Path(loading.FILE).name)


def import_after_replacement(folder: Path, setting: str) -> subprocess.CompletedProcess[str]:
    """Import files in a process whose package gets another shared file after its start."""
    install_into(folder)
    script = f"""
        import os, sys
        sys.path.insert(0, {str(folder)!r})
        import uringloop
        from uringloop._cpython import loading
        assert loading.FILE.startswith({str(folder)!r})
        os.unlink(loading.FILE)
        with open(loading.FILE, "wb") as file:
            file.write(b"not a shared object")
        {setting}
        async def read():
            async with uringloop.open("/proc/self/comm") as file:
                return await file.read()
        assert uringloop.run(read())
    """
    return run_script(script)


@pytest.mark.skipif("musl" in loading.FILE, reason="musl maps the new file")
def test_a_process_keeps_its_compiled_modules_when_the_package_is_replaced(tmp_path: Path) -> None:
    done = import_after_replacement(tmp_path, "")
    assert (done.returncode, done.stderr) == (0, "")


def test_modules_of_two_versions_are_not_mixed(tmp_path: Path) -> None:
    done = import_after_replacement(tmp_path, "loading.REOPENED = True")
    assert done.returncode == 1
    assert f"ImportError: {tmp_path}/uringloop was replaced while this process runs" in done.stderr
    assert done.stderr.endswith("restart the process\n")


def test_a_process_keeps_its_version_when_a_link_to_it_is_replaced(tmp_path: Path) -> None:
    for version in ("1", "2"):
        install_into(tmp_path / version)
    (tmp_path / "2" / "uringloop" / "files" / "open.py").write_text("of another version")
    (tmp_path / "current").symlink_to("1")
    (tmp_path / "next").symlink_to("2")
    script = f"""
        import os, sys
        os.chdir({str(tmp_path)!r})
        sys.path.insert(0, {str(tmp_path / "current")!r})
        import uringloop
        assert uringloop.__file__.startswith({str(tmp_path / "current")!r})
        os.rename("next", "current")
        async def read():
            async with uringloop.open("/proc/self/comm") as file:
                return await file.read()
        assert uringloop.run(read())
        for name in ("uringloop.files.open", "uringloop.files.operation", "uringloop.monitor"):
            __import__(name)
            print(sys.modules[name].__file__)
    """
    done = run_script(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 3
    assert all(line.startswith(f"{tmp_path}/1/") for line in done.stdout.splitlines())
