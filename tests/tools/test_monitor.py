"""The monitor: its answers, when it runs, forks, failures and costs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import os
import platform
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.loops import backend
from support.roles import wait_until
from support.watched import (
    ASLEEP,
    BLOCKED,
    connected,
    monitored,
    place,
    program,
    reply_of,
    snapshot_of,
)

import uringloop
from uringloop import monitor
from uringloop._loop.stats import Stats
from uringloop._turn.stats import open_loops
from uringloop.monitor import socket_paths

# The fixtures are found by their names here.
__all__ = ["monitored", "place"]


def warnings_of(caplog: pytest.LogCaptureFixture) -> str:
    """Return the only warning of the logger."""
    (record,) = [one for one in caplog.records if one.name == "uringloop"]
    assert record.levelno == logging.WARNING
    return record.getMessage()


# ── answers ──────────────────────────────────────────────────────────────────────────────────


def test_answer_has_the_place_at_which_a_loop_is_blocked(place: Path) -> None:
    with program(place, BLOCKED) as watched:

        def is_in_go() -> bool:
            found = snapshot_of(watched.socket)["loops"][0]["place"]
            return found is not None and found["function"] == "go"

        wait_until(is_in_go)
        answer = snapshot_of(watched.socket)
        (loop,) = answer["loops"]
        assert (loop["thread"], loop["running"], loop["sleeping"]) == ("MainThread", True, False)
        assert loop["place"] is not None
        assert (loop["place"]["function"], loop["place"]["file"]) == ("go", "<string>")
        assert loop["task"] is None
        assert (loop["stats"]["turns"], loop["stats"]["timers_pending"]) == (1, 1)
        # The loop stays blocked: answering does not run it.
        wait_until(lambda: snapshot_of(watched.socket)["loops"][0]["blocked"] > loop["blocked"])
        later = snapshot_of(watched.socket)
        (still,) = later["loops"]
        # The lag is the time for which the current turn has lasted.
        lags = ("lag", "lag_max")
        assert [still["stats"]["lag"], still["stats"]["lag_max"]] == [
            pytest.approx(still["blocked"], abs=0.1)
        ] * 2
        grows = dict.fromkeys((*lags, "busy"), 0)
        assert {**still["stats"], **grows} == {**loop["stats"], **grows}
        assert later["time"] > answer["time"]
        assert later["cpu"] >= answer["cpu"]
        watched.end()


def test_answer_names_the_program_and_its_versions(place: Path) -> None:
    with program(place, BLOCKED) as watched:
        answer = snapshot_of(watched.socket)
        assert answer["pid"] == watched.pid
        assert "-c" in answer["command"]
        assert answer["python"] == platform.python_version()
        assert (answer["uringloop"], answer["protocol"]) == (uringloop.__version__, 1)
        (loop,) = answer["loops"]
        assert loop["backend"] == backend()
        assert (loop["class"], loop["debug"]) == ("Loop", False)
        assert set(loop["stats"]) == Stats.__required_keys__
        assert 0 < loop["thread_cpu"] <= answer["cpu"]


WORKER = """
import multiprocessing, os, sys
from uringloop.monitor.snapshots import snapshot

def tell(queue):
    queue.put(snapshot()["command"])

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.SimpleQueue()
    process = context.Process(target=tell, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_worker_of_multiprocessing_has_the_command_of_its_service(
    tmp_path: Path, method: str
) -> None:
    path = tmp_path / "service.py"
    path.write_text(WORKER)
    command = [sys.executable, "-W", "ignore", str(path), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (f"{' '.join(command)}\n", "")


def test_answer_names_the_task_that_blocks(place: Path) -> None:
    script = """
    async def stuck():
        ready()
        go()

    async def main():
        await asyncio.create_task(stuck(), name="the culprit")

    uringloop.run(main())
    """
    with program(place, script) as watched:
        (loop,) = snapshot_of(watched.socket)["loops"]
        assert loop["task"] == {"name": "the culprit", "coroutine": "stuck"}
        watched.end()


def test_sleeping_loop_has_no_place_and_no_task(place: Path) -> None:
    with program(place, ASLEEP) as watched:
        wait_until(lambda: snapshot_of(watched.socket)["loops"][0]["sleeping"])
        (loop,) = snapshot_of(watched.socket)["loops"]
        assert (loop["place"], loop["task"], loop["running"]) == (None, None, True)
        watched.end()


def test_answer_has_the_loops_of_all_threads(place: Path) -> None:
    script = """
    async def main(barrier):
        loop = asyncio.get_running_loop()
        loop.set_debug(threading.current_thread() is not threading.main_thread())
        await loop.run_in_executor(None, barrier.wait)
        await loop.run_in_executor(None, barrier.wait)

    barrier = threading.Barrier(3)
    threads = [
        threading.Thread(target=lambda: uringloop.run(main(barrier)), name=f"worker {number}")
        for number in (1, 2)
    ]
    for thread in threads:
        thread.start()
    idle = uringloop.new_event_loop()
    closed = uringloop.new_event_loop()
    closed.close()
    barrier.wait()
    ready()
    go()
    barrier.wait()
    for thread in threads:
        thread.join()
    idle.close()
    ready()
    go()
    """
    with program(place, script) as watched:
        loops = snapshot_of(watched.socket)["loops"]
        seen = [(loop["thread"], loop["running"], loop["debug"]) for loop in loops]
        assert seen == [(None, False, False), ("worker 1", True, True), ("worker 2", True, True)]
        assert len({loop["id"] for loop in loops}) == 3
        assert [loop["thread_id"] is None for loop in loops] == [True, False, False]
        watched.go()
        assert watched.line() == "ready"
        assert snapshot_of(watched.socket)["loops"] == []
        watched.end()


def test_open_loops_is_complete_while_threads_create_loops() -> None:
    done = threading.Event()

    def make() -> None:
        while not done.is_set():
            uringloop.new_event_loop().close()

    makers = [threading.Thread(target=make) for _ in range(3)]
    for maker in makers:
        maker.start()
    with contextlib.closing(uringloop.new_event_loop()) as own:
        found = [own in open_loops() for _ in range(2000)]
    done.set()
    for maker in makers:
        maker.join()
    assert all(found)
    assert own not in open_loops()


def test_freed_loop_is_removed_from_open_loops() -> None:
    before = len(open_loops())
    loop = uringloop.new_event_loop()
    assert len(open_loops()) == before + 1
    loop.close()
    del loop
    assert len(open_loops()) == before


# ── start and stop ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [None, "", "0"])
def test_monitor_is_off_by_default(place: Path, value: str | None) -> None:
    script = """
    uringloop.new_event_loop().close()
    ready()
    print("uringloop.monitor.server" in sys.modules, threading.active_count(), flush=True)
    """
    variables = {} if value is None else {"URINGLOOP_MONITOR": value}
    wanted = "" if value is None else value
    with program(place, script, **{**variables, "URINGLOOP_MONITOR": wanted}) as watched:
        assert watched.line() == "False 1"
        assert list(place.iterdir()) == []
        watched.end()


def test_socket_file_exists_from_the_first_loop_until_exit(place: Path) -> None:
    script = """
    ready()
    go()
    uringloop.new_event_loop().close()
    ready()
    go()
    """
    with program(place, script) as watched:
        assert list(place.iterdir()) == []
        watched.go()
        assert watched.line() == "ready"
        assert list(place.iterdir()) == [watched.socket]
        watched.end()
        assert list(place.iterdir()) == []


def test_variable_can_name_the_path(place: Path) -> None:
    own = place / "mine"
    with program(place, BLOCKED, URINGLOOP_MONITOR=str(own)) as watched:
        assert snapshot_of(own)["pid"] == watched.pid
        watched.end()
        assert not own.exists()


def test_variable_can_name_a_directory_for_several_processes(place: Path) -> None:
    folder = place / "programs"
    folder.mkdir()
    with (
        program(place, BLOCKED, URINGLOOP_MONITOR=str(folder)) as first,
        program(place, BLOCKED, URINGLOOP_MONITOR=f"{folder}/") as second,
    ):
        for watched in (first, second):
            assert snapshot_of(folder / watched.socket.name)["pid"] == watched.pid


def test_relative_path_is_removed_after_chdir(place: Path) -> None:
    script = f"""
    os.chdir({str(place)!r})
    uringloop.new_event_loop().close()
    os.chdir("/")
    ready()
    """
    with program(place, script, URINGLOOP_MONITOR="./relative.sock") as watched:
        watched.end()
        assert list(place.iterdir()) == []


def test_start_and_stop_create_move_and_remove_the_socket(place: Path) -> None:
    first, second = place / "first", place / "second"
    assert uringloop.monitor is monitor
    assert monitor.start(first) == str(first)
    assert monitor.start(first) == str(first)
    assert snapshot_of(first)["pid"] == os.getpid()
    assert monitor.start(second) == str(second)
    assert not first.exists()
    assert snapshot_of(second)["pid"] == os.getpid()
    monitor.stop()
    monitor.stop()
    assert list(place.iterdir()) == []


def test_stop_overrides_the_variable_in_children_too(place: Path) -> None:
    script = """
    uringloop.new_event_loop().close()
    uringloop.monitor.stop()
    uringloop.new_event_loop().close()
    child = os.fork()
    if child == 0:
        uringloop.new_event_loop().close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    ready()
    """
    with program(place, script) as watched:
        assert list(place.iterdir()) == []
        watched.end()


def test_stop_disconnects_clients(monitored: Path) -> None:
    with connected(monitored) as sock:
        sock.sendall(b"\n")
        assert reply_of(sock)
        monitor.stop()
        assert sock.recv(1) == b""


# ── processes ────────────────────────────────────────────────────────────────────────────────


def test_forked_child_keeps_the_parents_socket_and_makes_its_own(place: Path) -> None:
    script = """
    uringloop.new_event_loop().close()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        uringloop.new_event_loop().close()
        ready("made")
        os.read(read, 1)
        sys.exit(0)
    os.close(read)
    ready()
    print(child, flush=True)
    go()
    os.write(write, b"1")
    go()
    os.write(write, b"1")
    os.waitpid(child, 0)
    ready("reaped")
    go()
    """
    with program(place, script, PYTHONWARNINGS="ignore::DeprecationWarning") as watched:
        child = int(watched.line())
        assert list(place.iterdir()) == [watched.socket]
        watched.go()
        assert watched.line() == "made"
        own = place / f"uringloop-{child}.sock"
        assert snapshot_of(own)["pid"] == child
        assert snapshot_of(watched.socket)["pid"] == watched.pid
        watched.go()
        assert watched.line() == "reaped"
        assert list(place.iterdir()) == [watched.socket]
        assert snapshot_of(watched.socket)["pid"] == watched.pid
        watched.end()


def test_socket_of_a_killed_parent_refuses_though_its_child_lives(place: Path) -> None:
    script = """
    uringloop.new_event_loop().close()
    if os.fork() == 0:
        ready()
        go()
    else:
        go()
    """
    with program(place, script, PYTHONWARNINGS="ignore::DeprecationWarning") as watched:
        watched.process.kill()
        watched.process.wait()
        with socket.socket(socket.AF_UNIX) as sock, pytest.raises(ConnectionRefusedError):
            sock.connect(str(watched.socket))


def test_socket_of_a_killed_process_is_removed_by_the_next_process(place: Path) -> None:
    with program(place, BLOCKED) as killed:
        pass
    assert killed.socket.exists()
    other = place / "other.sock"
    other.touch()
    with program(place, BLOCKED) as living, program(place, BLOCKED) as watched:
        assert set(place.iterdir()) == {other, living.socket, watched.socket}


def test_stale_sockets_can_be_removed_by_several_threads(place: Path) -> None:
    for number in range(300):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(place / socket_paths.name_for(1000000 + number)))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        # An exception in any of the threads is raised here.
        assert list(pool.map(socket_paths.remove_stale, [str(place)] * 4)) == [None] * 4
    assert list(place.iterdir()) == []


def test_stale_socket_at_the_path_is_replaced(place: Path) -> None:
    path = place / "stale"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    try:
        assert monitor.start(path) == str(path)
        assert snapshot_of(path)["pid"] == os.getpid()
    finally:
        monitor.stop()


def test_stop_keeps_a_file_that_replaced_the_socket(monitored: Path) -> None:
    monitored.unlink()
    monitored.write_text("another's")
    monitor.stop()
    assert monitored.read_text() == "another's"
    monitored.unlink()


# ── failures ─────────────────────────────────────────────────────────────────────────────────


def test_path_with_another_listener_is_refused(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = place / "taken"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        assert monitor.start(path) is None
        assert warnings_of(caplog).endswith(f"another process listens at {path}")
    assert list(place.iterdir()) == [path]


@pytest.mark.parametrize("where", ["missing/path", "file/path", "file", "x" * 200])
def test_unusable_path_logs_one_warning(
    place: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    precious = place / "file"
    precious.write_text("precious")
    assert monitor.start(place / where) is None
    assert "the monitor of this process cannot start: " in warnings_of(caplog)
    assert precious.read_text() == "precious"
    assert list(place.iterdir()) == [precious]


def test_unusable_variable_does_not_prevent_loops(place: Path) -> None:
    script = """
    for _ in range(3):
        uringloop.run(asyncio.sleep(0))
    ready()
    """
    with program(place, script, URINGLOOP_MONITOR="/nonexistent/path") as watched:
        errors = watched.end()
    # One warning for the process, not one for each loop.
    assert errors.count("cannot start") == 1


@pytest.mark.parametrize("place_of_monitor", ["", "1"])
def test_failed_import_does_not_prevent_loops(place: Path, place_of_monitor: str) -> None:
    # As in a daemon that has changed its root directory.
    script = """
    sys.modules["uringloop.monitor"] = None
    uringloop.run(asyncio.sleep(0))
    ready()
    """
    variables = {"URINGLOOP_MONITOR": place_of_monitor, "URINGLOOP_STALL_MS": "100"}
    with program(place, script, **variables) as watched:
        errors = watched.end()
    name = "URINGLOOP_MONITOR" if place_of_monitor else "URINGLOOP_STALL_MS"
    assert errors.startswith(f"{name}: import of uringloop.monitor")


def test_default_directory_that_is_a_link_is_refused(place: Path) -> None:
    real = place / "real"
    real.mkdir(0o700)
    (place / f"uringloop-{os.geteuid()}").symlink_to(real)
    variables = {"XDG_RUNTIME_DIR": "", "TMPDIR": str(place)}
    with program(place, BLOCKED, **variables) as watched:
        assert "must be a directory of this user" in watched.end()
    assert list(real.iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_runtime_directory_writable_by_others_is_not_used(place: Path, mode: int) -> None:
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(mode)
    variables = {"XDG_RUNTIME_DIR": str(shared), "TMPDIR": str(place)}
    with program(place, BLOCKED, **variables) as watched:
        folder = place / f"uringloop-{os.geteuid()}"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert snapshot_of(folder / watched.socket.name)["pid"] == watched.pid
        assert list(shared.iterdir()) == []


@pytest.mark.parametrize("umask", ["000", "022", "777"])
def test_socket_has_mode_0600_with_any_umask(place: Path, umask: str) -> None:
    with program(place, f"os.umask(0o{umask})\n" + BLOCKED) as watched:
        assert stat.S_IMODE(watched.socket.stat().st_mode) == 0o600


# ── costs ────────────────────────────────────────────────────────────────────────────────────


def test_thread_blocks_signals_and_sleeps_without_requests(place: Path) -> None:
    script = """
    uringloop.new_event_loop().close()
    (thread,) = [one for one in threading.enumerate() if one.name == "uringloop-monitor"]

    def field(name):
        lines = open(f"/proc/self/task/{thread.native_id}/status").read().splitlines()
        return dict(line.split(":", 1) for line in lines)[name].strip()

    def sleeps():
        woken = field("voluntary_ctxt_switches")
        time.sleep(0.1)
        return field("voluntary_ctxt_switches") == woken

    ready()
    go()
    print(field("SigBlk"), any(sleeps() for _ in range(50)), flush=True)
    """
    with program(place, script) as watched:
        snapshot_of(watched.socket)
        watched.go()
        blocked, sleeps = watched.line().split()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)
        assert all(int(blocked, 16) >> number - 1 & 1 for number in numbers)
        assert sleeps == "True"
        watched.end()
