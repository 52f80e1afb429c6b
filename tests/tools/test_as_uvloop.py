"""`python -m uringloop.as_uvloop`: the program it runs, its children, and the package uvloop.

The oracle is Python itself: the same program, started without this command but with the same
directory on PYTHONPATH, must have the same output and exit status.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

import uringloop
from uringloop import _as_uvloop

FOLDER = os.fspath(Path(next(iter(_as_uvloop.__path__))))
NOTICE = (
    f"uringloop.as_uvloop: `import uvloop` gives uringloop {uringloop.__version__} here and in "
    "child processes\n"
)
HAS_POLICIES = sys.version_info < (3, 16)
policies = pytest.mark.skipif(not HAS_POLICIES, reason="asyncio has no policies since 3.16")

# Prints all that a program can see of how it was started.
LOOK = """
import os, sys, uvloop
print(__name__, globals().get("__file__"), __spec__ and __spec__.name, __package__)
print(sys.argv, sys.path, sys.flags, sys.warnoptions, sys._xoptions, sys.executable)
print(uvloop.__file__, uvloop.__version__, os.environ["PYTHONPATH"])
"""


def run(
    *command: str | Path, cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    # With sys.path as users have it, and in a directory without the sources of the package.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        command,
        cwd=cwd or "/",
        env={**inherited, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def as_uvloop(
    *arguments: str | Path,
    options: Sequence[str] = (),
    cwd: Path | None = None,
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, *options, "-m", "uringloop.as_uvloop", *arguments)
    return run(*command, cwd=cwd, **environ)


def uvloop_program(script: str) -> str:
    """Run *script*, which must succeed, and return what it prints."""
    ended = as_uvloop("-c", textwrap.dedent(script), options=("-W", "error"))
    assert (ended.returncode, ended.stderr) == (0, NOTICE), ended.stderr
    return ended.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory with a script, a module, a package and a directory with __main__.py."""
    (tmp_path / "script.py").write_text(LOOK)
    (tmp_path / "module.py").write_text(LOOK)
    for name in ("package", "runnable"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__main__.py").write_text(LOOK)
    (tmp_path / "package" / "__init__.py").touch()
    return tmp_path


# ── start ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "arguments",
    [
        ["script.py"],
        ["script.py", "-m", "--help", "a b"],
        ["./script.py", "x"],
        ["runnable", "x"],
        ["-m", "module", "-c", "x"],
        ["-m", "package"],
        ["-c", LOOK, "x", "-y"],
    ],
    ids=lambda arguments: " ".join(arguments)[:30],
)
@pytest.mark.parametrize(
    "options",
    [[], ["-P"], ["-B", "-W", "error", "-X", "dev"], ["-OO", "-u"]],
    ids=lambda options: "".join(options) or "no-options",
)
def test_a_program_is_started_as_by_python_alone(
    arguments: list[str], options: list[str], folder: Path
) -> None:
    paths = os.pathsep.join([FOLDER, "elsewhere"])
    plain = run(sys.executable, *options, *arguments, cwd=folder, PYTHONPATH=paths)
    ended = as_uvloop(*arguments, options=options, cwd=folder, PYTHONPATH="elsewhere")
    assert (ended.returncode, ended.stdout) == (plain.returncode, plain.stdout)
    assert ended.stderr == NOTICE + plain.stderr
    # -P removes the current directory from sys.path: then `-m` finds no module.
    assert plain.returncode == (arguments[0] == "-m" and "-P" in options)


@pytest.mark.parametrize(
    ("options", "letters"),
    [([], "-um"), ([], "-Bum"), (["-B", "-X", "dev"], "-m"), (["-u"], "-Bm")],
)
def test_options_before_the_module_are_kept(options: list[str], letters: str) -> None:
    code = "import sys; print(sys.stdout.write_through, sys.flags, sys._xoptions, sys.argv)"
    others = [letters.removesuffix("m")] if letters != "-m" else []
    plain = run(sys.executable, *options, *others, "-c", code, "x", PYTHONUNBUFFERED="").stdout
    for module in ([letters, "uringloop.as_uvloop"], [f"{letters}uringloop.as_uvloop"]):
        command = (sys.executable, *options, *module, "-c", code, "x")
        assert run(*command, PYTHONUNBUFFERED="").stdout == plain


def test_a_command_is_found_on_the_path(folder: Path) -> None:
    program = folder / "bin" / "run-it"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{LOOK}")
    program.chmod(0o755)
    # A directory with the name of the command, which Python cannot run.
    (folder / "run-it").mkdir()
    ended = as_uvloop("run-it", "-x", cwd=folder, PATH=f"{program.parent}:{os.environ['PATH']}")
    assert (ended.returncode, ended.stderr) == (0, NOTICE)
    assert f"['{program}', '-x']" in ended.stdout
    assert os.path.join(FOLDER, "uvloop", "__init__.py") in ended.stdout


def test_the_command_can_run_itself() -> None:
    code = "import os; print(os.environ['PYTHONPATH'])"
    ended = as_uvloop("-m", "uringloop.as_uvloop", "-c", code, PYTHONPATH=FOLDER)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{FOLDER}\n", NOTICE * 2)


# ── exit status and signals ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(3)",
        "raise SystemExit('words')",
        "def f(): 1 / 0\nf()",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
        "this is no Python",
        "import sys; print('on stdout'); print('on stderr', file=sys.stderr)",
    ],
)
def test_a_program_ends_as_under_python_alone(code: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(code)
    plain = run(sys.executable, script)
    ended = as_uvloop(script)
    assert ended.returncode == plain.returncode
    assert (ended.stdout, ended.stderr) == (plain.stdout, NOTICE + plain.stderr)


def test_the_program_keeps_the_process_id_and_gets_signals() -> None:
    script = """if True:
        import asyncio, os, signal, sys, uvloop
        async def main():
            loop, came = asyncio.get_running_loop(), asyncio.Event()
            loop.add_signal_handler(signal.SIGTERM, came.set)
            print(os.getpid(), flush=True)
            await came.wait()
            return 5
        sys.exit(uvloop.run(main()))
    """
    command = (sys.executable, "-m", "uringloop.as_uvloop", "-c", script)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 5


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-m", "uringloop.as_uvloop"], "usage: python -m uringloop.as_uvloop PROGRAM"),
        (["-m", "uringloop.as_uvloop", "--nothing"], "usage: "),
        (["-m", "uringloop.as_uvloop", "-m"], "-m needs an argument"),
        (["-m", "uringloop.as_uvloop", "no-such-program"], "is neither a file nor a command"),
        (["-E", "-m", "uringloop.as_uvloop", "-c", "pass"], "ignore PYTHONPATH"),
        (["-I", "-m", "uringloop.as_uvloop", "-c", "pass"], "ignore PYTHONPATH"),
    ],
)
def test_a_wrong_command_line_is_an_error_message_and_status_2(
    arguments: list[str], problem: str
) -> None:
    ended = run(sys.executable, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert problem in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("redirection", ["2>&-", ">&-", ">&- 2>&-", "2>/dev/full", ">/dev/full"])
def test_a_program_runs_if_stdout_or_stderr_is_closed_or_full(
    redirection: str, tmp_path: Path
) -> None:
    program = f"import uvloop; open({os.fspath(tmp_path / 'ran')!r}, 'w').close()"
    command = shlex.join([sys.executable, "-m", "uringloop.as_uvloop", "-c", program])
    ended = run("sh", "-c", f"{command} {redirection}")
    assert (ended.returncode, (tmp_path / "ran").exists()) == (0, True)


def test_a_failed_execve_is_an_error_message_and_status_2(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/nowhere/at/all\n")
    program.chmod(0o700)
    ended = run(sys.executable, "-m", "uringloop.as_uvloop", "program", PATH=os.fspath(tmp_path))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"{NOTICE}uringloop.as_uvloop: {program}: No such file or directory\n"


def test_help_shows_the_usage() -> None:
    ended = as_uvloop("--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("usage: ")


# ── child processes ──────────────────────────────────────────────────────────────────────────

CHILD = """
import multiprocessing, subprocess, os, sys

def tell(queue):
    import asyncio, uvloop
    async def main():
        return type(asyncio.get_running_loop()).__mro__[1].__module__
    queue.put((uvloop.__file__, uvloop.run(main())))

if __name__ == "__main__":
    print(sys.argv[1], flush=True)
    if sys.argv[1] == "exec":
        os.execv(sys.executable, [sys.executable, __file__, "subprocess"])
    if sys.argv[1] == "subprocess":
        code = "import script, types; script.tell(types.SimpleNamespace(put=print))"
        subprocess.run([sys.executable, "-c", code], cwd=os.path.dirname(__file__), check=True)
    else:
        context = multiprocessing.get_context(sys.argv[1])
        queue = context.SimpleQueue()
        process = context.Process(target=tell, args=(queue,))
        process.start()
        print(queue.get())
        process.join()
"""


@pytest.mark.parametrize("how", ["subprocess", "spawn", "fork", "forkserver", "exec"])
def test_child_processes_import_uringloop_as_uvloop(how: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CHILD)
    ended = as_uvloop(script, how)
    # Only the first process prints the line.
    assert (ended.returncode, ended.stderr) == (0, NOTICE)
    words = ("_as_uvloop/uvloop/__init__.py", "uringloop")
    assert all(word in ended.stdout.splitlines()[-1] for word in words)


# ── without the command ──────────────────────────────────────────────────────────────────────


def test_without_the_command_uvloop_is_not_replaced() -> None:
    code = """if True:
        import sys, uringloop, uringloop.policy, uringloop.as_uvloop
        from importlib.util import find_spec
        found = find_spec("uvloop")
        print(found.origin if found else None)
        assert "uvloop" not in sys.modules
    """
    ended = run(sys.executable, "-c", code)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "_as_uvloop" not in ended.stdout


# ── the package uvloop ───────────────────────────────────────────────────────────────────────


def test_the_package_has_the_names_of_uvloop() -> None:
    names = ["Loop", "new_event_loop", "run", "__version__", "loop"]
    names += ["EventLoopPolicy", "install"] if HAS_POLICIES else []
    assert uvloop_program(f"import uvloop; print([hasattr(uvloop, n) for n in {names}])") == (
        f"{[True] * len(names)}\n"
    )
    assert uvloop_program("import uvloop; print(uvloop.__version__)") == (
        f"0.23.0+uringloop.{uringloop.__version__}\n"
    )


@pytest.mark.skipif(find_spec("uvloop") is None, reason="needs uvloop")
def test_the_package_exports_what_uvloop_exports() -> None:
    script = "import uvloop, inspect; print(set(uvloop.__all__), inspect.signature(uvloop.run))"
    real, ours = run(sys.executable, "-c", script).stdout, uvloop_program(script)
    (names, _), (own, signature) = real.rsplit("} ", 1), ours.rsplit("} ", 1)
    assert set(names.strip("{").split(", ")) <= set(own.strip("{").split(", "))
    assert signature.startswith("(main")


def test_the_loop_class_has_the_name_of_uvloops() -> None:
    script = """
        import asyncio, uringloop, uvloop
        loop = uvloop.new_event_loop()
        assert type(loop) is uvloop.Loop is uvloop.loop.Loop
        assert isinstance(loop, uringloop.Loop) and isinstance(loop, asyncio.AbstractEventLoop)
        print(uvloop.Loop, type(loop).__module__, repr(loop))
        loop.close()
    """
    expected = "<class 'uvloop.Loop'> uvloop <Loop running=False closed=False debug=False"
    assert uvloop_program(script).startswith(expected)


def test_run_refuses_loops_of_other_classes() -> None:
    script = """
        import asyncio, uringloop, uvloop
        async def main():
            return asyncio.get_running_loop().get_debug(), asyncio.get_running_loop()
        debug, loop = uvloop.run(main(), debug=True)
        assert debug and type(loop) is uvloop.Loop and loop.is_closed()
        class Mine(uvloop.Loop): pass
        assert type(uvloop.run(main(), loop_factory=Mine)[1]) is Mine
        refused = main()
        try:
            uvloop.run(refused, loop_factory=asyncio.SelectorEventLoop)
        except TypeError as exc:
            print(exc)
        refused.close()
        async def fail():
            raise ZeroDivisionError
        try:
            uvloop.run(fail())
        except ZeroDivisionError:
            print("raised")
    """
    assert uvloop_program(script) == "uvloop.run() uses a non-uvloop event loop\nraised\n"


@policies
def test_the_policy_creates_uvloop_named_loops() -> None:
    script = """
        import asyncio, uringloop, uvloop, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        async def kind():
            return type(asyncio.get_running_loop())
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        assert asyncio.run(kind()) is uvloop.Loop
        asyncio.set_event_loop_policy(None)
        uvloop.install()
        assert isinstance(asyncio.get_event_loop_policy(), uvloop.EventLoopPolicy)
        assert isinstance(uvloop.EventLoopPolicy(), uringloop.EventLoopPolicy)
        assert asyncio.run(kind()) is uvloop.Loop
    """
    assert uvloop_program(script) == ""


@policies
def test_a_late_install_warns_at_the_callers_line() -> None:
    script = """
        import asyncio, uvloop, warnings
        async def main():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                uvloop.install()
            told = [w for w in caught if w.category is RuntimeWarning]
            print(str(told[0].message)[:33], told[0].filename)
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(main())
    """
    assert uvloop_program(script) == "uvloop.install() came too late: < <string>\n"


@pytest.mark.skipif(HAS_POLICIES, reason="asyncio has policies up to 3.15")
def test_there_are_no_names_of_policies_from_3_16_on() -> None:
    script = """
        import uvloop
        print(hasattr(uvloop, "install"), hasattr(uvloop, "EventLoopPolicy"))
    """
    assert uvloop_program(script) == "False False\n"


def test_transports_are_instances_of_uvloops_class_names() -> None:
    script = """
        import asyncio, os, socket, uvloop, uvloop.loop as names
        async def main():
            loop = asyncio.get_running_loop()
            server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
            assert isinstance(server, names.Server)
            address = server.sockets[0].getsockname()
            tcp, _ = await loop.create_connection(asyncio.Protocol, *address)
            ours, theirs = socket.socketpair()
            unix, _ = await loop.create_unix_connection(asyncio.Protocol, sock=ours)
            udp, _ = await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
            reads, writes = (os.fdopen(fd, mode, 0) for fd, mode in zip(os.pipe(), ("rb", "wb")))
            reader, _ = await loop.connect_read_pipe(asyncio.Protocol, reads)
            writer, _ = await loop.connect_write_pipe(asyncio.Protocol, writes)
            process, _ = await loop.subprocess_exec(asyncio.SubprocessProtocol, "true")
            soon, later = loop.call_soon(len, ""), loop.call_later(60, print)
            for made, cls in [
                (tcp, names.TCPTransport), (unix, names.UnixTransport), (udp, names.UDPTransport),
                (reader, names.ReadUnixTransport), (writer, names.WriteUnixTransport),
                (process, names.UVProcessTransport),
                (soon, names.Handle), (later, names.TimerHandle),
            ]:
                assert isinstance(made, cls), (made, cls)
                assert not isinstance(loop, cls)
            await process._wait()
            for transport in (tcp, unix, udp, reader, writer, process):
                transport.close()
            later.cancel()
            theirs.close()
            server.close()
            await server.wait_closed()
        uvloop.run(main())
    """
    ended = as_uvloop("-c", textwrap.dedent(script))
    assert (ended.returncode, ended.stderr) == (0, NOTICE)
