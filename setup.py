"""Builds the compiled modules: the metadata is in pyproject.toml.

URINGLOOP_DEBUG=1 builds with asserts and debug symbols, URINGLOOP_COVERAGE=1 with line tracing,
URINGLOOP_CFLAGS adds compiler and linker flags (sanitizers).
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

LIBURING_MIN = (2, 3)
MODULES_HEADER = Path("build/compiled_modules.h")
# In a .pyx or a .pxd; an import within a function is not for loading the module.
IMPORTED = re.compile(r"^from (uringloop\.[\w.]+) c?import", re.MULTILINE)
HOW_TO_INSTALL = """\
uringloop needs liburing {wanted} or newer to build, with its header files: {problem}.
Install it and try again:

    Debian, Ubuntu     apt-get install liburing-dev pkg-config gcc
    Fedora, RHEL       dnf install liburing-devel pkgconf-pkg-config gcc
    Alpine             apk add liburing-dev pkgconf gcc musl-dev
    Arch               pacman -S liburing pkgconf gcc
    from source        https://github.com/axboe/liburing: ./configure && make install
"""


NAMESAKE = """\
A distribution called uringloop, version {version}, is installed in {folder}: {which}.
Its package has the same name as this one's. Remove it and try again:

    python -m pip uninstall uringloop
"""


def stop(problem: str) -> None:
    wanted = ".".join(map(str, LIBURING_MIN))
    raise SystemExit("\n" + HOW_TO_INSTALL.format(wanted=wanted, problem=problem))


def pkg_config(*arguments: str) -> str:
    command = os.environ.get("PKG_CONFIG", "pkg-config")
    if shutil.which(command) is None:
        stop(f"{command} is not there to find it")
    done = subprocess.run([command, *arguments, "liburing"], capture_output=True, text=True)
    if done.returncode != 0:
        stop("pkg-config does not find it")
    return done.stdout.strip()


def liburing() -> dict[str, list[str]]:
    """Return the compiler's and linker's arguments; the static library is preferred."""
    version = pkg_config("--modversion")
    if tuple(int(part) for part in version.split(".")[:2]) < LIBURING_MIN:
        stop(f"version {version} is too old")
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


def handwritten() -> list[Path]:
    """Return the C files that are not made from a .pyx."""
    sources = Path("uringloop").glob("_*/*.c")
    return sorted(source for source in sources if not source.with_suffix(".pyx").exists())


def load_order(sources: list[Path]) -> list[Path]:
    """Return *sources* in an order in which each module comes after those that it imports."""
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
    """Write which modules `uringloop/_cpython/compiled.c` names, if that has changed."""
    names = ", \\\n".join(f'    "{module_name(source)}"' for source in sources)
    text = f"#define URINGLOOP_COMPILED_MODULES \\\n{names}\n"
    MODULES_HEADER.parent.mkdir(exist_ok=True)
    if not MODULES_HEADER.exists() or MODULES_HEADER.read_text() != text:
        MODULES_HEADER.write_text(text)


def extensions(debug: bool, coverage: bool) -> list[Extension]:
    options = liburing()
    cflags = ["-fvisibility=hidden", "-Wall", "-Wextra", "-Werror=implicit-function-declaration"]
    # What Cython generates is not ours to mend.
    cflags += ["-Wno-unused-parameter", "-Wno-unused-function", "-Wno-missing-field-initializers"]
    cflags += ["-Wno-cast-function-type", "-include", "uringloop/_cpython/importing.h"]
    cflags += ["-O1", "-g"] if debug else ["-O2", "-g0"]
    extra = os.environ.get("URINGLOOP_CFLAGS", "").split()
    options["extra_compile_args"] += cflags + extra
    options["extra_link_args"] += extra
    macros = [("CYTHON_TRACE", "1"), ("CYTHON_USE_SYS_MONITORING", "0")] if coverage else []
    if not debug:
        macros.append(("CYTHON_WITHOUT_ASSERTIONS", "1"))
    sources = load_order(sorted(Path("uringloop").glob("_*/*.pyx")))
    write_modules_header(sources)
    headers = sorted(Path("uringloop").glob("_*/*.h"))
    made = [
        Extension(
            module_name(source),
            [str(source)],
            include_dirs=["uringloop", str(MODULES_HEADER.parent)],
            depends=[str(header) for header in (*headers, MODULES_HEADER)],
            define_macros=macros,
            **options,
        )
        for source in sources
    ]
    made.append(
        Extension(
            "uringloop.bench.loadgen",
            ["uringloop/bench/loadgen.pyx"],
            include_dirs=["uringloop/bench"],
            depends=[str(header) for header in sorted(Path("uringloop/bench").glob("*.h"))],
            define_macros=macros,
            **options,
        )
    )
    return made


def in_one_file(modules: list[Extension]) -> list[Extension]:
    """Link the modules of the private packages into one file, with a PyInit function for each.

    `uringloop/_cpython/loading.py` loads them from there.
    """
    shared = [module for module in modules if module.name.startswith("uringloop._")]
    others = [module for module in modules if module not in shared]
    shared[0].name = "uringloop._compiled"
    shared[0].sources = [source for module in shared for source in module.sources]
    shared[0].sources += [str(source) for source in handwritten()]
    return [shared[0], *others]


class BuildApart(build_ext):
    """Compiles the C files of an extension on all cores, and only those that have changed.

    Setuptools compiles all of them, one after the other.
    """

    def build_extensions(self) -> None:
        compile_all = self.compiler.compile

        def compile_apart(sources, output_dir, depends, **options):
            def compile_one(source: str) -> str:
                (made,) = self.compiler.object_filenames([source], output_dir=output_dir)
                if self.force or newer_group([source, *depends], made):
                    compile_all([source], output_dir=output_dir, depends=depends, **options)
                return made

            with concurrent.futures.ThreadPoolExecutor(self.parallel) as threads:
                return list(threads.map(compile_one, sources))

        self.compiler.compile = compile_apart
        super().build_extensions()


def build_options(debug: bool, coverage: bool) -> dict[str, dict[str, object]]:
    """Compile on all cores, and keep what is built with different flags apart."""
    flavour = "coverage" if coverage else "debug" if debug else "release"
    flavour += re.sub(r"\W+", "-", os.environ.get("URINGLOOP_CFLAGS", ""))
    return {
        "build": {"build_base": f"build/{flavour}"},
        "build_ext": {"parallel": os.cpu_count() or 1},
    }


def namesake() -> str | None:
    """Describe the distribution `uringloop`, if it is where this Python installs packages.

    Both distributions would own the files of the package, and removing either removes them. Pip
    builds in an environment of its own, whose Python still knows that folder.
    """
    ours = tomllib.loads(Path("pyproject.toml").read_text())["project"]["description"]
    folders = list(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))
    for found in metadata.distributions(name="uringloop", path=folders):
        folder = Path(str(found.locate_file("")))
        # The package is elsewhere if the distribution is editable.
        compiled = folder / "uringloop" / "_core" / "__init__.py"
        if found.metadata["Summary"] == ours or compiled.exists():
            which = "this project by its former name"
        else:
            which = "another project, that of the Python Package Index"
        return NAMESAKE.format(version=found.version, folder=folder, which=which)
    return None


def check() -> None:
    """Stop where what would be built could not be used."""
    if not sys.platform.startswith("linux"):
        raise SystemExit("uringloop runs on Linux only: io_uring is an interface of its kernel.")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SystemExit(
            "uringloop needs a CPython with a GIL, which says who may touch a loop's queues: "
            "this is a free-threaded build."
        )
    # Compiling in place installs nothing.
    other = None if "--inplace" in sys.argv else namesake()
    if other is not None:
        raise SystemExit("\n" + other)


def main() -> None:
    check()
    coverage = os.environ.get("URINGLOOP_COVERAGE") == "1"
    debug = coverage or os.environ.get("URINGLOOP_DEBUG") == "1"
    setup(
        options=build_options(debug, coverage),
        cmdclass={"build_ext": BuildApart},
        ext_modules=in_one_file(
            cythonize(
                extensions(debug, coverage),
                # The C of an ordinary build has no line tracing, and its time does not tell.
                force=coverage,
                compiler_directives={
                    "language_level": 3,
                    "auto_pickle": False,
                    "autotestdict": False,
                    "binding": False,
                    "boundscheck": False,
                    "cdivision": True,
                    "embedsignature": True,
                    "embedsignature.format": "clinic",
                    "initializedcheck": False,
                    "linetrace": coverage,
                    "wraparound": False,
                },
            )
        ),
    )


main()
