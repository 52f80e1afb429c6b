"""Every program and every command of the documents, run; every link, followed.

A block is found by its fence, so that nobody can add one unnoticed: a program that does not end
well, a command that no rule knows, a language that no table has, each fails a test. What can not be
run as it stands has a line in a table here, with the reason.
"""

from __future__ import annotations

import ast
import builtins
import configparser
import contextlib
import functools
import json
import os
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from documents import (
    LINKED,
    PAGES,
    ROOT,
    Block,
    Command,
    anchors,
    blocks,
    commands,
    links,
    matches,
    name_of,
    spans,
)
from roles import PATIENCE, kernel_version, wait_until

import uringloop
from uringloop.bench import cli

BLOCKS = [block for path in PAGES for block in blocks(path)]
PACKAGE = Path(uringloop.__file__).parent
CERTIFICATES = ROOT / "tests" / "certificates"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

# What a page shows takes a second at most; other tests may run beside.
TIME_LIMIT_S = 40

# The port of servers in documents; in each test it is another one.
PORT = "8888"


def each(*kinds: str) -> pytest.MarkDecorator:
    """Run a test on each block of these kinds, named by its page, line and heading."""
    found = [pytest.param(block, id=block.name) for block in BLOCKS if block.kind in kinds]
    return pytest.mark.parametrize("block", found)


# ── what programs need ───────────────────────────────────────────────────────────────────────

# What a piece of a program leaves out, by the name that it uses and has not made.
LEFT_OUT = {
    "asyncio": "import asyncio",
    "sys": "import sys",
    "uringloop": "import uringloop",
    "main": "async def main(): pass",
}

# What must be there before a program begins, by page and heading.
BEFOREHAND = {
    ("docs/files.md", "Files"): """
        from pathlib import Path
        Path("data.bin").write_bytes(bytes(100) + b"\\n")
        Path("small.json").write_text("{}")
        """,
    # An engine's profile, as far as it matters here.
    ("docs/operations.md", "Containers"): """
        import atexit, json
        from pathlib import Path
        rule = {"names": ["read", "write"], "action": "SCMP_ACT_ALLOW"}
        default = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [rule]}
        Path("default.json").write_text(json.dumps(default))

        @atexit.register
        def check():
            made = json.loads(Path("io_uring.json").read_text())
            added = made["syscalls"].pop()
            assert made == default
            assert len(added["names"]) == 3 and added["action"] == rule["action"]
        """,
    ("docs/guide.md", "TLS"): f"""
        import shutil
        for name in ("server.pem", "ca.pem"):
            shutil.copy({str(CERTIFICATES)!r} + "/" + name, name)
        """,
    # Forty datagrams, which nobody reads.
    ("docs/architecture.md", "Datagrams"): """
        import asyncio, atexit, socket, uringloop
        receiver = socket.socket(type=socket.SOCK_DGRAM)
        receiver.bind(("127.0.0.1", 0))
        runner = asyncio.Runner(loop_factory=uringloop.new_event_loop)
        transport, _ = runner.run(
            runner.get_loop().create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=receiver.getsockname()
            )
        )
        forty_datagrams_of_1400_bytes = [bytes(1400)] * 40

        @atexit.register
        def check():
            assert len(receiver.recv(65536)) == 1400
            receiver.close()
            transport.close()
            runner.close()
        """,
}

# Packages that a test environment may lack; each is in an extra of pyproject.toml.
OPTIONAL = {
    *("aiofiles", "aiohttp", "anyio", "fastapi", "httpx", "pytest_asyncio", "starlette"),
    *("uvicorn", "uvloop", "websockets"),
}

# What older Pythons have not got.
NEWER = {re.compile(r"asyncio\.run\([^\n]*loop_factory"): (3, 12)}


def unmade(text: str) -> set[str]:
    """Return the names that a program uses and has not made."""
    nodes = list(ast.walk(ast.parse(text)))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    made = {"__file__", "__name__", *dir(builtins)}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            made.add(node.id)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            made |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            made.add(node.name)
    return used - made


def awaits(text: str) -> bool:
    """Tell whether a program awaits outside of any function, as in asyncio's console."""
    code = compile(text, "program", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return bool(code.co_flags & 0x80)


def program_of(block: Block) -> str:
    """Return what is run: the block, with what it leaves out in front of it."""
    text = block.text
    if awaits(text):
        indented = textwrap.indent(text, "    ")
        text = f"import uringloop\nasync def all():\n{indented}\nuringloop.run(all())\n"
    text = textwrap.dedent(BEFOREHAND.get(block.place, "")) + text
    absent = unmade(text)
    assert absent <= set(LEFT_OUT), f"nobody has made {absent - set(LEFT_OUT)}"
    return "\n".join([*(LEFT_OUT[name] for name in sorted(absent)), text])


def check_can_be_run(block: Block) -> None:
    """Skip what this Python has not got, or what only an extra installs."""
    for pattern, version in NEWER.items():
        if pattern.search(block.text) and sys.version_info < version:
            pytest.skip(f"Python {'.'.join(map(str, version))} has what it shows")
    for module in re.findall(r"^ *(?:from|import) (\w+)", block.text, re.MULTILINE):
        if find_spec(module) is None:
            assert module in OPTIONAL, f"{module} is not in OPTIONAL"
            pytest.skip(f"{module} is not installed")


# ── servers among them ───────────────────────────────────────────────────────────────────────

Ask = Callable[[socket.socket], None]


def echoes(client: socket.socket) -> None:
    client.sendall(b"a line\n")
    assert client.recv(100) == b"a line\n"


def tells_metrics(client: socket.socket) -> None:
    client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    for name in (b"lag_seconds", b"overflows_total", b"starved_total", b"operations"):
        assert b"\nuringloop_%s " % name in answer


# What programs that do not end of themselves are asked, by page and heading.
ASKED: dict[tuple[str, str], Ask] = {
    ("docs/guide.md", "A first server"): echoes,
    ("docs/operations.md", "What a loop tells"): tells_metrics,
}


@contextlib.contextmanager
def running(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program, in the folder that it is in, with three lines to read."""
    lines = path.with_name("input")
    lines.write_text("one\ntwo\nthree\n")
    with (
        lines.open() as stdin,
        subprocess.Popen(
            [sys.executable, "-W", "error", path.name],
            cwd=path.parent,
            stdin=stdin,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def ask(process: subprocess.Popen[str], address: tuple[str, int], question: Ask) -> None:
    """Ask a server when it listens, and then end it by Ctrl-C."""

    def listens() -> bool:
        assert process.poll() is None, process.communicate()[1]
        try:
            with socket.create_connection(address, PATIENCE) as client:
                question(client)
        except ConnectionRefusedError:
            return False
        return True

    wait_until(listens)
    process.send_signal(signal.SIGINT)


@each("python")
def test_program(block: Block, tmp_path: Path) -> None:
    check_can_be_run(block)
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = found.getsockname()
    path = tmp_path / "program.py"
    path.write_text(program_of(block).replace(PORT, str(address[1])))
    with running(path) as process:
        if block.place in ASKED:
            ask(process, address, ASKED[block.place])
        output, errors = process.communicate(timeout=TIME_LIMIT_S)
    if block.place in ASKED and process.returncode == -signal.SIGINT:
        assert errors.rstrip().endswith("\nKeyboardInterrupt")
    else:
        assert (process.returncode, errors) == (0, "")
    if block.output is not None:
        assert matches(block.output, output), output


# ── what commands need ───────────────────────────────────────────────────────────────────────

# A rule looks at the words of a command, without those of its environment, and at what is shown.
Words = list[str]

# Programs that are not run, with the reason: only whether a shell can read the command.
NOT_RUN = {
    "apt-get": "changes the machine; make requirements does the same",
    "docker": "needs an engine, and an image with the package",
    "pip": "changes the environment; tests/test_packaging.py installs what is built",
}

# Variables of the environment that are others' than uringloop's.
ENVIRONMENT = {"MINUTES", "PYTHON"}

# What a user's own program is called in documents.
PLACEHOLDERS = {"app.py", "program.py", "server.py"}

# The servers of others: whether they know the options, where they are installed.
PROGRAMS = {"granian", "gunicorn", "hypercorn", "pytest", "uvicorn"}

# What is compared of what the doctor shows: the rest of a line is the machine's.
DOCTOR_NAMES = {"backend", "reason"}


@functools.cache
def output_of(*words: str) -> str:
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def makefile() -> str:
    """Return what make knows of its targets. It runs none, not even for `-n`: some run make."""
    return output_of("make", "--no-print-directory", "-np", "help", f"PYTHON={sys.executable}")


def options(words: Words) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("-") and word != "-"]


def check_options(words: Words, *program: str) -> None:
    """Demand that a program's `--help` tells of each option."""
    help_text = output_of(*program, "--help") if options(words) else ""
    for option in options(words):
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", help_text), option


def check_bench(words: Words) -> None:
    # The checks of the program itself: what goes together, and what is out of range.
    cli._settings(cli._parser().parse_args(words))


# What takes ARGS.
ARGUMENTS: dict[str, Callable[[Words], None]] = {
    "bench": check_bench,
    "bench-files": lambda words: check_options(words, sys.executable, "benchmarks/files.py"),
    "bench-peers": lambda words: check_options(words, sys.executable, "benchmarks/compare.py"),
    "compare": lambda words: check_options(words, sys.executable, "benchmarks/compare.py"),
    "faults": lambda words: check_options(words, sys.executable, "benchmarks/faults.py"),
    "kernels": lambda words: check_options(words, sys.executable, ".ci/kernels"),
    "soak": lambda words: check_options(words, sys.executable, "benchmarks/soak.py"),
    "test": lambda words: check_pytest(words),
    "test-frameworks": lambda words: check_pytest(words),
}


def check_pytest(words: Words) -> None:
    for word in words:
        assert word.startswith("-") or (ROOT / word.partition("::")[0]).exists(), word
    check_options(words, sys.executable, "-m", "pytest")


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


def check_python(words: Words, shown: str) -> None:
    if words[0] == "-m" and words[1].partition(".")[0] == "uringloop":
        check_module(words[1], words[2:], shown)
    elif words[0] == "-m":
        CHECKS[words[1]](words[2:], shown)
    elif words[0] in PLACEHOLDERS:
        assert words[1:] == []
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
    check_options(words, sys.executable, "-m", module)
    if module == "uringloop.doctor":
        command = [sys.executable, "-m", module, *words]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
        )
        assert (done.returncode in (0, 1), done.stderr) == (True, "")
        names = {line.split()[0] for line in shown.splitlines()}
        assert names <= DOCTOR_NAMES
        assert names <= {line.split()[0] for line in done.stdout.splitlines() if line}


def check_pip(words: Words, shown: str) -> None:
    assert words[0] == "install"
    known = {re.split(r"[\[<>=]", name)[0] for names in EXTRAS.values() for name in names}
    for word in words[1:]:
        name, _, extras = word.rstrip("]").partition("[")
        assert name == "." or (name == "uringloop" and extras) or name in known, word
        assert not extras or name not in (".", "uringloop") or set(extras.split(",")) <= set(EXTRAS)


def check_apt_get(words: Words, shown: str) -> None:
    # What setup.py and the Makefile name when it is missing; python3-dev by its version.
    named = f"{(ROOT / 'Makefile').read_text()} {(ROOT / 'setup.py').read_text()} python3-dev"
    assert words[0] == "install"
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


def check_ulimit(words: Words, shown: str) -> None:
    kind, number = words
    assert kind == "-n"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or int(number) <= hard:
        output_of("bash", "-c", f"ulimit -S {kind} {number}")


CHECKS: dict[str, Callable[[Words, str], None]] = {
    "apt-get": check_apt_get,
    "bash": check_bash,
    "make": check_make,
    "pip": check_pip,
    "pytest": lambda words, shown: check_pytest(words),
    "python": check_python,
    "sysctl": check_sysctl,
    "systemd-analyze": check_systemd_analyze,
    "ulimit": check_ulimit,
}


def check_command(command: Command) -> None:
    """Check one command, by the rule for its program."""
    subprocess.run(["bash", "-n", "-c", command.text], check=True, timeout=TIME_LIMIT_S)
    words = shlex.split(command.text, comments=True)
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        check_variable(words.pop(0).partition("=")[0])
    if not words:
        return
    program, *arguments = words
    if program in CHECKS:
        CHECKS[program](arguments, command.shown)
    elif program in PROGRAMS:
        path = Path(sys.executable).parent / program
        if path.exists():
            check_options(arguments, str(path))
    else:
        assert program in NOT_RUN, f"no rule tells how to test `{program}`"


def check_variable(name: str) -> None:
    if name not in ENVIRONMENT:
        assert name.startswith("URINGLOOP_"), name
        sources = [*PACKAGE.rglob("*.py"), ROOT / "setup.py"]
        assert any(f'"{name}"' in path.read_text() for path in sources), name


@each("sh", "console")
def test_command(block: Block) -> None:
    found = commands(block)
    assert found, "a block without a command"
    for command in found:
        check_command(command)


# ── what is neither ──────────────────────────────────────────────────────────────────────────


def read_ini(text: str) -> None:
    parser = configparser.ConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    assert parser.sections()


# Languages that are only read, by what reads them.
READERS: dict[str, Callable[[str], object]] = {
    "ini": read_ini,
    "json": json.loads,
    "toml": tomllib.loads,
}

# Languages that nothing here reads, with the reason.
UNREAD = {
    "dockerfile": "only an engine reads it",
    "text": "figures and tables, for people",
    "yaml": "the standard library does not read it",
}


@each(*READERS)
def test_data_can_be_read(block: Block) -> None:
    READERS[block.kind](block.text)


def test_every_block_is_of_a_known_kind() -> None:
    known = {"python", "sh", "console", *READERS, *UNREAD}
    # Sphinx reads what is in braces, and `make docs` fails where it can not.
    others = [block.name for block in BLOCKS if block.kind not in known and block.kind[:1] != "{"]
    assert others == []


def test_tables_have_no_line_for_what_is_gone() -> None:
    places = {block.place for block in BLOCKS}
    assert {*BEFOREHAND, *ASKED} <= places


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_commands_in_sentences_are_known(path: Path) -> None:
    for text in spans(path):
        if re.match(
            r"(make [a-z]|(\w+=\S+ )*python -m uringloop|python (benchmarks|examples)/)", text
        ):
            check_command(Command(text))


@pytest.mark.parametrize("path", LINKED, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for link in links(path):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), link
        assert ROOT in found.parents, f"{link} is outside of the repository"
        if anchor:
            assert anchor in anchors(found), link
