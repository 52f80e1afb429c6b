"""The initramfs that is common to all kernels: an interpreter, the wheel, and the tests.

The files are staged in a folder. The interpreter comes from Debian, or from a folder that the user
names, as does everything else that the interpreter needs; /env is an environment that has the
wheel. Programs that the tests start come from Debian.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kernels.archive import unpacked
from kernels.base import BUILD, PYTHON_RELEASES, ROOT, Architecture, KernelsError, required
from kernels.guest import CORE
from kernels.wheel import Wheel, install, same_python

GUEST = Path(__file__).with_name("guest.py")
UNIX_ENDS = ROOT / "build" / "unix-ends"

# What the tests start, besides Python, is in these, and the names of services. A folder that a user
# names gets those of this release.
PACKAGES = ("coreutils", "dash", "netbase", "procps")
PACKAGES_RELEASE = "trixie"
# Folders of Debian's packages and of an interpreter that no test of the core needs.
LEFT_OUT = frozenset(
    (
        *("dist-packages", "ensurepip", "idlelib", "include", "lib2to3", "pkgconfig"),
        *("pydoc_data", "share", "site-packages", "systemd", "test", "tests", "tkinter"),
        *("turtledemo", "gconv", "perl5", "perl-base"),
    )
)
TEXTS = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost\n",
    "etc/nsswitch.conf": "hosts: files\n",
}


# ── the stage ────────────────────────────────────────────────────────────────────────────────


def add(tree: Path, stage: Path) -> None:
    """Copy the files of *tree*, except those that are in *stage* already."""
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree)
        copy = stage / name
        if LEFT_OUT.intersection(name.parts) or path.suffix == ".a":
            continue
        if path.is_symlink():
            if not os.path.lexists(copy):
                copy.symlink_to(path.readlink())
        elif path.is_dir():
            copy.mkdir(exist_ok=True)
        elif not copy.exists():
            shutil.copy2(path, copy)


def debian_release(wheel: Wheel) -> str | None:
    """Return the release that has the wheel's Python, with the wheel's C library."""
    return None if wheel.is_for_musl() else PYTHON_RELEASES.get(wheel.version)


def trees(wheel: Wheel, architecture: Architecture, root: Path | None) -> list[Path]:
    """Return folders with the interpreter, the programs and all that these need."""
    folder = BUILD / architecture.name
    if root is not None:
        programs = unpacked(PACKAGES_RELEASE, architecture, folder / "programs", *PACKAGES)
        if not wheel.is_for_musl():
            return [root, programs]
        return [root, programs, unpacked(PACKAGES_RELEASE, architecture, folder / "musl", "musl")]
    release = debian_release(wheel)
    if release is None:
        known = ", ".join(PYTHON_RELEASES)
        raise KernelsError(f"{wheel.path.name}: Debian has Python {known} for glibc: use --python")
    name = f"python{wheel.version}"
    return [unpacked(release, architecture, folder / name, name, *PACKAGES)]


def add_interpreter(stage: Path, wheel: Wheel, folders: list[Path]) -> Path:
    """Add the interpreter and the programs; return the interpreter's place in the guest."""
    for name in ("bin", "lib", "lib64", "sbin"):
        (stage / "usr" / name).mkdir(parents=True)
        (stage / name).symlink_to(f"usr/{name}")
    for folder in folders:
        add(folder, stage)
    (stage / "bin" / "sh").unlink(missing_ok=True)
    (stage / "bin" / "sh").symlink_to("dash")
    for place in ("usr/bin", "usr/local/bin"):
        program = stage / place / f"python{wheel.version}"
        if program.exists():
            add_dynamic_linker(stage, program)
            return Path("/", place, program.name)
    raise KernelsError(f"{folders[0]} has no bin/python{wheel.version}")


def add_dynamic_linker(stage: Path, program: Path) -> None:
    """Link the dynamic linker to where *program* names it: perhaps in a folder of this machine."""
    found = re.search(rb"\0(/[^\0]+/(ld-[^\0/]+))\0", program.read_bytes()[:65536])
    if found is None:
        return
    place = stage / found[1].decode().lstrip("/")
    if not os.path.lexists(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(f"/lib/{found[2].decode()}")


def site_packages(stage: Path, wheel: Wheel) -> Path:
    return stage / "env" / "lib" / f"python{wheel.version}" / "site-packages"


def add_environment(stage: Path, wheel: Wheel, interpreter: Path) -> None:
    """Make /env, as `python -m venv --copies` would in the guest."""
    (stage / "env" / "bin").mkdir(parents=True)
    shutil.copy2(stage / interpreter.relative_to("/"), stage / "env" / "bin" / "python")
    (stage / "env" / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\n")
    install(wheel, required("pytest", "pytest-asyncio"), site_packages(stage, wheel))


def add_tests(stage: Path) -> None:
    sources = stage / "src"
    shutil.copytree(
        ROOT / "tests",
        sources / "tests",
        ignore=shutil.ignore_patterns("frameworks", "__pycache__"),
    )
    shutil.copy2(ROOT / "pyproject.toml", sources)
    # A test runs this program.
    (sources / "examples").mkdir()
    shutil.copy2(ROOT / "examples" / "filter_io_uring.py", sources / "examples")
    # The tests compare a table of this page, and read constants from the sources.
    pages = sources / "docs" / "reference"
    pages.mkdir(parents=True)
    shutil.copy2(ROOT / "docs" / "reference" / "sandboxes.md", pages)
    for source in (ROOT / "uringloop").rglob("*.p[yx][xd]"):
        copy = sources / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy)


def compile_files(stage: Path, wheel: Wheel) -> None:
    """Compile the Python files as far as this machine can: in the guest it takes minutes."""
    python = same_python(wheel)
    if python is not None:
        command = [python, "-m", "compileall", "-q", "-j", "0", "-s", str(stage), str(stage)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if not wheel.runs_here():
        return
    # pytest compiles tests in a way of its own when it collects them, and imports the wheel.
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    for name in CORE:
        command += map(str, (stage / "src" / "tests").glob(f"*/test_{name}.py"))
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": ""}
    environment["PYTHONPATH"] = str(site_packages(stage, wheel))
    done = subprocess.run(
        command, cwd=stage / "src", env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise KernelsError(f"the tests cannot be collected:\n{done.stdout}")


def stage_of(wheel: Wheel, architecture: Architecture, root: Path | None) -> Path:
    stage = BUILD / architecture.name / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    for name in ("dev", "etc", "guest", "modules", "proc", "root", "run", "src", "sys", "tmp"):
        (stage / name).mkdir(parents=True)
    for name, text in TEXTS.items():
        (stage / name).write_text(text)
    add_environment(stage, wheel, add_interpreter(stage, wheel, trees(wheel, architecture, root)))
    add_tests(stage)
    shutil.copy2(GUEST, stage / "guest" / "kernels_guest.py")
    if UNIX_ENDS.exists():
        shutil.copy2(UNIX_ENDS, stage / "guest" / "unix-ends")
    compile_files(stage, wheel)
    (stage / "init").write_text(f"#!/env/bin/python -P\n{GUEST.read_text()}")
    (stage / "init").chmod(0o755)
    return stage


# ── the archive ──────────────────────────────────────────────────────────────────────────────


def entries(folder: Path) -> Iterator[tuple[str, int, bytes, int]]:
    """Yield name, mode, content and modification time of all files, folders first."""
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        status = path.lstat()
        if path.is_symlink():
            yield name, stat.S_IFLNK | 0o777, os.readlink(path).encode(), 0
        elif path.is_dir():
            yield name, stat.S_IFDIR | 0o755, b"", 0
        else:
            mode = stat.S_IFREG | (0o755 if status.st_mode & 0o111 else 0o644)
            # Python compares the time of a compiled file with that of its source.
            yield name, mode, path.read_bytes(), int(status.st_mtime)
    yield "TRAILER!!!", 0, b"", 0


def pack(folders: list[Path], path: Path) -> Path:
    """Write an archive of each folder in the kernel's format, `newc`; root owns all files.

    The kernel reads consecutive archives.
    """
    with path.open("wb") as file:
        for folder in folders:
            for inode, (name, mode, data, mtime) in enumerate(entries(folder), 1):
                encoded = name.encode() + b"\0"
                fields = (inode, mode, 0, 0, 1, mtime, len(data), 0, 0, 0, 0, len(encoded), 0)
                header = b"070701" + b"".join(b"%08x" % number for number in fields)
                for part in (header + encoded, data):
                    file.write(part + b"\0" * (-len(part) % 4))
            file.write(b"\0" * (-file.tell() % 512))
    return path
