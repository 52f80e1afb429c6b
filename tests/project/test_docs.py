"""Runs every program and command of the documents, and checks every link.

Every fenced block is tested: a program that fails, a command without a rule, or a language that is
in none of the tables, fails a test. A block that cannot be run as it is has a line in a table here,
with the reason.
"""

from __future__ import annotations

import ast
import builtins
import configparser
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.command_rules import TIME_LIMIT_S, check_command
from support.documents import (
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
from support.roles import PATIENCE, wait_until

import uringloop
from uringloop.bench.settings import BenchError

BLOCKS = [block for path in PAGES for block in blocks(path)]
CERTIFICATES = ROOT / "tests" / "certificates"

# The port of servers in documents; each test replaces it by a free one.
PORT = "8888"


def each(*kinds: str) -> pytest.MarkDecorator:
    """Run a test on each block of these kinds, named by its page, line and heading."""
    found = [pytest.param(block, id=block.name) for block in BLOCKS if block.kind in kinds]
    return pytest.mark.parametrize("block", found)


# ── code around the programs ─────────────────────────────────────────────────────────────────

# Stands for the application of a page.
APPLICATION = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body"})
"""

# Code that runs before a program, by page and heading.
BEFOREHAND = {
    ("docs/how-to/servers.md", "aiohttp"): """
        from aiohttp import web
        app = web.Application()
        """,
    ("docs/how-to/servers.md", "granian"): f"""
        from pathlib import Path
        Path("app.py").write_text({APPLICATION!r})
        """,
    ("docs/how-to/servers.md", "hypercorn"): APPLICATION,
    # A Jupyter kernel closes the loop at its exit.
    ("docs/how-to/tools.md", "Jupyter"): """
        import atexit
        atexit.register(lambda: asyncio.get_event_loop().close())
        """,
    # A container engine's seccomp profile, shortened.
    ("docs/how-to/containers.md", "The seccomp profile"): """
        import atexit, json
        from pathlib import Path
        rule = {"names": ["read", "write"], "action": "SCMP_ACT_ALLOW"}
        default = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [rule]}
        Path("default.json").write_text(json.dumps(default))

        @atexit.register
        def check():
            made = json.loads(Path("io_uring.json").read_text())
            added = [made["syscalls"].pop() for _ in range(6)]
            assert made == default
            assert {rule["action"] for rule in added} == {"SCMP_ACT_ALLOW"}
            assert [len(rule["names"]) for rule in added] == [1] * 5 + [2]
        """,
    # The profile with rules that have conditions, shortened.
    ("docs/how-to/kubernetes.md", "The profile on the nodes"): """
        import atexit, json
        from pathlib import Path
        allow = "SCMP_ACT_ALLOW"
        rules = [
            {"names": ["read"], "action": allow, "comment": "", "includes": {}, "excludes": {}},
            {"names": ["ptrace"], "action": allow, "includes": {"minKernel": "4.8"}},
            {"names": ["bpf"], "action": allow, "includes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["clone"], "action": allow, "excludes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["modify_ldt"], "action": allow, "includes": {"arches": ["amd64", "x86"]}},
            {"names": ["s390_pci"], "action": allow, "includes": {"arches": ["s390"]}},
        ]
        default = {"defaultAction": "SCMP_ACT_ERRNO", "archMap": [], "syscalls": rules}
        Path("io_uring.json").write_text(json.dumps(default))

        @atexit.register
        def check():
            made = json.loads(Path("node.json").read_text())
            names = [rule.pop("names")[0] for rule in made["syscalls"]]
            assert names == ["read", "ptrace", "clone", "modify_ldt"]
            assert made["syscalls"] == [{"action": allow}] * 4
            assert "archMap" not in made and made["architectures"]
        """,
    ("docs/start/tutorial.md", "TLS"): f"""
        import shutil
        for name in ("server.pem", "ca.pem"):
            shutil.copy({str(CERTIFICATES)!r} + "/" + name, name)
        """,
}

# Packages that a test environment may lack; each is in an extra of pyproject.toml.
OPTIONAL = {
    *("aiofiles", "aiohttp", "anyio", "dask", "fastapi", "granian", "httpx", "hypercorn"),
    *("nest_asyncio", "pytest_asyncio", "sanic", "starlette", "uvicorn", "uvloop", "websockets"),
}

# The package that a module of uringloop needs to be imported.
BEHIND = {
    "uringloop.workers import uvicorn": "uvicorn_worker",
    "uringloop.workers.granian": "granian",
}

# Servers that log to standard error.
LOGS_TO_STDERR = {("docs/how-to/servers.md", "granian"), ("docs/how-to/servers.md", "hypercorn")}

# Programs that another test runs, in the environment that they need.
ELSEWHERE = {("docs/how-to/servers.md", "Dask"): "tests/frameworks/test_recipes.py"}

# A warning of Pythons on which threads take turns.
WITH_GIL = "ignore:the threads of run_threads:RuntimeWarning"

# Features by the version of Python that introduced them.
NEWER = {re.compile(r"asyncio\.run\([^\n]*loop_factory"): (3, 12)}


def undefined_names(text: str) -> set[str]:
    """Return the names that a program uses and does not define."""
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
    """Return whether a program awaits outside of functions, as in asyncio's REPL."""
    code = compile(text, "program", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return bool(code.co_flags & 0x80)


def program_of(block: Block) -> str:
    """Return the program to run: the block, which imports all that it uses, after BEFOREHAND."""
    text = textwrap.dedent(BEFOREHAND.get(block.place, "")) + block.text
    assert undefined_names(text) == set()
    if awaits(text):
        indented = textwrap.indent(text, "    ")
        text = f"import uringloop\nasync def all():\n{indented}\nuringloop.run(all())\n"
    return text


def check_can_be_run(block: Block) -> None:
    """Skip a program that needs a newer Python, or a package that is not installed."""
    for pattern, version in NEWER.items():
        if pattern.search(block.text) and sys.version_info < version:
            pytest.skip(f"needs Python {'.'.join(map(str, version))}")
    for words, module in BEHIND.items():
        if words in block.text and find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    for module in imported(block.text):
        if find_spec(module) is None:
            assert module in OPTIONAL, f"{module} is not in OPTIONAL"
            pytest.skip(f"{module} is not installed")


def imported(text: str) -> set[str]:
    """Return the packages that a program imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


# ── servers ──────────────────────────────────────────────────────────────────────────────────

Ask = Callable[[socket.socket], None]


def echoes(client: socket.socket) -> None:
    client.sendall(b"a line\n")
    assert client.recv(100) == b"a line\n"


def says_hello(client: socket.socket) -> None:
    client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nhello\n")


def answers(client: socket.socket) -> None:
    client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert client.makefile("rb").readline().startswith(b"HTTP/1.1 404 ")


# Requests to programs that run until Ctrl-C, by page and heading; they listen on PORT.
ASKED: dict[tuple[str, str], Ask] = {
    ("README.md", "Use"): says_hello,
    ("docs/start/tutorial.md", "A first server"): echoes,
    ("docs/how-to/all-cores.md", "Many loops in one process"): echoes,
    ("docs/how-to/servers.md", "aiohttp"): answers,
    ("docs/how-to/servers.md", "granian"): answers,
    ("docs/how-to/servers.md", "hypercorn"): answers,
}


@contextlib.contextmanager
def running(path: Path, warnings: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program in its own folder, with three lines as standard input."""
    lines = path.with_name("input")
    lines.write_text("one\ntwo\nthree\n")
    with (
        lines.open() as stdin,
        subprocess.Popen(
            [sys.executable, "-W", warnings, "-W", WITH_GIL, path.name],
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
    """Send a request to a server as soon as it listens, and then end it by Ctrl-C."""

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
    if block.place in ELSEWHERE:
        pytest.skip(f"{ELSEWHERE[block.place]} runs it")
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = found.getsockname()
    path = tmp_path / "program.py"
    path.write_text(program_of(block).replace(PORT, str(address[1])))
    question = ASKED.get(block.place) if PORT in block.text else None
    # Warnings are errors, except in programs that use other packages.
    warnings = "ignore" if imported(block.text) & OPTIONAL else "error"
    with running(path, warnings) as process:
        if question is not None:
            ask(process, address, question)
        output, errors = process.communicate(timeout=TIME_LIMIT_S)
    if block.place in LOGS_TO_STDERR:
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
    elif question is not None and process.returncode == -signal.SIGINT:
        assert errors.rstrip().endswith("\nKeyboardInterrupt")
    else:
        assert (process.returncode, errors) == (0, "")
    if block.output is not None:
        assert matches(block.output, output), output


# ── commands ─────────────────────────────────────────────────────────────────────────────────


@each("sh", "console")
def test_command(block: Block) -> None:
    found = commands(block)
    assert found, "a block without a command"
    for command in found:
        check_command(command)


# ── data and other languages ─────────────────────────────────────────────────────────────────


def read_ini(text: str) -> None:
    """Parse a systemd unit, check its command, and verify it by systemd-analyze if installed."""
    parser = configparser.ConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    assert parser.sections()
    for section in (parser[name] for name in parser if "ExecStart" in parser[name]):
        check_command(Command(section["ExecStart"]))
    if shutil.which("systemd-analyze") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        # systemd-analyze verifies that the program exists.
        here = re.sub(r"^(ExecStart)=\S+", f"\\1={sys.executable}", text, flags=re.MULTILINE)
        units = {"orders.service": f"[Service]\nExecStart={sys.executable}\n"}
        units["orders.socket" if "Socket" in parser else "orders.service"] = here
        for name, unit in units.items():
            Path(folder, name).write_text(unit)
        done = subprocess.run(
            ["systemd-analyze", "verify", *(f"{folder}/{name}" for name in units)],
            env={**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")


def read_dockerfile(text: str) -> None:
    """Check the instructions of a Dockerfile: its commands and the names of its stages."""
    stages = set()
    for command in commands(Block("", 0, "", "sh", text)):
        instruction, words = command.text.split(maxsplit=1)
        if instruction == "FROM":
            stages |= {words.partition(" AS ")[2]} - {""}
        elif instruction == "RUN":
            if option := re.match(r"--mount=from=(\w+),\S+ ", words):
                assert option[1] in stages
                words = words[option.end() :]
            check_command(Command(words))
        elif instruction == "CMD":
            check_command(Command(shlex.join(json.loads(words))))
        else:
            assert instruction in ("COPY", "USER", "WORKDIR"), instruction


def read_yaml(text: str) -> None:
    assert pytest.importorskip("yaml").safe_load(text)


def read_c(text: str) -> None:
    command = ["cc", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c", "-"]
    subprocess.run(command, input=text, text=True, check=True)


# Languages that are parsed and not run, by their parsers.
READERS: dict[str, Callable[[str], object]] = {
    "c": read_c,
    "dockerfile": read_dockerfile,
    "ini": read_ini,
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": read_yaml,
}

# Languages that are not checked, with the reason.
UNREAD = {
    "text": "figures and tables, for people",
}


@each(*READERS)
def test_data_can_be_read(block: Block) -> None:
    READERS[block.kind](block.text)


def test_every_block_is_of_a_known_kind() -> None:
    known = {"python", "sh", "console", *READERS, *UNREAD}
    # Languages in braces are directives of Sphinx; `make docs` fails on an invalid one.
    others = [block.name for block in BLOCKS if block.kind not in known and block.kind[:1] != "{"]
    assert others == []


def test_every_public_name_is_documented() -> None:
    names = {name for name in dir(uringloop) if not name.startswith("__")}
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    described = re.findall(
        r"^\.\. (?:auto)?(?:class|function|module):: (?:uringloop\.)?(\w+)", page, re.M
    )
    # Modules that are run, or named to other programs, are not called.
    pages = "".join(path.read_text() for path in PAGES)
    named = re.findall(r"(?:-[mp] |`)uringloop\.(\w+)", pages)
    assert names - set(described) - set(named) == set()
    assert names - set(described) == {"bench", "pytest_plugin", "top", "workers"}


def test_every_line_of_the_tables_has_a_block() -> None:
    places = {block.place for block in BLOCKS}
    assert {*BEFOREHAND, *ASKED, *ELSEWHERE, *LOGS_TO_STDERR} <= places
    for place, name in ELSEWHERE.items():
        assert f'"{place[1]}"' in (ROOT / name).read_text()


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_commands_in_sentences_are_known(path: Path) -> None:
    for text in spans(path):
        if re.match(
            r"(make [a-z]|nox -|(\w+=\S+ )*python -m uringloop|python (benchmarks|examples)/)", text
        ):
            check_command(Command(text))


@pytest.mark.parametrize("path", LINKED, ids=name_of)
def test_links_have_existing_targets(path: Path) -> None:
    for link in links(path):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), link
        assert ROOT in found.parents, f"{link} is outside of the repository"
        if anchor:
            assert anchor in anchors(found), link


# ── the rules themselves ─────────────────────────────────────────────────────────────────────

EXAMPLE = """\
# A `page`

```python
print(1)
```

```text
1
```

## Twice

```console
$ ls \\
    -l
total ...
$ true
```

[one](there.md#a-b) and `[no](link)`

## Twice
"""


def test_a_page_is_parsed_into_blocks_links_and_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.documents.ROOT", tmp_path)
    path = tmp_path / "page.md"
    path.write_text(EXAMPLE)
    program, console = blocks(path)
    assert (program.name, program.kind, program.output) == ("page.md:3 A page", "python", "1\n")
    assert (console.name, console.kind) == ("page.md:13 Twice", "console")
    assert commands(console) == [Command("ls -l", "total ...\n"), Command("true")]
    assert anchors(path) == {"a-page", "twice", "twice-1"}
    assert links(path) == ["there.md#a-b"]
    assert spans(path) == ["page", "[no](link)"]


@pytest.mark.parametrize(
    "text",
    [
        "frobnicate --now",
        "/srv/a/.venv/bin/frobnicate",
        "find /etc",
        "systemd-socket-activate -l 127.0.0.1:8000 frobnicate",
        "make nothing",
        "make test NOTHING=1",
        'make bench ARGS="--frobnicate"',
        "nox -s nothing",
        "nox -s tests-2.7",
        "nox -s compare --force-python 2.7",
        "nox -s compare -- --frobnicate",
        "nox -s soft -- tests/nothing/test_nothing.py",
        "python -m uringloop.nothing",
        "python -m uringloop.bench --rounds 1",
        "python -m uringloop.doctor --frobnicate",
        "python -m uringloop.as_uvloop frobnicate",
        "python examples/nothing.py",
        "URINGLOOP_NOTHING=1 python app.py &",
        "echo | frobnicate > file",
        'pip install "uringloop[top]"',
        'pip install "asyncio-uringloop[top]"',
        'pip install ".[nothing]"',
        "pip wheel --frobnicate .",
        "make 'test",
    ],
)
def test_a_wrong_command_is_found(text: str) -> None:
    with pytest.raises((AssertionError, BenchError, subprocess.CalledProcessError)):
        check_command(Command(text))


def test_an_undefined_name_is_found() -> None:
    text = "import a.b, g\nfor c in a: d(c, *[e for e in f])"
    assert undefined_names(text) == {"d", "f"}
    assert imported(text) == {"a", "g"}


def test_dots_stand_for_anything() -> None:
    assert matches("a ... c\n...\n", "a b c\nd\ne\n")
    assert not matches("a ... c\n", "a b d\n")
