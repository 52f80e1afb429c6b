"""Checks of the documents' commands: a rule for each program.

Commands that are quick and change nothing are run. Of the others the words are checked: targets of
make, options by `--help`, names of files, variables and extras. A program without a rule is an
error.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import uringloop
from support.documents import ROOT, Command, matches
from support.roles import kernel_version
from uringloop.bench import cli

PACKAGE = Path(uringloop.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

# Commands of the pages take a second at most; other tests may run at the same time.
TIME_LIMIT_S = 40

# A rule gets the words of a command, without variables before it, and the output that a page shows.
Words = list[str]

# Programs that are not run, with the reason: only a shell parses the command. apt-get, pip and
# sysctl, which change the machine or the environment, have rules that check their words instead.
NOT_RUN = {
    "cat": "joins files that another command makes",
    "cp": "needs a program of the reader's",
    "curl": "needs a server that another block starts, or the network",
    "echo": "prints its arguments",
    "docker": "needs an engine, and an image with the package",
    "git": "needs the network",
    "journalctl": "needs systemd as the first process",
    "kill": "ends a program that another line starts",
    "kubectl": "needs a cluster",
    "ln": "makes a link to a reader's own environment",
    "mkdir": "makes a folder for a reader's own programs",
    "mv": "replaces a link to a reader's own environment",
    "openssl": "makes files for a reader's own programs",
    "strace": "needs a program of the reader's",
    "socat": "needs a program that another command starts",
    "systemctl": "needs systemd as the first process",
    "useradd": "changes the machine",
}

# Variables of the environment that do not belong to uringloop.
ENVIRONMENT = {"DASK_DISTRIBUTED__ADMIN__EVENT_LOOP", "PYTHONSAFEPATH"}

# Names of a user's own programs in the documents.
PLACEHOLDERS = {"app.py", "client.py", "program.py", "server.py"}

# A program of examples/ that a reader copies; it runs the command behind its options.
WRAPPER = "filter_io_uring.py"

# Programs of other packages: their options are checked if they are installed.
PROGRAMS = {
    *("cxfreeze", "dask", "granian", "gunicorn", "hypercorn", "ipython", "jupyter"),
    *("nuitka", "pex", "pyinstaller", "sanic", "shiv", "uvicorn"),
}

# The arguments that print all options of a program, if not `--help`.
HELP = {"ipython": ["--help-all"], "sanic": ["help", "--full"]}

# The doctor's names that a page may show; the values depend on the machine and are not compared.
DOCTOR_NAMES = {"backend", "operations", "reason", "restrictions"}


@functools.cache
def output_of(*words: str, statuses: tuple[int, ...] = (0,)) -> str:
    """Run a program in the repository's folder, without importing the package from there."""
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert done.returncode in statuses, done.stderr
    return done.stdout


@functools.cache
def makefile() -> str:
    """Return make's database of targets: `-n` would run the recipes that call make."""
    return output_of("make", "--no-print-directory", "-np", "help", f"PYTHON={sys.executable}")


def options(words: Words) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("-") and word != "-"]


def check_options(words: Words, *program: str) -> None:
    """Check that a program's help has each option."""
    asked = HELP.get(Path(program[0]).name, ["--help"])
    help_text = output_of(*program, *asked) if options(words) else ""
    for option in options(words):
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", help_text), option


def check_bench(words: Words) -> None:
    # The program's own checks: ranges, and options that exclude each other.
    cli._settings(cli._parser().parse_args(words))


# Checks of ARGS, by target of make.
ARGUMENTS: dict[str, Callable[[Words], None]] = {
    "bench": check_bench,
    "test": lambda words: check_pytest(words),
}

# The programs that get the arguments of nox's sessions; other sessions run pytest, or get numbers.
PROGRAMS_OF_SESSIONS = {
    "bench_files": "benchmarks/files",
    "bench_peers": "benchmarks/compare",
    "bench_servers": "benchmarks/servers.py",
    "compare": "benchmarks/compare",
    "faults": "benchmarks/faults",
    "health": "benchmarks/health.py",
    "sockets": "benchmarks/sockets.py",
    "kernels": ".ci/kernels",
    "mutants": "tests/simulation/mutants.py",
    "order": "tests/order/__main__.py",
    "platforms": ".ci/platforms",
    "races": "benchmarks/races",
    "resets": "tests/net/resets.py",
    "simulate": "tests/simulation/run.py",
    "soak": "benchmarks/soak.py",
    "threads_stress": "tests/threads/stress.py",
    "upgrades": "benchmarks/upgrades",
}


def check_pytest(words: Words) -> None:
    for word in words:
        path = word.partition("::")[0]
        assert "/" not in path or word.startswith("-") or (ROOT / path).exists(), word
    # A plugin has options of its own.
    plugins = [f"-p{after}" for word, after in itertools.pairwise(words) if word == "-p"]
    check_options(words, sys.executable, "-m", "pytest", *plugins)


def check_find(words: Words, shown: str) -> None:
    """Check that the command finds the ring of a loop that this process makes."""
    assert words[0] == "/proc/[0-9]*/fd"
    command = ["find", f"/proc/{os.getpid()}/fd", *words[1:]]

    def found() -> int:
        for _ in range(10):
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S)
            if not done.stderr:
                break
            # This process closes its pipes to the command while the command reads the directory.
            assert "No such file or directory" in done.stderr
        assert done.returncode == 0, done.stderr
        return len(done.stdout.splitlines())

    before = found()
    with contextlib.closing(uringloop.new_event_loop()) as loop:
        assert found() - before == (loop.backend == "io_uring")


def check_make(words: Words, shown: str) -> None:
    targets = [word for word in words if "=" not in word]
    for target in targets:
        assert re.search(rf"^{re.escape(target)}:", makefile(), re.MULTILINE), target
    for word in words:
        variable, given, value = word.partition("=")
        if given:
            assert f"$({variable})" in (ROOT / "Makefile").read_text(), variable
        if variable == "ARGS" and value != "...":
            for target in targets:
                ARGUMENTS[target](shlex.split(value.replace("FILE", "file.svg")))


def check_nox(words: Words, shown: str) -> None:
    """Check names of sessions, the interpreter, and the arguments after `--`."""
    if words == ["-l"]:
        return
    text = (ROOT / "noxfile.py").read_text()
    ahead, _, behind = " ".join(words).partition(" -- ")
    flag, *names = ahead.split()
    if "--force-python" in names:
        *names, option, python = names
        assert option == "--force-python"
        assert python == "PATH" or f'"{python}"' in text, python
    assert flag == "-s"
    for name in names:
        session, _, python = name.partition("-")
        assert re.search(rf"^@nox\.session.*\ndef {session}\(", text, re.MULTILINE), session
        assert not python or f'"{python}"' in text, python
        check_arguments_of_session(session, behind.split())


def check_arguments_of_session(session: str, words: Words) -> None:
    if session in PROGRAMS_OF_SESSIONS:
        program = PROGRAMS_OF_SESSIONS[session]
        check_options(words, "env", "PYTHONPATH=tests", sys.executable, program)
    elif session in ("asan", "frameworks", "soft", "tests", "ubsan"):
        check_pytest(words)
    else:
        known = r"\d+|close|--record|-max_total_time=\d+|SUPPRESSIONS"
        assert all(re.fullmatch(known, word) for word in words), words


def check_python(words: Words, shown: str) -> None:
    if words[0] == "-m" and words[1].partition(".")[0] == "uringloop":
        check_module(words[1], words[2:], shown)
    elif words[0] == "-m":
        check_program(words[1], words[2:], shown)
    elif words[0] == "-c":
        compile(words[1], "-c", "exec")
    elif words[0] in PLACEHOLDERS:
        assert words[1:] == []
    elif words[0] == WRAPPER:
        own = list(itertools.takewhile(lambda word: word.startswith("-"), words[1:]))
        check_options(own, sys.executable, f"examples/{WRAPPER}")
        program, *others = words[1 + len(own) :]
        check_program(Path(program).name, others, shown)
    else:
        assert (ROOT / words[0]).exists(), words[0]
        check_options(words[1:], sys.executable, words[0])


def check_module(module: str, words: Words, shown: str) -> None:
    assert find_spec(module) is not None, module
    if module == "uringloop.bench":
        check_bench([word.replace("FILE", "file") for word in words])
        if shown:
            printed = output_of(sys.executable, "-m", module, *words)
            assert matches(shown, printed), printed
        return
    if module == "uringloop.as_uvloop":
        # The rest is a command of its own; a sentence may leave it out.
        if not words:
            return
        if words[0] == "-m" or words[0] in PLACEHOLDERS:
            check_python(words, shown)
        else:
            check_program(words[0], words[1:], shown)
        return
    package, _, server = module.rpartition(".")
    if package == "uringloop.workers" and find_spec(server) is None:
        return
    check_options(words, sys.executable, "-m", module)
    if module == "uringloop.doctor":
        # Status 1 means that loops are not on io_uring.
        printed = output_of(sys.executable, "-m", module, *words, statuses=(0, 1))
        names = {line.split()[0] for line in shown.splitlines()} - {"..."}
        assert names <= DOCTOR_NAMES
        assert names <= {line.split()[0] for line in printed.splitlines() if line}


def check_pip(words: Words, shown: str) -> None:
    if words[0] == "uninstall":
        assert words[1:] == ["--yes", "uringloop"]
        return
    assert words[0] in ("install", "wheel")
    known = {re.split(r"[\[<>=]", name)[0] for names in EXTRAS.values() for name in names}
    help_text = output_of(sys.executable, "-m", "pip", words[0], "--help")
    packages = iter(words[1:])
    for word in packages:
        if word.startswith("--"):
            assert re.search(rf"{word}[ ,]", help_text), word
            if re.search(rf"{word} <", help_text):
                next(packages)
            continue
        # A folder or wheels in an image, and the short form of --editable.
        if word.startswith("/") or word == "-e":
            continue
        # Neither uringloop nor asyncio-uringloop: on an index the name may be another project's.
        name, _, extras = word.rstrip("]").partition("[")
        assert name == "." or name in known - {"asyncio-uringloop"}, word
        assert name != "." or not extras or set(extras.split(",")) <= set(EXTRAS), word


def check_apt_get(words: Words, shown: str) -> None:
    # Packages that setup.py and the Makefile name in their errors, two that depend on Python, and
    # the programs of README's commands.
    named = f"{(ROOT / 'Makefile').read_text()} {(ROOT / 'setup.py').read_text()}"
    named += " curl git make python3-dev python3-venv"
    named += " -y --no-install-recommends"
    assert words[0] == "install" or words == ["update"]
    assert set(words[1:]) <= set(re.split(r"[\s;|()]+", named))


def check_bash(words: Words, shown: str) -> None:
    subprocess.run(["bash", "-n", ROOT / words[0]], check=True, timeout=TIME_LIMIT_S)


def check_sysctl(words: Words, shown: str) -> None:
    assert words[0] == "-w"
    for word in words[1:]:
        name, _, value = word.partition("=")
        path = Path("/proc/sys", name.replace(".", "/"))
        assert value.isdigit()
        # Linux 6.6 has both.
        assert path.exists() or kernel_version() < (6, 6), name


def check_systemd_analyze(words: Words, shown: str) -> None:
    if shutil.which("systemd-analyze"):
        assert matches(shown, output_of("systemd-analyze", *words))


def check_socket_activate(words: Words, shown: str) -> None:
    """Check the options, and the command that inherits the socket."""
    assert words[0] == "-l"
    if shutil.which("systemd-socket-activate"):
        check_options(words[:1], "systemd-socket-activate")
    check_program(words[2], words[3:], shown)


def check_ulimit(words: Words, shown: str) -> None:
    kind, number = words
    assert kind == "-n"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or int(number) <= hard:
        output_of("bash", "-c", f"ulimit -S {kind} {number}")


def check_venv(words: Words, shown: str) -> None:
    # In the clone, or an environment for each version of a service.
    assert words in ([".venv"], ["/srv/orders/2"])


def check_source(words: Words, shown: str) -> None:
    assert words == [".venv/bin/activate"]


def check_cd(words: Words, shown: str) -> None:
    (folder,) = words
    # A folder in the home of a reader.
    assert folder.startswith("~/") or (ROOT / folder).is_dir(), folder


CHECKS: dict[str, Callable[[Words, str], None]] = {
    ".": check_source,
    "apt-get": check_apt_get,
    "bash": check_bash,
    "cd": check_cd,
    "find": check_find,
    "make": check_make,
    "nox": check_nox,
    # Runs another program.
    "opentelemetry-instrument": lambda words, shown: check_program(words[0], words[1:], shown),
    "pip": check_pip,
    "pytest": lambda words, shown: check_pytest(words),
    "python": check_python,
    "python3": check_python,
    "sysctl": check_sysctl,
    "systemd-analyze": check_systemd_analyze,
    "systemd-socket-activate": check_socket_activate,
    "ulimit": check_ulimit,
    "venv": check_venv,
}


def simple_commands(text: str) -> list[Words]:
    """Return the words of each command of a line, without redirections."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[Words] = [[]]
    words = iter(lexer)
    for word in words:
        if set(word) <= set("<>"):
            next(words)
        elif set(word) <= set("();|&"):
            found.append([])
        else:
            found[-1].append(word)
    return [words for words in found if words]


def check_command(command: Command) -> None:
    """Check the commands of a line, each by the rule for its program."""
    subprocess.run(["bash", "-n", "-c", command.text], check=True, timeout=TIME_LIMIT_S)
    for words in simple_commands(command.text):
        while words and re.match(r"[A-Za-z_]\w*=", words[0]):
            check_variable(words.pop(0).partition("=")[0])
        if words[:1] == ["sudo"]:
            words.pop(0)
        if words:
            check_program(words[0], words[1:], command.shown)


def check_program(program: str, arguments: Words, shown: str) -> None:
    # A program in the virtual environment of a user.
    program = re.sub(r"^(/\S+/)?(\.venv|\.venv-dev|current|2)/bin/", "", program)
    if program in CHECKS:
        CHECKS[program](arguments, shown)
    elif program in PROGRAMS:
        path = Path(sys.executable).parent / program
        # Each subcommand of dask has its own options.
        subcommand = arguments[:1] if program == "dask" else []
        if path.exists():
            check_options(arguments, str(path), *subcommand)
    else:
        assert program in NOT_RUN, f"no rule for `{program}`: add one to CHECKS or to NOT_RUN"


def check_variable(name: str) -> None:
    if name not in ENVIRONMENT:
        assert name.startswith("URINGLOOP_"), name
        sources = [*PACKAGE.rglob("*.py"), ROOT / "setup.py"]
        assert any(f'"{name}"' in path.read_text() for path in sources), name
