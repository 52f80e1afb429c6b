"""Runs the core of the suite on Debian's kernels, each booted under qemu: nox -s kernels

The kernels come from the archives of Debian's releases, and so does the interpreter, if --python
does not name another. Nothing is installed on this machine, and no privileges are required. The
machine is emulated (TCG), without hardware virtualisation. With --ends, tests/net/unix_ends.c runs
instead of the tests; with --resets, tests/net/resets.py does.

All files are in build/kernels: for each architecture and release a folder that has the log of the
console. The report is build/kernels.md. The exit status is 0 if everything has passed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import shutil
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path

from kernels.archive import Archive, kernel_of
from kernels.base import (
    ARCHITECTURES,
    BUILD,
    HERE,
    PATH,
    RELEASES,
    ROOT,
    Architecture,
    KernelsError,
)
from kernels.image import debian_release, pack, stage_of
from kernels.machine import boot, qemu
from kernels.report import report_of
from kernels.results import Outcome, outcome_of
from kernels.wheel import wheel_of

# Where wheels for other processors are.
WHEELS = (ROOT / "dist", ROOT / "build" / "platforms" / "wheels")
REPORT = ROOT / "build" / "kernels.md"
# experimental runs on request only: it may have no kernel, or a broken one.
DEFAULT_RELEASES = [name for name in RELEASES if name != "experimental"]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nox -s kernels --", description=__doc__)
    add = parser.add_argument
    add("releases", nargs="*", help=f"any of {', '.join(RELEASES)}")
    add("--arch", choices=sorted(ARCHITECTURES), default=HERE.name, help="the processor")
    add("--pages", choices=("16k", "64k"), default="", help="a kernel with larger pages (aarch64)")
    add("--wheel", type=Path, metavar="FILE", help="the wheel to test (this Python's)")
    add("--python", type=Path, metavar="ROOT", help="a folder with the interpreter (Debian's)")
    add("--jobs", type=int, default=1, help="how many kernels run at the same time")
    add("--tests", default="", help="names of test files, separated by commas")
    add("--slow", action="store_true", help="also run slow tests")
    add("--ring", choices=("io_uring", "soft"), help="the ring of the tests (both)")
    add("-k", dest="match", default="", help="only the tests or resets that match")
    add("--ends", type=int, default=0, help="instead, end this many UNIX streams of each kind")
    add("--resets", type=int, default=0, help="instead, reset this many connections of each kind")
    add(
        "--unpack",
        nargs=2,
        metavar=("PACKAGE", "FOLDER"),
        help="only download a package of one release, into a new folder",
    )
    return parser


def arguments_of_guest(options: argparse.Namespace) -> list[str]:
    """Return the words of the kernel's command line that the guest reads."""
    values = {
        **{"tests": options.tests, "slow": "1" if options.slow else "", "ring": options.ring},
        **{"match": options.match, "ends": options.ends, "resets": options.resets},
    }
    return [f"kernels.{n}={urllib.parse.quote(str(v), safe=',')}" for n, v in values.items() if v]


def examine(
    release: str, architecture: Architecture, pages: str, stage: Path, words: list[str]
) -> Outcome:
    started = time.monotonic()
    try:
        folder = kernel_of(release, architecture, pages)
        initramfs = pack([stage, folder / "guest"], folder / "initramfs")
        words = [*words, f"kernels.expected={RELEASES[release]}"]
        outcome = outcome_of(release, boot(architecture, folder, initramfs, words))
    except (KernelsError, OSError, subprocess.SubprocessError) as exc:
        outcome = Outcome(release, problems=[str(exc)])
    outcome.seconds = time.monotonic() - started
    word = "FAILED" if outcome.problems else "passed"
    print(
        f"{release:<14}{word}  {outcome.seconds:.0f} s", *outcome.problems, sep="\n  ", flush=True
    )
    return outcome


def default_wheel(architecture: Architecture) -> Path:
    """Return the newest wheel for another processor, or build one for this machine's Python."""
    if architecture is HERE:
        command = [sys.executable, str(ROOT / ".ci" / "wheel")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return Path(done.stdout.strip())
    paths = [path for folder in WHEELS for path in folder.glob(f"*_{architecture.name}.whl")]
    paths = [path for path in paths if debian_release(wheel_of(path))]
    if not paths:
        names = " or ".join(str(folder.relative_to(ROOT)) for folder in WHEELS)
        raise KernelsError(f"no wheel for {architecture.name} in {names}: use --wheel")
    return max(paths, key=lambda path: path.stat().st_mtime)


def main() -> int:
    options = parser().parse_args()
    architecture = ARCHITECTURES[options.arch]
    releases = options.releases or DEFAULT_RELEASES
    unknown = set(releases) - RELEASES.keys()
    if unknown:
        raise KernelsError(f"{', '.join(sorted(unknown))}: none of {', '.join(RELEASES)}")
    if options.unpack:
        package, folder = options.unpack[0], Path(options.unpack[1])
        (release,) = releases
        archive = Archive(release, architecture, folder.absolute().parent)
        archive.download(package)
        archive.unpack(folder)
        return 0
    for program in ("mkfs.ext4", "dpkg"):
        if shutil.which(program, path=PATH) is None:
            raise KernelsError(f"{program} is missing (e2fsprogs, dpkg)")
    if options.ends and architecture is not HERE:
        raise KernelsError("tests/net/unix_ends.c is compiled for this machine only")
    wheel = wheel_of(options.wheel or default_wheel(architecture))
    if wheel.architecture != architecture.name:
        raise KernelsError(f"{wheel.path.name} is not for {architecture.name}: use --arch")
    BUILD.mkdir(parents=True, exist_ok=True)
    stage = stage_of(wheel, architecture, options.python)
    words = arguments_of_guest(options)
    # The first call may download the emulator: only one thread may do so.
    qemu(architecture)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as threads:
        outcomes = list(
            threads.map(
                lambda name: examine(name, architecture, options.pages, stage, words), releases
            )
        )
    for outcome in outcomes:
        outcome.wheel = wheel.path.name
    REPORT.write_text(report_of(outcomes))
    print(f"\n{REPORT.read_text()}")
    return 1 if any(outcome.problems for outcome in outcomes) else 0
