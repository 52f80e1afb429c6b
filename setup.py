"""Builds the compiled modules; the metadata is in pyproject.toml.

URINGLOOP_DEBUG=1 builds with asserts and debug symbols, URINGLOOP_COVERAGE=1 with line tracing,
URINGLOOP_CFLAGS adds compiler and linker flags (sanitizers).
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.modified import newer_group

LIBURING_MIN = (2, 3)
# Python 3.13 without the GIL was an experiment.
FREE_THREADED_MIN = (3, 14)
PACKAGE = Path("uringloop")
BENCH = PACKAGE / "bench"
MODULES_HEADER = Path("build/compiled_modules.h")
COVERAGE = os.environ.get("URINGLOOP_COVERAGE") == "1"
DEBUG = COVERAGE or os.environ.get("URINGLOOP_DEBUG") == "1"
# Where Cython writes its C files: all C files of the source tree are written by hand. They are the
# same for every Python and all flags of the C compiler, but differ with line tracing.
GENERATED = "build/cython-traced" if COVERAGE else "build/cython"
DIRECTIVES = {
    "language_level": 3,
    "auto_pickle": False,
    "autotestdict": False,
    "binding": False,
    "boundscheck": False,
    "cdivision": True,
    "embedsignature": True,
    "embedsignature.format": "clinic",
    "freethreading_compatible": True,
    "initializedcheck": False,
    "linetrace": COVERAGE,
    "wraparound": False,
}
# Imports at the top of a .pyx or .pxd; those within functions do not affect the order of loading.
IMPORTED = re.compile(r"^from (uringloop\.[\w.]+) c?import", re.MULTILINE)
HOW_TO_INSTALL = """\
To build uringloop, a C compiler, Python's header files and liburing {wanted} or newer are needed:
{problems}.
Install what is missing, and try again:

    Debian, Ubuntu     apt-get install gcc liburing-dev pkg-config python3-dev
    Fedora, RHEL       dnf install gcc liburing-devel pkgconf-pkg-config python3-devel
    Alpine             apk add gcc liburing-dev musl-dev pkgconf python3-dev
    Arch               pacman -S gcc liburing pkgconf
    from source        https://github.com/axboe/liburing: ./configure && make install
"""

PKG_CONFIG = os.environ.get("PKG_CONFIG", "pkg-config")


@functools.cache
def pkg_config(*arguments: str) -> str:
    done = subprocess.run([PKG_CONFIG, *arguments, "liburing"], capture_output=True, text=True)
    return done.stdout.strip()


def missing() -> list[str]:
    """Return what a build lacks, as sentences without full stops."""
    found = []
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    compiler = (shlex.split(command) or ["cc"])[0]
    if shutil.which(compiler) is None:
        found.append(f"the compiler {compiler} is not there")
    folders = [sysconfig.get_path("include"), sysconfig.get_config_var("INCLUDEPY")]
    if not any(Path(folder, "Python.h").exists() for folder in folders):
        found.append(f"{folders[0]}/Python.h is not there")
    if shutil.which(PKG_CONFIG) is None:
        found.append(f"{PKG_CONFIG}, which finds liburing, is not there")
    elif not (version := pkg_config("--modversion")):
        found.append(f"{PKG_CONFIG} does not find liburing")
    elif tuple(int(part) for part in version.split(".")[:2]) < LIBURING_MIN:
        found.append(f"liburing {version} is too old")
    return found


def liburing() -> dict[str, list[str]]:
    """Return arguments for the compiler and the linker; prefer the static library."""
    version = pkg_config("--modversion")
    archive = Path(pkg_config("--variable=libdir")) / "liburing.a"
    found = {"extra_compile_args": pkg_config("--cflags").split(), "extra_link_args": []}
    found["extra_compile_args"].append(f'-DURINGLOOP_LIBURING="{version}"')
    if archive.exists():
        found["extra_objects"] = [str(archive)]
    else:
        found["extra_link_args"] += pkg_config("--libs").split()
    return found


def module_name(source: Path) -> str:
    return ".".join(source.with_suffix("").parts)


def load_order(sources: list[Path]) -> list[Path]:
    """Sort *sources* so that each module comes after the modules that it imports."""
    files = {module_name(source): source for source in sources}
    if len({source.stem for source in sources}) != len(sources):
        raise SystemExit("two compiled modules have the same name: one PyInit function for both")
    order: list[str] = []

    def visit(name: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            raise SystemExit("modules import each other: " + " -> ".join((*importers, name)))
        if name in order:
            return
        declarations = files[name].with_suffix(".pxd")
        for imported in IMPORTED.findall(files[name].read_text() + declarations.read_text()):
            if imported in files and imported != name:
                visit(imported, (*importers, name))
        order.append(name)

    for name in files:
        visit(name, ())
    return [files[name] for name in order]


def write_modules_header(sources: list[Path]) -> None:
    """Write the list of modules for `uringloop/_cpython/compiled.c`, if it has changed."""
    names = ", \\\n".join(f'    "{module_name(source)}"' for source in sources)
    text = f"#define URINGLOOP_COMPILED_MODULES \\\n{names}\n"
    MODULES_HEADER.parent.mkdir(exist_ok=True)
    if not MODULES_HEADER.exists() or MODULES_HEADER.read_text() != text:
        MODULES_HEADER.write_text(text)


def extensions() -> list[Extension]:
    """Return the two files to build: the package's modules, and the benchmark's load generator."""
    if problems := missing():
        wanted = ".".join(map(str, LIBURING_MIN))
        raise SystemExit("\n" + HOW_TO_INSTALL.format(wanted=wanted, problems="; ".join(problems)))
    options = liburing()
    cflags = ["-fvisibility=hidden", "-Wall", "-Wextra", "-Werror=implicit-function-declaration"]
    # Code that Cython generates would cause these warnings.
    cflags += ["-Wno-unused-parameter", "-Wno-unused-function", "-Wno-missing-field-initializers"]
    cflags += ["-Wno-cast-function-type"]
    for header in ("importing", "immortal"):
        cflags += ["-include", f"uringloop/_cpython/{header}.h"]
    cflags += ["-O1", "-g"] if DEBUG else ["-O2", "-g0"]
    extra = os.environ.get("URINGLOOP_CFLAGS", "").split()
    options["extra_compile_args"] += cflags + extra
    options["extra_link_args"] += extra
    if COVERAGE:
        options["define_macros"] = [("CYTHON_TRACE", "1"), ("CYTHON_USE_SYS_MONITORING", "0")]
    elif not DEBUG:
        options["define_macros"] = [("CYTHON_WITHOUT_ASSERTIONS", "1"), ("NDEBUG", "1")]
    if DEBUG:
        # Python's own flags define NDEBUG: a debug build also has the asserts of C files.
        options["undef_macros"] = ["NDEBUG"]
    shared = [path for path in PACKAGE.glob("*/*.pyx") if path.parent != BENCH]
    written = [path for path in PACKAGE.glob("*/*.c") if path.parent != BENCH]
    headers = [path for path in PACKAGE.glob("*/*.h") if path.parent != BENCH]
    modules = load_order(sorted(shared))
    write_modules_header(modules)
    return [
        # One file for all compiled modules, with a PyInit function for each:
        # `uringloop/_cpython/loading.py` loads them from there.
        Extension(
            "uringloop._compiled",
            [str(path) for path in (*modules, *sorted(written))],
            include_dirs=[str(PACKAGE), str(MODULES_HEADER.parent)],
            depends=[str(path) for path in (*sorted(headers), MODULES_HEADER)],
            **options,
        ),
        Extension(
            "uringloop.bench.loadgen",
            [str(BENCH / "loadgen.pyx")],
            include_dirs=[str(BENCH)],
            depends=[str(path) for path in sorted(BENCH.glob("*.h"))],
            **options,
        ),
    ]


def translated(sources: list[str]) -> list[str]:
    """Translate the Cython files among *sources*, on all cores, and return the C files of all."""
    modules = [
        Extension(module_name(Path(source)), [source])
        for source in sources
        if source.endswith(".pyx")
    ]
    made = cythonize(
        modules, build_dir=GENERATED, compiler_directives=DIRECTIVES, nthreads=os.cpu_count() or 1
    )
    generated = [source for module in made for source in module.sources]
    return generated + [source for source in sources if source.endswith(".c")]


class BuildOnAllCores(build_ext):
    """Translates and compiles the files that have changed, on all cores.

    setuptools would compile every file of an extension if one has changed, one after the other.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        # An editable install would put the objects into a temporary folder, and the next build
        # would find none of them.
        base = self.get_finalized_command("build").build_base
        # A free-threaded build has the cache tag of the ordinary one, and other flags.
        python = sys.implementation.cache_tag + sys.abiflags
        self.build_temp = f"{base}/temp.{sysconfig.get_platform()}-{python}"

    def build_extensions(self) -> None:
        for extension in self.extensions:
            extension.sources = translated(extension.sources)
        compile_all = self.compiler.compile

        def compile_changed(sources, output_dir, depends, **options):
            def compile_one(source: str) -> str:
                (made,) = self.compiler.object_filenames([source], output_dir=output_dir)
                if self.force or newer_group([source, *depends], made):
                    compile_all([source], output_dir=output_dir, depends=depends, **options)
                return made

            with concurrent.futures.ThreadPoolExecutor(self.parallel) as threads:
                return list(threads.map(compile_one, sources))

        self.compiler.compile = compile_changed
        super().build_extensions()


class BuildFresh(build_py):
    """Removes what an earlier build has put into the folder that becomes the wheel.

    setuptools only adds to that folder: a module that has moved since would be installed twice.
    Files of this build stay, so that only what has changed is linked again.
    """

    def run(self) -> None:
        if not self.editable_mode:
            self.remove_former()
        super().run()

    def remove_former(self) -> None:
        made = self.get_outputs() + self.get_finalized_command("build_ext").get_outputs()
        kept = {Path(path) for path in made}
        for path in Path(self.build_lib).rglob("*"):
            if path.is_file() and path not in kept:
                path.unlink()


def build_options() -> dict[str, dict[str, object]]:
    """Return options to compile on all cores, with a build folder for each set of flags."""
    flavour = "coverage" if COVERAGE else "debug" if DEBUG else "release"
    flavour += re.sub(r"\W+", "-", os.environ.get("URINGLOOP_CFLAGS", ""))
    return {
        "build": {"build_base": f"build/{flavour}"},
        "build_ext": {"parallel": os.cpu_count() or 1},
    }


def check() -> None:
    """Exit with a message if the build could not be used on this system."""
    if not sys.platform.startswith("linux"):
        raise SystemExit("uringloop runs on Linux only: io_uring is an interface of its kernel.")
    if sysconfig.get_config_var("Py_GIL_DISABLED") and sys.version_info < FREE_THREADED_MIN:
        raise SystemExit(
            "uringloop needs CPython 3.14 or newer if it is a free-threaded build: "
            f"this is {sys.version.split()[0]}."
        )


# Cython's processes may import this file again.
if __name__ == "__main__":
    check()
    setup(
        options=build_options(),
        cmdclass={"build_ext": BuildOnAllCores, "build_py": BuildFresh},
        ext_modules=extensions(),
    )
