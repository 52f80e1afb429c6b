"""python -m uringloop.top with several processes: a server's workers, or a user's programs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.roles import PATIENCE
from support.watched import environment, following, pipe_of, place, program, run_top, snapshot_of

from uringloop.monitor import client, render, server, snapshots
from uringloop.monitor.client import Sample
from uringloop.monitor.fleet import Fleet

# The fixture is found by its name here.
__all__ = ["place"]

# A parent process without a loop: both children listen, and the second one is blocked.
MASTER = """
def blocked():
    ready()
    # Until the parent has ended.
    os.read(alive, 1)

async def work(number):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    if number == 2:
        loop.call_soon(blocked)
    else:
        started.release()
    loop.add_reader(alive, loop.stop)
    await asyncio.Event().wait()

import contextlib, multiprocessing
started = multiprocessing.get_context("fork").Semaphore(0)
alive, end = os.pipe()
for number in (1, 2):
    if os.fork() == 0:
        os.close(end)
        with contextlib.suppress(RuntimeError):
            # loop.stop() ends the run before the coroutine is done.
            uringloop.run(work(number))
        os._exit(0)
    if number == 1:
        started.acquire()
go()
os.close(end)
for number in (1, 2):
    os.wait()
"""

IDLE = """
async def main():
    asyncio.get_running_loop().call_soon(ready)
    await asyncio.get_running_loop().run_in_executor(None, go)

uringloop.run(main())
"""


def lines_of(text: str) -> dict[int, str]:
    """Return the lines of the table by process ID."""
    table = text.split("\n\n")[1].split("\n")
    assert table[0].split()[:3] == ["PID", "loop", "state"]
    return {int(line.split()[0]): line for line in table[1:]}


def test_parent_process_is_shown_with_the_loops_of_its_children(place: Path) -> None:
    with program(place, MASTER) as watched:
        children = client.descendants_of(watched.pid)
        assert len(children) == 2
        # Wide figures would divide a narrow table into two.
        done = run_top(place, watched.pid, "--once", "--interval", "0.3", COLUMNS="200")
        assert (done.returncode, done.stderr) == (0, "")
        head, _, works = done.stdout.rstrip().split("\n\n")
        assert head == f"{watched.pid} and its descendants: processes 2, loops 2, blocked 1"
        rows = lines_of(done.stdout)
        assert sorted(rows) == sorted(children)
        free, blocked = (
            next(row for row in rows.values() if ("BLOCKED" in row) == wanted)
            for wanted in (False, True)
        )
        # Each loop is named by the address of its server.
        assert free.split()[1].startswith("127.0.0.1:")
        assert blocked.split()[1].startswith("127.0.0.1:")
        assert "! BLOCKED " in blocked
        assert works.startswith(f"{blocked.split()[0]} 127.0.0.1:")
        assert " in blocked, <string>:" in works
        watched.end()


def test_json_has_a_line_for_each_process(place: Path) -> None:
    with program(place, MASTER) as watched:
        children = client.descendants_of(watched.pid)
        done = run_top(place, watched.pid, "--once", "--json", "--interval", "0.1")
        samples = [json.loads(line) for line in done.stdout.splitlines()]
        assert sorted(sample["pid"] for sample in samples) == sorted(children)
        assert all(sample["loops"][0]["rates"] for sample in samples)
        watched.end()


def test_all_programs_are_shown_without_an_argument(place: Path) -> None:
    own = place / "elsewhere"
    with program(place, IDLE) as first, program(place, IDLE, URINGLOOP_MONITOR=str(own)) as second:
        done = run_top(place, "--once", "--interval", "0.1")
        assert (done.returncode, done.stderr) == (0, "")
        rows = lines_of(done.stdout)
        assert {first.pid, second.pid} <= set(rows)
        assert done.stdout.startswith("all programs: processes ")
        # A program that is found both by its environment and in a directory is listed once.
        assert len(rows) == len(done.stdout.split("\n\n")[1].split("\n")) - 1
        first.end()
        second.end()


def test_fleet_adds_new_processes_and_drops_ended_ones(place: Path) -> None:
    with program(place, IDLE) as first:
        found = [str(first.socket)]
        with Fleet(lambda: found) as fleet:
            assert [one.connection.pid for one in fleet.poll(PATIENCE)] == [first.pid]
            with program(place, IDLE) as second:
                found.append(str(second.socket))
                pids = [one.connection.pid for one in fleet.poll(PATIENCE)]
                assert pids == sorted((first.pid, second.pid))
                second.end()
            (left,) = fleet.poll(PATIENCE)
            assert left.sample is not None
            assert left.sample.snapshot["pid"] == first.pid
            # The sample was compared with the previous one.
            assert left.sample.loops[0]["rates"] is not None
        first.end()


@contextlib.contextmanager
def listening(path: str) -> Iterator[socket.socket]:
    """Listen where a monitor would: the test answers in its place."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()
        yield sock


def test_silent_process_does_not_delay_the_others(place: Path) -> None:
    path = str(place / "silent.sock")
    with (
        program(place, IDLE) as watched,
        listening(path) as silent,
        Fleet(lambda: [path, str(watched.socket)]) as fleet,
    ):
        members = {member.connection.pid: member for member in fleet.poll(0.05)}
        assert members[watched.pid].silent_s == 0
        assert members[os.getpid()].silent_s >= 0.05
        # The next poll sends no second request, and takes the late answer.
        peer, _ = silent.accept()
        with peer:
            assert peer.recv(10) == b"\n"
            fleet.poll(0.05)
            peer.sendall(server.line_of(snapshot_of(watched.socket)))
            members = {member.connection.pid: member for member in fleet.poll(PATIENCE)}
            assert members[os.getpid()].silent_s == 0
            assert members[os.getpid()].sample is not None
        watched.end()


def test_a_process_of_another_version_is_named_beside_the_others(place: Path) -> None:
    path = str(place / "later.sock")
    with (
        program(place, IDLE) as watched,
        listening(path) as later,
        Fleet(lambda: [path, str(watched.socket)]) as fleet,
    ):
        fleet.poll(0.05)
        peer, _ = later.accept()
        with peer:
            peer.sendall(b'{"protocol": 2, "uringloop": "2.0.0"}\n')
            (member,) = fleet.poll(PATIENCE)
        assert member.connection.pid == watched.pid
        assert list(fleet.others) == [path]
        assert "runs uringloop 2.0.0" in fleet.others[path]
        # It is not asked again.
        later.setblocking(False)
        fleet.poll(PATIENCE)
        with pytest.raises(BlockingIOError):
            later.accept()
        watched.end()


def test_silent_process_is_shown_as_no_answer(loop: object) -> None:
    sample = Sample(snapshots.snapshot())
    view = render.overview_of(["title"], [(sample, 3.0)], 120, [])
    assert view.rows[0].cells[0] == "NO ANSWER 3.0 s"
    assert view.rows[0].alarms[0]


@pytest.mark.parametrize("width", [30, 120])
def test_programs_without_loops_leave_an_empty_table(width: int) -> None:
    # Between two runs, or before the first one.
    empty = snapshots.snapshot()
    empty["loops"] = []
    view = render.overview_of(["2 programs"], [(Sample(empty), 0.0)] * 2, width, [])
    lines = render.plain_lines(view, width)
    assert lines[0] == "2 programs"
    assert " ".join(lines).count("command") == 1
    assert render.rich_group(view, width) is not None


def test_end_of_all_processes_exits_with_status_3(place: Path) -> None:
    with (
        program(place, MASTER) as watched,
        following(place, watched.pid, "--interval", "0.1") as shown,
    ):
        assert pipe_of(shown.stdout).readline() != ""
        watched.end()
        assert shown.wait(2 * PATIENCE) == 3
        assert pipe_of(shown.stderr).read() == "all watched programs have ended\n"


def test_commands_are_cut_to_the_width(loop: object) -> None:
    snapshot = snapshots.snapshot()
    snapshot["command"] = "python " + "x" * 300
    view = render.overview_of([], [(Sample(snapshot), 0.0)], 150, [])
    lines = render.plain_lines(view, 150)
    assert max(map(len, lines)) == 150
    assert lines[-1].endswith("…")


def test_the_folders_of_interpreter_and_program_are_left_out(loop: object) -> None:
    snapshot = snapshots.snapshot()
    snapshot["command"] = "/srv/orders/.venv/bin/python3 /srv/orders/.venv/bin/uvicorn app:app /x"
    view = render.overview_of([], [(Sample(snapshot), 0.0)], 150, [])
    assert view.rows[0].cells[-1] == "python3 uvicorn app:app /x"


# ── names ────────────────────────────────────────────────────────────────────────────────────

NAMED = """
async def main():
    loop = asyncio.get_running_loop()
    {server}
    loop.call_soon(ready)
    await loop.run_in_executor(None, go)

def run():
    uringloop.run(main())

{name}
run()
"""
TCP = 'await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)'
TCP6 = 'await loop.create_server(asyncio.Protocol, "::1", 0)'
ABSTRACT = 'await loop.create_unix_server(asyncio.Protocol, "\\0a server")'
RENAMED = 'threading.current_thread().name = "orders 3"'


@pytest.mark.parametrize(
    ("server", "name", "shown"),
    [
        ("", "", "MainThread"),
        ("", RENAMED, "orders 3"),
        (TCP, "", "127.0.0.1:"),
        (TCP6, "", "[::1]:"),
        (ABSTRACT, "", "@a server"),
        # A name that the program has set takes precedence.
        (TCP, RENAMED, "orders 3"),
    ],
)
def test_loop_has_the_name_of_its_thread_or_its_server(
    place: Path, server: str, name: str, shown: str
) -> None:
    script = NAMED.format(server=server, name=name)
    with program(place, script) as watched:
        (loop,) = snapshot_of(watched.socket)["loops"]
        assert loop["name"].startswith(shown)
        watched.end()


def test_loop_that_does_not_run_is_named_no_thread(loop: object) -> None:
    names = {listed["name"] for listed in snapshots.snapshot()["loops"] if not listed["running"]}
    assert names == {"no thread"}
    assert threading.current_thread().name not in names


def test_family_paths_finds_only_processes_with_a_monitor(place: Path) -> None:
    assert "URINGLOOP_MONITOR" not in environment(place)
    with program(place, IDLE) as watched:
        assert client.family_paths(watched.pid) == [str(watched.socket)]
        watched.end()
    assert client.descendants_of(watched.pid) == []
    assert client.family_paths(watched.pid) == []
