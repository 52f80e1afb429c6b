"""python -m uringloop.top: which programs it finds, what it shows, and its exit status."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.loops import backend
from support.roles import PATIENCE, run_script
from support.watched import (
    NOBODY,
    as_root,
    environment,
    following,
    pipe_of,
    place,
    program,
    run_top,
)

import uringloop
from uringloop import top
from uringloop.monitor import client, render, snapshots, socket_paths
from uringloop.monitor.client import Sample
from uringloop.monitor.snapshots import LoopSnapshot, Snapshot

# The fixture is found by its name here.
__all__ = ["place"]

# A loop that echoes, and one that is blocked until the test sends a line.
BUSY = """
async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()

async def work():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    while not done.is_set():
        writer.write(b"x" * 1000)
        await reader.readexactly(1000)
        await asyncio.sleep(0.001)
    writer.close()
    await reader.read()
    server.close()

def blocked():
    ready()
    go()

async def main():
    asyncio.get_running_loop().call_soon(blocked)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

done = threading.Event()
worker = threading.Thread(target=lambda: uringloop.run(work()), name="a worker")
worker.start()
uringloop.run(main())
done.set()
worker.join()
"""

IDLE = """
async def main():
    asyncio.get_running_loop().call_soon(ready)
    await asyncio.get_running_loop().run_in_executor(None, go)

uringloop.run(main())
"""


def table_of(text: str) -> dict[str, list[str]]:
    """Return the cells of a plain table's first part by label; the label of the headings is ""."""
    lines = text.split("\n\n")[1].split("\n")
    width = len("operations in flight") + 2
    return {
        line[:width].strip(): [cell.strip() for cell in line[width:].split("  ") if cell.strip()]
        for line in lines
    }


# ── one sample ───────────────────────────────────────────────────────────────────────────────


def test_table_has_a_column_for_each_loop(place: Path) -> None:
    with program(place, BUSY) as watched:
        done = run_top(place, watched.pid, "--once", "--interval", "0.3")
        watched.end()
    assert (done.returncode, done.stderr) == (0, "")
    title, versions = done.stdout.split("\n")[:2]
    assert title.startswith(f"{watched.pid}  {sys.executable}")
    assert versions.startswith(f"uringloop {uringloop.__version__}, ")
    table = table_of(done.stdout)
    assert table[""] == ["MainThread", "a worker"]
    assert table["ring"] == [backend()] * 2
    assert table["state"][0].startswith("! BLOCKED ")
    # A turn that has not ended counts as lag.
    assert table["lag"][0].startswith("! ")
    assert table["turns/s"][0] == "0"
    for label in ("turns/s", "kernel entries/s", "completions/s"):
        assert float(table[label][1].replace(",", "")) > 0
    for label in ("received", "sent"):
        assert table[label][0] == "0 B/s"
        assert table[label][1].endswith(("kB/s", "MB/s"))
    (note,) = [line for line in done.stdout.split("\n") if line.startswith("MainThread:")]
    assert ": blocked for " in note
    assert "in go, <string>:" in note


def test_json_has_the_answer_and_the_rates(place: Path) -> None:
    with program(place, BUSY) as watched:
        done = run_top(place, watched.socket, "--once", "--json", "--interval", "0.3")
        watched.end()
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    sample: dict[str, Any] = json.loads(line)
    assert sample["pid"] == watched.pid
    assert 0.3 <= sample["seconds"] < 60
    blocked, working = sample["loops"]
    assert (blocked["rates"]["turns"], blocked["rates"]["cpu"]) == (0, 0)
    # The kernel's coarse clock may be 10 ms old.
    assert sample["seconds"] - 0.1 <= blocked["blocked"] < 60
    assert working["blocked"] < blocked["blocked"]
    # The loop receives what it sends to itself.
    rates = working["rates"]
    assert rates["received_bytes"] == pytest.approx(rates["sent_bytes"], rel=0.5)
    assert rates["turns"] > 0
    assert set(working["stats"]) >= {"turns", "batches", "lag"}


def snapshot(seconds: float, **stats: int) -> Snapshot:
    """Return the answer of a program with one loop, *seconds* after its start."""
    counts: Any = {**dict.fromkeys((*client.RATED, *client.SHOWN), 0), **stats}
    loop: LoopSnapshot = {
        "id": 1,
        "class": "Loop",
        "name": "MainThread",
        "thread": "MainThread",
        "thread_id": 7,
        "thread_cpu": seconds / 2,
        "running": True,
        "sleeping": False,
        "blocked": 0.0,
        "place": None,
        "task": None,
        "debug": False,
        "backend": "soft",
        "backend_reason": "",
        "stats": counts,
    }
    return {
        "protocol": 1,
        "pid": 1,
        "command": "python",
        "python": "3",
        "uringloop": "0",
        "time": seconds,
        "cpu": seconds / 4,
        "loops": [loop],
    }


def test_rates_are_differences_over_the_programs_clock() -> None:
    first = Sample(snapshot(10, turns=100, batched=50, sent_bytes=1))
    second = Sample(snapshot(12, turns=300, batched=850, sent_bytes=3_000_001, starved=5), first)
    assert first.loops[0]["rates"] is None
    rates = second.loops[0]["rates"]
    assert rates is not None
    assert (second.cpu, second.seconds, rates["cpu"]) == (0.25, 2, 0.5)
    assert (rates["turns"], rates["completions_per_turn"]) == (100, 4)
    assert (rates["sent_bytes"], rates["starved"], rates["overflows"]) == (1_500_000, 2.5, 0)


def test_rates_of_a_new_loop_at_the_same_address_start_at_zero() -> None:
    first = Sample(snapshot(10, turns=1000))
    rates = Sample(snapshot(12, turns=10), first).loops[0]["rates"]
    assert rates is not None
    assert rates["turns"] == 5


@pytest.mark.parametrize(
    ("blocked", "state"),
    [(0.0, "at work"), (0.1, "at work"), (0.11, "BLOCKED"), (4.0, "BLOCKED 4.0 s")],
)
def test_turn_of_more_than_100_ms_is_shown_as_blocked(blocked: float, state: str) -> None:
    one = snapshot(10)
    one["loops"][0]["blocked"] = blocked
    one["loops"][0]["place"] = {"function": "f", "file": "x.py", "line": 3}
    view = render.view_of(Sample(one), [])
    (row,) = [row for row in view.rows if row.label == "state"]
    assert row.cells[0].startswith(state)
    assert row.alarms == [blocked > 0.1]
    assert ("blocked for" in view.notes[0]) == row.alarms[0]
    assert view.notes[0].endswith(" in f, x.py:3")


def test_problems_are_marked() -> None:
    sample = Sample(snapshot(12, turns=9, starved=4), Sample(snapshot(10)))
    lines = render.plain_lines(render.view_of(sample, []), 120)
    (line,) = [line for line in lines if line.startswith("starved/s")]
    assert line.endswith("! 2.0")
    assert [line for line in lines if "!" in line] == [line]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1.5, "1.5 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (2.1e9, "2.1 GB"),
        (5e12, "5,000 GB"),
    ],
)
def test_sizes_have_readable_units(value: float, text: str) -> None:
    assert render.size(value) == text


def many(count: int) -> render.View:
    """Return the view of *count* loops with long numbers."""
    snapshot_now = snapshot(12, turns=200_000_000, sent_bytes=10**12)
    (loop,) = snapshot_now["loops"]
    snapshot_now["loops"] = [
        {**loop, "id": number, "name": f"ThreadPoolExecutor-0_{number}"} for number in range(count)
    ]
    return render.view_of(Sample(snapshot_now, Sample(snapshot(10))), ["a note of the end"])


@pytest.mark.parametrize("count", [0, 1, 3, 10])
def test_plain_table_is_not_cut(count: int) -> None:
    view = many(count)
    lines = render.plain_lines(view, 120)
    assert max(map(len, lines)) <= 120
    everything_is_in("\n".join(lines), view)


@pytest.mark.parametrize("count", [0, 1, 3, 10])
def test_table_of_rich_is_not_cut(count: int) -> None:
    console = pytest.importorskip("rich.console")
    file = io.StringIO()
    view = many(count)
    console.Console(file=file, width=120).print(render.rich_group(view, 120))
    assert max(map(len, file.getvalue().split("\n"))) <= 120
    everything_is_in(file.getvalue(), view)


def everything_is_in(text: str, view: render.View) -> None:
    assert "…" not in text
    for line in (*view.title, *view.headings, *view.notes):
        assert line in text
    for row in view.rows:
        assert sum(text.count(cell) for cell in set(row.cells)) >= len(row.cells)
        assert row.label in text


def test_rich_updates_the_table_in_place() -> None:
    console = pytest.importorskip("rich.console")
    file = io.StringIO()
    screen = console.Console(file=file, width=120, height=40, force_terminal=True)
    with top.rich_screen(screen) as show:
        show(many(1))
        show(many(2))
    # The cursor moves up over the lines of the first view.
    assert file.getvalue().count("\x1b[1A") >= 20
    assert "ThreadPoolExecutor-0_1" in file.getvalue()


def on_terminal(folder: Path, script: str) -> str:
    """Return what *script* writes to a terminal until it ends."""
    leader, follower = os.openpty()
    variables = {"COLUMNS": "120", "LINES": "40", "TERM": "xterm", "NO_COLOR": ""}
    with (
        open(leader, "rb", buffering=0) as terminal,
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            env=environment(folder, **variables),
            stdout=follower,
            stderr=follower,
        ) as process,
    ):
        os.close(follower)
        written = b""
        # Reading raises OSError, not EOF, once no process has the terminal open.
        with contextlib.suppress(OSError):
            while data := terminal.read(65536):
                written += data
    assert process.returncode == 0, written
    return written.decode().replace("\r\n", "\n")


def test_terminal_has_plain_tables_without_rich(place: Path) -> None:
    with program(place, IDLE) as watched:
        text = on_terminal(
            place,
            f"""
            import sys
            sys.modules["rich"] = None
            from uringloop import top
            sys.exit(top.main(["{watched.socket}", "--once", "--interval", "0.1"]))
            """,
        )
        watched.end()
    assert table_of(text)["state"] == ["asleep"]
    assert "\x1b" not in text


def test_terminal_has_a_rich_table(place: Path) -> None:
    pytest.importorskip("rich")
    with program(place, IDLE) as watched:
        text = on_terminal(
            place,
            f"""
            import sys
            from uringloop import top
            sys.exit(top.main(["{watched.socket}", "--once", "--interval", "0.1"]))
            """,
        )
        watched.end()
    # rich hides the cursor while it shows the table.
    assert text.index("\x1b[?25l") < text.index("asleep") < text.index("\x1b[?25h")


def test_control_characters_from_a_program_are_replaced() -> None:
    evil = snapshot(1)
    evil["command"] = evil["loops"][0]["name"] = "\x1b[2Jname\n"
    lines = render.plain_lines(render.view_of(Sample(evil), []), 120)
    assert lines[0] == "1  ?[2Jname "
    assert lines[3].endswith("  ?[2Jname")
    lines = render.plain_lines(render.overview_of([], [(Sample(evil), 0.0)], 120, []), 120)
    assert lines[2].startswith("1       ?[2Jname ")
    assert lines[2].endswith("  ?[2Jname")


# ── following ────────────────────────────────────────────────────────────────────────────────


def test_end_of_the_program_is_reported_at_once_with_status_3(place: Path) -> None:
    with (
        program(place, IDLE) as watched,
        following(place, watched.pid, "--interval", "30") as shown,
    ):
        assert pipe_of(shown.stdout).readline().startswith(f"{watched.pid}  ")
        watched.end()
        _, errors = shown.communicate(timeout=2 * PATIENCE)
    assert errors == f"process {watched.pid} has ended\n"
    assert shown.returncode == 3


def test_killed_program_is_reported_as_ended(place: Path) -> None:
    with (
        program(place, BUSY) as watched,
        following(place, watched.pid, "--json", "--interval", "0.1") as shown,
    ):
        assert pipe_of(shown.stdout).readline().startswith("{")
        watched.process.kill()
        _, errors = shown.communicate(timeout=2 * PATIENCE)
    assert errors == f"process {watched.pid} has ended\n"
    assert shown.returncode == 3


def test_stopped_monitor_is_not_reported_as_an_end(place: Path) -> None:
    script = """
    uringloop.new_event_loop().close()
    ready()
    go()
    uringloop.monitor.stop()
    go()
    """
    with (
        program(place, script) as watched,
        following(place, watched.pid, "--interval", "30") as shown,
    ):
        assert pipe_of(shown.stdout).readline() != ""
        watched.go()
        _, errors = shown.communicate(timeout=2 * PATIENCE)
        assert shown.returncode == 3
        assert errors == f"process {watched.pid} is still running, but can no longer be watched\n"
        watched.end()


def test_later_looks_have_later_times(place: Path) -> None:
    with (
        program(place, BUSY) as watched,
        following(place, watched.pid, "--json", "--interval", "0.1") as shown,
    ):
        samples = [json.loads(pipe_of(shown.stdout).readline()) for _ in range(4)]
        watched.end()
    times = [sample["time"] for sample in samples]
    assert times == sorted(set(times))
    lasted = [sample["loops"][0]["blocked"] for sample in samples]
    assert lasted == sorted(set(lasted))


def test_ctrl_c_exits_with_status_0(place: Path) -> None:
    with program(place, IDLE) as watched, following(place, watched.pid) as shown:
        assert pipe_of(shown.stdout).readline() != ""
        shown.send_signal(signal.SIGINT)
        _, errors = shown.communicate(timeout=2 * PATIENCE)
        assert (shown.returncode, errors) == (0, "")
        watched.end()


def test_closed_pipe_exits_with_status_0(place: Path) -> None:
    with (
        program(place, IDLE) as watched,
        following(place, watched.pid, "--json", "--interval", "0.1") as shown,
    ):
        assert pipe_of(shown.stdout).readline() != ""
        pipe_of(shown.stdout).close()
        assert shown.wait(2 * PATIENCE) == 0
        assert pipe_of(shown.stderr).read() == ""
        watched.end()


def test_program_that_keeps_the_gil_is_reported(place: Path) -> None:
    script = """
    import ctypes
    uringloop.new_event_loop().close()
    ready()
    go()
    # Keep the GIL until the test writes a byte.
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
    ready("went on")
    go()
    """
    with (
        program(place, script) as watched,
        following(place, watched.pid, "--interval", "0.2") as shown,
    ):
        assert pipe_of(shown.stdout).readline() != ""
        watched.go()
        seen = ""
        while "keeps the GIL" not in seen:
            seen = pipe_of(shown.stdout).readline()
        assert seen.startswith("no answer for ")
        watched.go()
        assert watched.line() == "went on"
        watched.process.kill()


# ── programs ─────────────────────────────────────────────────────────────────────────────────


def test_list_has_only_running_programs(place: Path) -> None:
    with program(place, IDLE):
        pass
    with program(place, IDLE) as first, program(place, BUSY) as second:
        done = run_top(place, "--list")
        assert done.returncode == 0
        rows = [line.split() for line in done.stdout.splitlines()]
        assert rows[0] == ["PID", "loops", "socket", "command"]
        # Root also sees programs of other users.
        ours = {tuple(row[:3]) for row in rows if row[2].startswith(str(place))}
        assert ours == {
            (str(first.pid), "1", str(first.socket)),
            (str(second.pid), "2", str(second.socket)),
        }


def test_message_for_no_programs_names_the_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "all_paths", list)
    for arguments in ([], ["--list"], ["--once"]):
        assert top.main(arguments) == 1
        assert client.HINT in capsys.readouterr().err


def test_process_id_finds_a_path_set_by_the_variable(place: Path) -> None:
    own = place / "elsewhere"
    own.mkdir()
    for chosen in (own / "file", own):
        with program(place, IDLE, URINGLOOP_MONITOR=str(chosen)) as watched:
            done = run_top(place, watched.pid, "--once", "--json", "--interval", "0.1")
            assert json.loads(done.stdout)["pid"] == watched.pid
            watched.end()


def error_of_top(folder: Path, target: object) -> str:
    done = run_top(folder, target)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.rstrip("\n")


def test_missing_process_is_reported(place: Path) -> None:
    with program(place, IDLE) as watched:
        watched.end()
    assert error_of_top(place, watched.pid) == f"no such process: {watched.pid}"


def test_message_for_no_monitor_names_the_variable(place: Path) -> None:
    with program(place, IDLE, URINGLOOP_MONITOR="") as watched:
        assert "has no monitor: start it with URINGLOOP_MONITOR=1" in error_of_top(
            place, watched.pid
        )
        watched.end()


def test_socket_without_listener_is_reported(place: Path) -> None:
    assert error_of_top(place, place / "none") == f"no such file: {place}/none"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(place / "dead"))
    assert "no process listens" in error_of_top(place, place / "dead")
    (place / "file").touch()
    assert "no process listens" in error_of_top(place, place / "file")


# What a process of the first release answers: later versions of top must understand it. Protocol 1
# may get more keys, so top may require no key that this answer lacks.
FIRST_RELEASE = {
    "protocol": 1,
    "pid": 1,
    "command": "python server.py",
    "python": "3.13.0",
    "uringloop": "1.0.0",
    "time": 1.5,
    "cpu": 0.25,
    "loops": [
        {
            "id": 1,
            "class": "Loop",
            "name": "MainThread",
            "thread": "MainThread",
            "thread_id": 7,
            "thread_cpu": 0.25,
            "running": True,
            "sleeping": True,
            "blocked": 0.0,
            "place": {"function": "main", "file": "server.py", "line": 1},
            "task": {"name": "Task-1", "coroutine": "main"},
            "debug": False,
            "backend": "io_uring",
            "backend_reason": "the kernel has it",
            "stats": {
                "turns": 3,
                "kernel_entries": 3,
                "completions": 2,
                "batched": 2,
                "received_bytes": 10,
                "sent_bytes": 10,
                "starved": 0,
                "rearms": 0,
                "overflows": 0,
                "operations": 1,
                "buffers_out": 0,
                "callbacks_ready": 0,
                "timers_pending": 0,
                "lag": 0.0,
                "lag_max": 0.0,
                "executor_threads": 0,
                "executor_queue": 0,
                "executor_wait": 0.0,
            },
        }
    ],
}


@contextlib.contextmanager
def answering(path: Path, answer: bytes) -> Iterator[None]:
    """Answer one question at a socket as a monitor does."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(1)
                accepted.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        yield
        server.join()


def test_answers_of_the_first_release_are_understood(place: Path) -> None:
    path = place / "first"
    with (
        answering(path, json.dumps(FIRST_RELEASE).encode() + b"\n"),
        client.Connection(str(path)) as connection,
    ):
        answer = connection.ask(PATIENCE)
    assert answer == FIRST_RELEASE
    assert answer["protocol"] == snapshots.PROTOCOL
    assert client.Sample(answer).loops


def test_an_answer_of_another_version_is_reported_with_the_version(place: Path) -> None:
    path = place / "later"
    later = {**FIRST_RELEASE, "protocol": 2, "uringloop": "2.0.0"}
    with answering(path, json.dumps(later).encode() + b"\n"):
        assert error_of_top(place, path) == (
            f"process {os.getpid()} runs uringloop 2.0.0, whose answers this version does not "
            "know: use the top of the environment of that process"
        )


@pytest.mark.parametrize(
    "answer",
    [b"hello\n", b"{}\n", b"[]\n", b'{"protocol": 1, "loops": [{}]}\n', b'{"protocol": 2}\n'],
)
def test_answer_of_another_protocol_is_reported(place: Path, answer: bytes) -> None:
    path = place / "other"
    with answering(path, answer):
        error = error_of_top(place, path)
    assert error == "the process at that socket is not a uringloop monitor"


def test_refusal_by_the_monitor_is_reported_with_its_reason(place: Path) -> None:
    with program(place, IDLE) as watched, contextlib.ExitStack() as stack:
        for _ in range(socket_paths.CLIENTS_MAX):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(str(watched.socket))
            sock.sendall(b"\n")
            assert sock.recv(10)
        assert error_of_top(place, watched.pid) == "8 clients are connected already"


@as_root
def test_process_of_another_user_is_not_permitted(place: Path) -> None:
    with program(place, IDLE) as watched:
        done = run_script(f"""
            import os, sys
            from uringloop import top
            os.setuid({NOBODY})
            print(top.main(["{watched.pid}"]), top.main(["{watched.socket}"]))
        """)
    assert done.stdout == "1 1\n", done.stderr
    first, second = done.stderr.splitlines()
    assert first == f"not permitted: process {watched.pid} belongs to another user"
    assert second == f"no such file: {watched.socket}"


@pytest.mark.parametrize("arguments", [["--interval", "0"], ["--interval", "x"], ["1", "2"]])
def test_wrong_arguments_print_the_usage_and_exit_with_status_2(
    place: Path, arguments: list[str]
) -> None:
    done = run_top(place, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: python -m uringloop.top")
