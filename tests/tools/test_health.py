"""Health over HTTP: pages, clients that do anything, addresses, failures, siblings and forks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import functools
import http.client
import json
import logging
import os
import re
import signal
import socket
import stat
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import probes
from support.leaks import open_fds, threads_left
from support.probes import (
    LOCAL,
    LONG_S,
    OK,
    ask,
    blocked_loop,
    connected,
    families_of,
    forger,
    has,
    health_threads,
    is_served,
    loop_named,
    process_at,
    raw,
    reply_of,
    rest_of,
    serve,
    server,
    status_of,
)
from support.roles import PATIENCE, needs_ipv6, refuse_thread, unused_port, wait_until
from support.watched import BLOCKED, NOBODY, Program, as_root, place, program

import uringloop
from uringloop import monitor
from uringloop._turn.stats import thread_state_of
from uringloop.monitor import health, health_pages, health_settings, over_http, serving, siblings
from uringloop.monitor.health_settings import Place

# The fixture is found by its name here.
__all__ = ["place"]

# No machine has this address.
NOT_OURS = "192.0.2.1:9100"
NO_FORK_WARNING = "ignore::DeprecationWarning"


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Switch everything off after each test, and check that nothing is left behind."""
    fds, threads = open_fds(), set(threading.enumerate())
    yield
    monitor.stop_serving()
    monitor.stop()
    assert threads_left(threads) == []
    assert open_fds() - fds == set()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a free address often."""
    monkeypatch.setattr(health, "TAKE_S", 0.02)


def wait_for_ticks(count: int = 4) -> None:
    """Wait until the thread has looked several times."""
    for _ in range(count):
        last = server().next_tick
        wait_until(lambda last=last: server().next_tick > last)  # type: ignore[misc]


def sleeps() -> int:
    """Return how often the thread has slept."""
    status = Path(f"/proc/self/task/{server().thread.native_id}/status").read_text()
    return int(re.findall(r"^voluntary_ctxt_switches:\s(\d+)$", status, re.MULTILINE)[0])


@pytest.mark.parametrize("place", [LOCAL, "unix"])
def test_thread_wakes_without_clients_only_where_the_place_may_be_lost(
    place: str, tmp_path: Path, quick: None
) -> None:
    has_port = place == LOCAL
    serve(place if has_port else f"unix:{tmp_path / 'health'}")
    # The first round may take a while.
    wait_until(lambda: sleeps() > 0)
    time.sleep(0.05)
    before = sleeps()
    time.sleep(0.2)
    assert (sleeps() == before) == has_port


def name_in(address: str) -> str:
    """Return a name that a sibling at *address* may have."""
    return f"{siblings.group_of(address)}1.{'0' * 16}"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of the logger."""
    records = [one for one in caplog.records if one.name == "uringloop"]
    assert all(record.levelno == logging.WARNING for record in records)
    return [record.getMessage() for record in records]


# ── live and ready ───────────────────────────────────────────────────────────────────────────


def test_sleeping_loop_is_alive_and_ready() -> None:
    address = serve()
    with loop_named("sleeper") as loop:
        wait_until(lambda: thread_state_of(loop)[2])
        expected = f"process {os.getpid()}, loop sleeper: asleep\n"
        for path in ("/live", "/ready"):
            assert ask(address, path)[::2] == (200, expected)


def test_blocked_loop_is_alive_and_not_ready() -> None:
    address = serve(ready_after=0.1)
    with blocked_loop():
        wait_until(lambda: status_of(address, "/ready") == 503)
        assert ask(address, "/live").status == 200
    with loop_named("well"):
        assert ask(address, "/ready").status == 200


def test_page_names_the_task_the_place_and_the_age_of_the_turn() -> None:
    address = serve(ready_after=0.1)
    with blocked_loop():
        wait_until(lambda: status_of(address, "/ready") == 503)
        body = ask(address, "/ready").body
    found = re.fullmatch(
        rf"process {os.getpid()}, loop worker: busy for (\d+\.\d\d) s, "
        r"the culprit \((.*)\), in (.*), (.*):(\d+)\n",
        body,
    )
    assert found, body
    assert 0.1 <= float(found[1]) < PATIENCE
    assert (found[2], found[3]) == ("blocked_loop.<locals>.stuck", "stuck")
    assert found[4] == probes.__file__
    line = Path(probes.__file__).read_text().splitlines()[int(found[5]) - 1]
    assert "release.acquire(" in line


def test_age_of_a_turn_grows_while_the_loop_is_blocked() -> None:
    def age() -> float:
        return float(ask(address, "/live").body.split("busy for ")[1].split()[0])

    address = serve()
    with blocked_loop():
        wait_until(lambda: has(address, "/live", "busy for "))
        first = age()
        wait_until(lambda: age() > first)


def test_loop_that_computes_is_answered_for() -> None:
    def compute() -> None:
        while not done:
            pass

    done: list[bool] = []
    address = serve(ready_after=0.05)
    with loop_named("worker") as loop:
        loop.call_soon_threadsafe(compute)
        try:
            wait_until(lambda: status_of(address, "/ready") == 503)
            body = ask(address, "/ready").body
        finally:
            done.append(True)
        wait_until(lambda: status_of(address, "/ready") == 200)
    assert re.search(rf"compute, {__file__}:\d+\n$", body)


@pytest.mark.slow
def test_loop_that_is_blocked_for_too_long_is_dead() -> None:
    address = serve(dead_after=0.2, ready_after=0.1)
    with blocked_loop():
        wait_until(lambda: status_of(address, "/live") == 503)
        reply = ask(address, "/live")
        assert "the culprit" in reply.body
        assert ask(address, "/ready").status == 503


def test_one_blocked_loop_of_two_is_enough() -> None:
    address = serve(dead_after=0.05)
    with loop_named("well"), blocked_loop("stuck"):
        wait_until(lambda: status_of(address, "/live") == 503)
        body = ask(address, "/live").body
    assert "loop well: asleep\n" in body
    assert "loop stuck: busy for " in body


def test_process_without_a_loop_is_alive_and_not_ready() -> None:
    address = serve()
    assert ask(address, "/live")[::2] == (200, "no loop\n")
    assert ask(address, "/ready")[::2] == (503, "no loop\n")


def test_loop_that_does_not_run_is_alive_and_not_ready() -> None:
    address = serve()
    with contextlib.closing(uringloop.new_event_loop()):
        expected = f"process {os.getpid()}, loop no thread: not running\n"
        assert ask(address, "/live")[::2] == (200, expected)
        assert ask(address, "/ready")[::2] == (503, expected)


def test_one_running_loop_is_enough_to_be_ready() -> None:
    address = serve()
    with contextlib.closing(uringloop.new_event_loop()), loop_named("well"):
        reply = ask(address, "/ready")
    assert reply.status == 200
    assert sorted(re.findall(r": (.*)\n", reply.body)) == ["asleep", "not running"]


def test_loops_of_the_same_name_get_numbers() -> None:
    address = serve()
    with loop_named("twin"), loop_named("twin"):
        body = ask(address, "/live").body
    assert re.findall(r"loop (.*):", body) == ["twin", "twin 2"]


# ── metrics and stacks ───────────────────────────────────────────────────────────────────────


def test_metrics_have_the_process_and_the_loop_as_labels() -> None:
    address = serve()
    with loop_named("one"), loop_named("two"):
        reply = ask(address, "/metrics")
    assert (reply.status, reply.headers["Content-Type"]) == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
    )
    families = families_of(reply.body)
    assert "uringloop_turns_total" in families
    assert "uringloop_turn_seconds" in families
    for labels in families.values():
        loops = [re.match(rf'pid="{os.getpid()}",loop="(one|two)"', one) for one in labels]
        assert {found and found[1] for found in loops} == {"one", "two"}


@pytest.mark.parametrize("name", ['"', "\\", "\n# HELP x y", "\udcff", "é", "}"])
def test_name_of_a_thread_may_be_anything(name: str) -> None:
    address = serve(stacks=True)
    with loop_named(name):
        for path in ("/live", "/ready", "/stacks"):
            assert ask(address, path).status == 200
        text = ask(address, "/metrics").body
    assert "uringloop_turns_total" in families_of(text)


def test_metrics_without_a_loop_are_empty() -> None:
    assert ask(serve(), "/metrics")[::2] == (200, "")


def test_stacks_are_not_there_unless_asked_for() -> None:
    assert ask(serve(), "/stacks").status == 404


def waiting(inner: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    async def outer() -> None:
        await inner()

    return outer


def test_stacks_show_threads_and_what_a_task_awaits() -> None:
    address = serve(stacks=True)
    waits = threading.Event()

    async def innermost() -> None:
        waits.set()
        await asyncio.get_running_loop().create_future()

    async def sleeper() -> None:
        await waiting(innermost)()

    with loop_named("worker") as loop:
        future = asyncio.run_coroutine_threadsafe(sleeper(), loop)
        assert waits.wait(PATIENCE)
        # The task has been suspended when the next callback runs.
        done = threading.Event()
        loop.call_soon_threadsafe(done.set)
        assert done.wait(PATIENCE)
        reply = ask(address, "/stacks")
        future.cancel()
    assert reply.status == 200
    assert reply.body.startswith(f"process {os.getpid()}\n")
    for part in ("\nthread MainThread\n", "\nthread uringloop-health\n", "\nthread worker\n"):
        assert part in reply.body
    _, _, tasks = reply.body.partition("\nloop worker: 1 tasks\n")
    assert tasks.startswith("\ntask Task-")
    names = re.findall(r", in (.*)\n", tasks)
    assert [name.rpartition(".")[2] for name in names] == ["sleeper", "outer", "innermost"]
    assert "await asyncio.get_running_loop().create_future()" in tasks


def test_stacks_show_where_a_blocked_loop_is() -> None:
    address = serve(stacks=True)
    with blocked_loop():
        body = ask(address, "/stacks").body
    thread = body.partition("\nthread worker\n")[2].partition("\nthread ")[0]
    assert "release.acquire(timeout" in thread
    assert "\ntask the culprit\n" in body


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────


def test_head_has_no_body() -> None:
    address = serve()
    with loop_named("sleeper"):
        full, head = ask(address, "/live"), ask(address, "/live", "HEAD")
    assert head == (200, full.headers | {"Date": head.headers["Date"]}, "")
    assert int(head.headers["Content-Length"]) == len(full.body) > 0


def test_answer_says_that_it_is_not_to_be_kept() -> None:
    headers = ask(serve(), "/live").headers
    assert (headers["Cache-Control"], headers["Connection"]) == ("no-store", "close")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert headers["Server"].strip() == "uringloop"


def test_the_standard_librarys_client_understands_the_answers() -> None:
    host, _, port = serve().rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
    with contextlib.closing(connection):
        for _ in range(3):
            connection.request("GET", "/live?verbose=1")
            with connection.getresponse() as response:
                assert (response.status, response.read()) == (200, b"no loop\n")


def test_unknown_path_is_not_found_and_lists_the_pages() -> None:
    address = serve()
    for path in ("/", "/live/", "/livex", "/loops", "http://x/live"):
        assert ask(address, path)[::2] == (404, "there are /live, /ready, /metrics\n")
    assert ask(address, "/x", "HEAD")[::2] == (404, "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get"])
def test_other_methods_are_not_supported(method: str) -> None:
    address = serve()
    assert ask(address, "/live", method).status == 501
    assert is_served(address)


def test_http_0_9_gets_the_page_only() -> None:
    assert raw(serve(), b"GET /live\r\n\r\n") == b"no loop\n"


# Python's limit for the digits of a number makes the parser of the head raise ValueError.
RAISES = b"Content-Type: multipart/x; boundary*" + b"1" * 5000 + b"=x"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\r\n\r\n", 0),
        (b"\n\n", 0),
        (b"\x00\x00\n\n", 400),
        (b"\xff\xfe\xfd\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET /live HTTP/9.9\r\n\r\n", 505),
        (b"GET /live HTTP/x\r\n\r\n", 400),
        (b"GET /live HTTP/1.\xb2\r\n\r\n", 400),
        (b"GET /live HTTP/1.0 x y\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.0\r\n\r\n", 404),
        (b"GET /\xff HTTP/1.0\r\n\r\n", 404),
        (b"GET /live HTTP/1.0\r\nX\x00: \x00\r\n\r\n", 200),
        (b"GET /live HTTP/1.0\r\n: x\r\nno colon\r\n folded\r\n\r\n", 200),
        (b"GET /live HTTP/1.0\r\nConnection: \xff\r\n\r\n", 200),
        (b"GET /live HTTP/1.0\n\n", 200),
        (b"GET //live HTTP/1.1\r\nExpect: 100-continue\r\n\r\n", 200),
        (b"GET /live HTTP/1.1\r\nConnection: keep-alive\r\n\r\n", 200),
        (b"GET /live HTTP/1.0\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET /live HTTP/1.0\r\n" + RAISES + b"\r\n\r\n", 500),
    ],
)
def test_strange_request_gets_an_answer_and_does_no_harm(request_: bytes, status: int) -> None:
    address = serve()
    received = raw(address, request_)
    # An error of the first line has no head, as in HTTP/0.9.
    found = reply_of(received).status or int((re.findall(rb"code: (\d+)", received) or [0])[0])
    assert found == status, received
    assert is_served(address)


def show(page: Callable[[], over_http.Page]) -> None:
    """Serve *page* at /own, too."""
    public = server().public
    assert public is not None
    pages = server().listeners[public]
    assert isinstance(pages, over_http.Pages)
    pages.pages = {**pages.pages, "/own": page}


def test_error_of_a_program_is_an_answer() -> None:
    def fail() -> over_http.Page:
        raise ZeroDivisionError("of the program")

    address = serve()
    show(fail)
    assert ask(address, "/own")[::2] == (500, "ZeroDivisionError\n")
    assert is_served(address)


def test_long_answer_arrives() -> None:
    text = "x" * 3_000_000
    address = serve()
    show(lambda: over_http.Page(text))
    assert ask(address, "/own")[::2] == (200, text)


def test_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_http.Pages, "timeout_s", 0.1)
    address = serve()
    show(lambda: over_http.Page("x" * 10_000_000))
    with connected(address) as sock:
        sock.sendall(b"GET /own HTTP/1.0\r\n\r\n")
        wait_until(lambda: len(server().clients) == 1)
        wait_until(lambda: server().clients == {})
        with contextlib.suppress(ConnectionResetError):
            assert len(rest_of(sock)) < 10_000_000
    assert is_served(address)


def test_request_in_pieces_is_answered() -> None:
    with connected(serve()) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET /live HTTP/1.0\r\n\r\n":
            sock.send(bytes([byte]))
        assert reply_of(rest_of(sock)).status == 200


def test_client_that_ends_its_side_after_the_request_is_answered() -> None:
    with connected(serve()) as sock:
        sock.sendall(b"GET /live HTTP/1.0\r\n\r\n")
        sock.shutdown(socket.SHUT_WR)
        assert reply_of(rest_of(sock)).status == 200


def test_second_request_of_a_connection_is_not_answered() -> None:
    received = raw(serve(), b"GET /live HTTP/1.1\r\n\r\n" * 2)
    assert received.count(b"HTTP/1.0 200 OK") == 1


def test_half_a_request_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_http.Pages, "timeout_s", 0.1)
    address = serve()
    for half in (b"", b"GET /live HTTP/1.0\r\nHost: x\r\n"):
        assert raw(address, half) == b""
    assert is_served(address)


@pytest.mark.parametrize("length", [8193, 20_000, 1_000_000])
def test_answer_to_a_head_that_is_too_long_arrives(length: int) -> None:
    address = serve()
    with connected(address) as sock:
        sock.sendall(b"GET /live HTTP/1.0\r\nX: ".ljust(length, b"x"))
        assert reply_of(rest_of(sock)).status == 431
        # Nothing is reset while the client goes on.
        for _ in range(5):
            assert is_served(address)
            sock.sendall(b"x")


def test_head_of_the_greatest_length_is_answered() -> None:
    address = serve()
    end = b"\r\n\r\n"
    head = b"GET /live HTTP/1.0\r\nX: "
    for length, status in ((8192, 200), (8193, 431)):
        request = head.ljust(length - len(end), b"x") + end
        assert reply_of(raw(address, request)).status == status


def test_oldest_of_too_many_clients_is_disconnected_for_a_probe() -> None:
    address = serve()
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(connected(address)) for _ in range(over_http.Pages.clients_max)
        ]
        wait_until(lambda: len(server().clients) == len(clients))
        assert is_served(address)
        assert clients[0].recv(1) == b""
        for client in clients[1:]:
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(1)


def test_probes_are_answered_while_hundreds_hold_their_connections() -> None:
    address = serve()
    with contextlib.ExitStack() as stack:
        for number in range(300):
            stack.enter_context(connected(address)).sendall(b"GET /live HTTP/1.0\r\n")
            assert number % 50 or is_served(address)
        assert is_served(address)
        assert len(server().clients) <= over_http.Pages.clients_max


def test_clients_that_reset_do_no_harm() -> None:
    address = serve()
    for request in (b"", b"GET /live", b"GET /live HTTP/1.0\r\n\r\n", b"x" * 10_000):
        for _ in range(10):
            with connected(address) as sock:
                sock.sendall(request)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert is_served(address)
    wait_until(lambda: server().clients == {})


def test_descriptors_are_closed_after_many_requests() -> None:
    address = serve()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        assert is_served(address)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before)


def test_client_that_does_not_close_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "ENDING_S", 0.05)
    monkeypatch.setattr(over_http.Pages, "timeout_s", LONG_S)
    address = serve()
    with connected(address) as sock:
        sock.sendall(b"GET /live HTTP/1.0\r\n\r\n")
        assert reply_of(rest_of(sock)).status == 200
        wait_until(lambda: server().clients == {})


# ── start and stop ───────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_nothing_is_imported_or_started_by_default(place: Path) -> None:
    script = """
    uringloop.new_event_loop().close()
    ready()
    print("uringloop.monitor.health" in sys.modules, "http" in sys.modules, flush=True)
    print(threading.active_count(), flush=True)
    """
    for value in ("", "0", "No"):
        with process_at(place, value, script) as watched:
            assert (watched.line(), watched.line()) == ("False False", "1")
            assert watched.end() == ""


def test_serve_returns_the_address_with_its_port() -> None:
    found = serve("localhost:0")
    assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", found)
    assert is_served(found)


def test_port_can_be_chosen() -> None:
    port = unused_port()
    assert serve(f":{port}") == f"127.0.0.1:{port}"
    assert is_served(f"127.0.0.1:{port}")


def test_second_call_at_the_same_address_has_its_own_limits() -> None:
    first = serve()
    with blocked_loop() as loop:
        wait_until(lambda: thread_state_of(loop)[3] > 0.1)
        assert ask(first, "/live").status == 200
        assert serve(first, dead_after=0.1, stacks=True) == first
        assert server().public is not None
        wait_until(lambda: status_of(first, "/live") == 503)
        assert ask(first, "/stacks").status == 200
        assert len(health_threads()) == 1


def test_second_call_at_another_address_ends_the_first() -> None:
    first = serve()
    fds = open_fds()
    second = serve()
    assert first != second
    assert is_served(second)
    with pytest.raises(ConnectionRefusedError):
        connected(first)
    wait_until(lambda: len(open_fds()) == len(fds))
    assert len(health_threads()) == 1


def test_stop_serving_ends_everything(place: Path) -> None:
    fds = open_fds()
    path = place / "socket"
    address = serve(f"unix:{path}")
    with connected(address) as sock:
        wait_until(lambda: len(server().clients) == 1)
        monitor.stop_serving()
        assert sock.recv(1) == b""
    monitor.stop_serving()
    assert health_threads() == []
    assert open_fds() == fds
    assert list(place.iterdir()) == []


def test_serving_can_begin_again_after_its_end() -> None:
    address = serve()
    monitor.stop_serving()
    assert serve(address) == address
    assert is_served(address)


def test_monitor_and_health_serve_side_by_side(place: Path) -> None:
    address = serve()
    assert monitor.start(place / "monitor")
    monitor.stop()
    assert is_served(address)
    assert monitor.start(place / "monitor")
    monitor.stop_serving()
    assert (place / "monitor").is_socket()


def test_any_thread_may_serve_and_stop(place: Path) -> None:
    def work(number: int) -> None:
        for _ in range(5):
            assert monitor.serve(f"unix:{place}/{number}") == f"unix:{place}/{number}"
            monitor.stop_serving()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        # An exception in any of the threads is raised here.
        assert list(pool.map(work, range(4))) == [None] * 4
    assert health_threads() == []
    assert list(place.iterdir()) == []


CALLS = {
    "before": "uringloop.monitor.serve(call)\nuringloop.new_event_loop().close()",
    "after": "uringloop.new_event_loop().close()\nuringloop.monitor.serve(call)",
}


@pytest.mark.parametrize("when", list(CALLS))
def test_call_overrides_the_variable(place: Path, when: str) -> None:
    variable, call = f"unix:{place}/variable", f"unix:{place}/call"
    script = f"call = {call!r}\n{CALLS[when]}\nready()\ngo()\n"
    with process_at(place, variable, script) as watched:
        assert list(place.iterdir()) == [place / "call"]
        assert is_served(call)
        assert watched.end() == ""
    assert list(place.iterdir()) == []


def test_stop_serving_overrides_the_variable(place: Path) -> None:
    script = """
    uringloop.monitor.stop_serving()
    uringloop.new_event_loop().close()
    ready()
    print(threading.active_count(), flush=True)
    """
    with process_at(place, LOCAL, script) as watched:
        assert watched.line() == "1"
        assert watched.end() == ""


def test_turns_are_timed_until_both_monitor_and_health_have_ended(place: Path) -> None:
    def busy() -> float:
        return thread_state_of(loop)[3]

    serve()
    assert monitor.start(place / "monitor")
    with blocked_loop() as loop:
        wait_until(lambda: busy() > 0)
        monitor.stop()
        before = busy()
        wait_until(lambda: busy() > before > 0)
        monitor.stop_serving()
        assert busy() == 0


def test_turns_are_timed_while_the_monitor_alone_goes_on(place: Path) -> None:
    serve()
    assert monitor.start(place / "monitor")
    with blocked_loop() as loop:
        monitor.stop_serving()
        wait_until(lambda: thread_state_of(loop)[3] > 0)
        monitor.stop()
        assert thread_state_of(loop)[3] == 0


def test_turns_are_not_timed_after_a_call_that_fails() -> None:
    serve()
    with blocked_loop() as loop:
        wait_until(lambda: thread_state_of(loop)[3] > 0)
        assert monitor.serve(NOT_OURS) is None
        assert thread_state_of(loop)[3] == 0


def test_signals_go_to_the_threads_of_the_program() -> None:
    serve()
    (thread,) = health_threads()
    status = Path(f"/proc/self/task/{thread.native_id}/status")

    def blocked() -> int:
        return int(re.findall(r"SigBlk:\s*(\w+)", status.read_text())[0], 16)

    wait_until(lambda: blocked() != 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        assert blocked() >> number - 1 & 1


# ── addresses ────────────────────────────────────────────────────────────────────────────────

BAD_ADDRESSES = [
    "",
    "nonsense",
    "127.0.0.1",
    "127.0.0.1:",
    "127.0.0.1:x",
    "127.0.0.1:-1",
    "127.0.0.1:65536",
    "example.com:80",
    "300.0.0.1:80",
    "::1:9100",
    "[::1]",
    "[::1:9100",
    "::1]:9100",
    "[127.0.0.1]:9100",
    "http://127.0.0.1:9100",
    "127.0.0.1:8_0",
    "127.0.0.1:+80",
    "unix:",
]


@pytest.mark.parametrize("address", BAD_ADDRESSES)
def test_bad_address_is_an_error_and_changes_nothing(address: str) -> None:
    before = serve()
    with pytest.raises(ValueError, match="is no address"):
        monitor.serve(address)
    assert is_served(before)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_limit_out_of_range_is_an_error(seconds: float) -> None:
    with pytest.raises(ValueError, match="dead_after must be a number of seconds above 0"):
        monitor.serve(LOCAL, dead_after=seconds)
    with pytest.raises(ValueError, match="ready_after must be a number of seconds above 0"):
        monitor.serve(LOCAL, ready_after=seconds)
    assert health_threads() == []


@pytest.mark.parametrize(
    "text",
    [
        NOT_OURS,
        "unix:/nonexistent/path",
    ],
)
def test_an_address_that_cannot_be_had_is_one_warning(place: Path, text: str) -> None:
    script = """
    for _ in range(3):
        uringloop.run(asyncio.sleep(0))
    ready()
    print(threading.active_count(), flush=True)
    """
    with process_at(place, text, script) as watched:
        assert watched.line() == "1"
        assert watched.end().count("health of this process cannot start: ") == 1


WORDS = "1, yes, true, on, 0, no, false, off"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "URINGLOOP_HEALTH must be 0 or an address, not 'nonsense'"),
        ("1", "URINGLOOP_HEALTH: '1' is no address: it must be the number of a host and a port"),
        ("9100", "URINGLOOP_HEALTH must be 0 or an address, not '9100'"),
        ("127.0.0.1:65536", "URINGLOOP_HEALTH: '127.0.0.1:65536' is no address: it must be"),
        ("dead_after", "URINGLOOP_HEALTH: 'dead_after' is not of the form dead_after=60&stacks=1"),
        ("dead_after=soon", "dead_after must be a number of seconds above 0, not 'soon'"),
        ("dead_after=-1", "dead_after must be a number of seconds above 0, not -1.0"),
        ("ready_after=nan", "ready_after must be a number of seconds above 0, not nan"),
        ("stacks=2", f"URINGLOOP_HEALTH: stacks must be one of {WORDS}, not '2'"),
        (
            "dead_after=3&colour=red&size=1",
            "URINGLOOP_HEALTH has no colour, size; it has dead_after, ready_after, stacks, wa",
        ),
    ],
)
def test_a_wrong_variable_is_an_error_that_names_the_right_values(
    monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    is_setting = "_after" in text or "=" in text
    monkeypatch.setenv("URINGLOOP_HEALTH", f"127.0.0.1:0?{text}" if is_setting else text)
    before = open_fds()
    with pytest.raises(ValueError, match=re.escape(message)):
        uringloop.Loop()
    assert open_fds() == before
    assert health_threads() == []


@pytest.mark.slow
def test_variable_can_have_the_limits_and_stacks(place: Path) -> None:
    address = f"127.0.0.1:{unused_port()}"
    limits = "?dead_after=300&ready_after=0.05&stacks=1"
    with process_at(place, address + limits, BLOCKED) as watched:
        wait_until(lambda: status_of(address, "/ready") == 503)
        assert ask(address, "/live").status == 200
        assert f"process {watched.pid}\n" in ask(address, "/stacks").body
        watched.end()
    with process_at(place, address + "?dead_after=.05", BLOCKED):
        wait_until(lambda: status_of(address, "/live") == 503)
        assert ask(address, "/stacks").status == 404


@pytest.mark.parametrize("text", ["", "stacks=0", "stacks=no", "stacks=False", "stacks=OFF"])
def test_variable_says_no_to_stacks_as_other_variables_do(text: str) -> None:
    assert not health_settings.parsed(f"{LOCAL}?{text}")[1].stacks


@pytest.mark.parametrize("text", ["1", "yes", "true"])
def test_variable_says_yes_to_stacks(text: str) -> None:
    assert health_settings.parsed(f"{LOCAL}?stacks={text}")[1].stacks


def test_limits_of_the_variable_have_the_defaults_of_serve() -> None:
    place, limits = health_settings.parsed("127.0.0.1:9100")
    assert place.name == "127.0.0.1:9100"
    assert (limits.dead_after, limits.ready_after, limits.stacks) == (30.0, 1.0, False)


@pytest.mark.parametrize("address", ["0.0.0.0:0", pytest.param("[::]:0", marks=needs_ipv6)])
def test_public_address_is_one_warning(address: str, caplog: pytest.LogCaptureFixture) -> None:
    found = serve(address)
    (warning,) = warnings_of(caplog)
    assert warning.startswith(f"health at {found}: other machines can reach it")
    port = found.rpartition(":")[2]
    assert is_served(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:0",
        "127.8.8.8:0",
        pytest.param("[::1]:0", marks=needs_ipv6),
        pytest.param("[::ffff:127.0.0.1]:0", marks=needs_ipv6),
    ],
)
def test_local_address_is_no_warning(address: str, caplog: pytest.LogCaptureFixture) -> None:
    assert is_served(serve(address))
    assert warnings_of(caplog) == []


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("10.0.0.1:80", True),
        ("[::ffff:10.0.0.1]:80", True),
        ("[fe80::1]:80", True),
        ("unix:/path", False),
        ("localhost:80", False),
    ],
)
def test_addresses_that_other_machines_reach_are_known(address: str, is_public: bool) -> None:
    assert Place(address).is_public() is is_public


# ── paths ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_socket_file_is_for_this_user_only(place: Path, umask: int) -> None:
    path = place / "socket"
    before = os.umask(umask)
    try:
        address = serve(f"unix:{path}")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert is_served(address)
    assert list(place.iterdir()) == [path]


def test_relative_path_is_made_absolute(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    assert serve("unix:socket") == f"unix:{place}/socket"
    monkeypatch.chdir("/")
    assert is_served(f"unix:{place}/socket")
    monitor.stop_serving()
    assert list(place.iterdir()) == []


def test_path_may_be_long(place: Path) -> None:
    # A socket's path has 107 bytes at most, and it has a longer name until it listens.
    path = f"{place}/"
    path += "x" * (95 - len(path))
    assert is_served(serve(f"unix:{path}"))


def test_path_need_not_be_utf_8(place: Path) -> None:
    assert is_served(serve(f"unix:{place}/\udcff"))


def test_path_with_a_null_byte_is_an_error(place: Path) -> None:
    fds = open_fds()
    with pytest.raises(ValueError, match="is no address"):
        monitor.serve(f"unix:{place}/a\0b")
    assert open_fds() == fds
    assert list(place.iterdir()) == []


def test_stale_file_is_replaced(place: Path) -> None:
    path = place / "stale"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    assert is_served(serve(f"unix:{path}"))


@pytest.mark.parametrize("where", ["missing/path", "file/path", "file", "folder", "x" * 200])
def test_unusable_path_is_one_warning(
    place: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    precious = place / "file"
    precious.write_text("precious")
    (place / "folder").mkdir()
    fds = open_fds()
    assert monitor.serve(f"unix:{place}/{where}") is None
    (warning,) = warnings_of(caplog)
    assert warning.startswith("health of this process cannot start: ")
    assert precious.read_text() == "precious"
    assert set(place.iterdir()) == {precious, place / "folder"}
    assert (open_fds(), health_threads()) == (fds, [])


@as_root
def test_path_without_permission_is_a_warning(place: Path) -> None:
    script = f"""
    uringloop.monitor.serve
    import uringloop.monitor.health
    os.setuid({NOBODY})
    print("ready" if uringloop.monitor.serve("unix:{place}/socket") is None else "served")
    sys.stdout.flush()
    """
    with process_at(place, "", script) as watched:
        assert "cannot start: [Errno 13]" in watched.end()


def test_process_whose_file_is_replaced_leaves_and_does_not_remove_it(
    place: Path, quick: None
) -> None:
    path = place / "socket"
    serve(f"unix:{path}")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(place / "new"))
        other.listen()
        (place / "new").rename(path)
        wait_until(lambda: server().public is None)
        monitor.stop_serving()
        assert path.is_socket()


def test_stop_serving_keeps_a_file_that_replaced_the_socket(place: Path) -> None:
    path = place / "socket"
    serve(f"unix:{path}")
    path.unlink()
    path.write_text("another's")
    monitor.stop_serving()
    assert path.read_text() == "another's"


def test_file_that_was_removed_is_made_again(place: Path, quick: None) -> None:
    path = place / "socket"
    address = serve(f"unix:{path}")
    path.unlink()
    wait_until(path.exists)
    assert is_served(address)
    assert len(server().listeners) == 2


def test_regular_file_in_the_place_of_the_socket_is_a_warning(
    place: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    path = place / "socket"
    serve(f"unix:{path}")
    path.unlink()
    path.write_text("another's")
    wait_until(lambda: warnings_of(caplog) != [])
    wait_for_ticks()
    assert warnings_of(caplog) == [f"health at unix:{path}: {path} exists and is not a socket"]
    monitor.stop_serving()
    assert path.read_text() == "another's"


# ── failures ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_address_of_another_program_is_a_warning_and_is_taken_when_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert serve(address) == address
        assert warnings_of(caplog) == []
        wait_until(lambda: warnings_of(caplog) != [])
        assert warnings_of(caplog) == [f"health at {address}: another program has the address"]
    wait_until(lambda: is_served(address))


def test_path_of_another_program_is_taken_when_free(
    place: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"unix:{place}/socket"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(address.removeprefix("unix:"))
        other.listen()
        serve(address)
        wait_until(lambda: warnings_of(caplog) != [])
        wait_for_ticks()
        assert warnings_of(caplog) == [f"health at {address}: another program has the address"]
    wait_until(lambda: is_served(address))


def test_address_of_another_machine_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert monitor.serve(NOT_OURS) is None
    (warning,) = warnings_of(caplog)
    assert warning.startswith("health of this process cannot start: ")


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize("failure", ["thread", "siblings", "permission"])
def test_failed_start_leaves_nothing(
    kind: str,
    failure: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def no_socket(group: str) -> socket.socket:
        raise OSError("no socket is left")

    def no_permission(sock: socket.socket, backlog: int) -> None:
        raise PermissionError("not permitted")

    address = f"127.0.0.1:{unused_port()}" if kind == "tcp" else f"unix:{place}/socket"
    before = serve()
    monitor.stop_serving()
    fds = open_fds()
    with monkeypatch.context() as patched:
        if failure == "thread":
            patched.setattr(threading.Thread, "start", refuse_thread)
        elif failure == "siblings":
            patched.setattr(siblings, "listen", no_socket)
        else:
            patched.setattr(socket.socket, "listen", no_permission)
        assert monitor.serve(address) is None
    (warning,) = warnings_of(caplog)
    assert warning.startswith("health of this process cannot start: ")
    assert (open_fds(), health_threads(), list(place.iterdir())) == (fds, [], [])
    assert health.SWITCH.server is None
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        connected(address)
    assert is_served(serve(before))


def test_close_does_not_mind_a_socket_that_the_thread_has_closed(place: Path) -> None:
    # The thread closes it when the file is another's, at any time.
    with contextlib.closing(
        health.Health(*health_settings.parsed(f"unix:{place}/socket"))
    ) as closed:
        assert closed.public is not None
        closed.public.close()
    assert closed.listeners == {}


def test_failed_second_call_leaves_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    first = serve()
    assert monitor.serve(NOT_OURS) is None
    assert health_threads() == []
    assert health.SWITCH.server is None
    assert is_served(serve(first))


def test_failed_import_does_not_prevent_loops(place: Path) -> None:
    # As in a daemon that has changed its root directory.
    script = """
    sys.modules["uringloop.monitor"] = None
    uringloop.run(asyncio.sleep(0))
    ready()
    """
    with process_at(place, LOCAL, script) as watched:
        assert watched.end().startswith("URINGLOOP_HEALTH: import of uringloop.monitor")


# ── siblings ─────────────────────────────────────────────────────────────────────────────────


def stop(watched: Program) -> None:
    """Stop a process, and wait until none of its threads runs."""
    os.kill(watched.pid, signal.SIGSTOP)
    states = Path(f"/proc/{watched.pid}/task").glob("*/stat")
    for state in list(states):
        wait_until(lambda state=state: state.read_text().rpartition(")")[2].split()[0] == "T")  # type: ignore[misc]


def siblings_of(address: str) -> list[str]:
    """Return the names of the sockets of the other processes."""
    others = server().others
    assert others is not None
    return [name for name in siblings.names_of(siblings.group_of(address)) if name != others.own]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_one_process_answers_for_all_with_the_address(place: Path, kind: str) -> None:
    address = f"127.0.0.1:{unused_port()}" if kind == "tcp" else f"unix:{place}/socket"
    other = f"127.0.0.1:{unused_port()}"
    with (
        process_at(place, address + "?stacks=1") as first,
        process_at(place, address + "?stacks=1") as second,
        process_at(place, other) as stranger,
    ):
        wait_until(lambda: has(address, "/live", str(second.pid)))
        pids = sorted((first.pid, second.pid))
        for path in ("/live", "/ready"):
            reply = ask(address, path)
            assert reply.status == 200
            lines = [f"process {pid}, loop MainThread: asleep" for pid in pids]
            assert sorted(reply.body.splitlines(), key=len) == lines
        families = families_of(ask(address, "/metrics").body)
        for labels in families.values():
            found = {re.findall(r'pid="(\d+)",loop="MainThread"', one)[0] for one in labels}
            assert found == set(map(str, pids))
        body = ask(address, "/stacks").body
        assert all(f"process {pid}\n" in body for pid in pids)
        assert has(other, "/live", str(stranger.pid))
        assert not has(other, "/live", str(first.pid))
        for watched in (first, second, stranger):
            assert watched.end() == ""


@pytest.mark.slow
def test_blocked_sibling_makes_the_service_not_ready(place: Path) -> None:
    address = serve(ready_after=0.3)
    with loop_named("own"), process_at(place, address, BLOCKED) as watched:
        wait_until(lambda: status_of(address, "/ready") == 503)
        body = ask(address, "/ready").body
        assert re.search(rf"process {watched.pid}, loop .*: busy for .* in go, <string>:\d+", body)
        assert ask(address, "/live").status == 200
        watched.end()
        wait_until(lambda: status_of(address, "/ready") == 200)


@pytest.mark.slow
def test_stopped_sibling_is_silent_until_it_goes_on(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = serve(ready_after=0.5)
    with process_at(place, address) as watched:
        wait_until(lambda: status_of(address, "/ready") == 200)
        stop(watched)
        start = time.monotonic()
        reply = ask(address, "/live")
        assert time.monotonic() - start < 1
        assert reply.status == 200
        assert re.search(rf"process {watched.pid}: has not answered for 0\.\d\d s\n", reply.body)
        wait_until(lambda: status_of(address, "/ready") == 503)
        # It is not waited for again.
        with monkeypatch.context() as patched:
            patched.setattr(siblings, "WAIT_S", 3.0)
            start = time.monotonic()
            assert ask(address, "/live").status == 200
            assert time.monotonic() - start < 3
        os.kill(watched.pid, signal.SIGCONT)
        wait_until(lambda: status_of(address, "/ready") == 200)
        assert has(address, "/ready", f"process {watched.pid}, loop MainThread: asleep\n")


@pytest.mark.slow
def test_sibling_that_cannot_be_asked_is_named_and_does_not_count(place: Path) -> None:
    address = serve(ready_after=0.5)
    with process_at(place, address) as watched, contextlib.ExitStack() as stack:
        wait_until(lambda: status_of(address, "/ready") == 200)
        (name,) = siblings_of(address)
        stop(watched)
        # Any user of the machine can do this.
        with contextlib.suppress(BlockingIOError):
            while True:
                sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                sock.setblocking(False)
                sock.connect(f"\0{name}")
        assert has(address, "/live", f"process {watched.pid}: cannot answer\n")
        assert ask(address, "/live").status == 200


@pytest.mark.slow
def test_stop_serving_closes_a_question_that_is_not_answered(place: Path) -> None:
    fds = open_fds()
    address = serve()
    with process_at(place, address) as watched:
        wait_until(lambda: has(address, "/live", str(watched.pid)))
        stop(watched)
        assert has(address, "/live", "has not answered")
        running = open_fds()
        monitor.stop_serving()
        assert len(open_fds()) < len(running)
    assert open_fds() == fds


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_process_that_waits_for_its_siblings_address_warns_of_nothing(
    place: Path, quick: None, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{unused_port()}" if kind == "tcp" else f"unix:{place}/socket"
    with process_at(place, address) as watched:
        serve(address)
        wait_for_ticks()
        assert server().public is None
        assert watched.end() == ""
        wait_until(lambda: server().public is not None)
    assert warnings_of(caplog) == []


@pytest.mark.slow
def test_silent_process_is_dead_and_in_the_stacks(place: Path) -> None:
    address = serve(dead_after=0.5, stacks=True)
    with process_at(place, address) as watched:
        wait_until(lambda: has(address, "/live", str(watched.pid)))
        stop(watched)
        wait_until(lambda: status_of(address, "/live") == 503)
        assert f"process {watched.pid}: has not answered for " in ask(address, "/stacks").body
        assert ask(address, "/metrics").status == 200
    # The process is killed now.
    wait_until(lambda: is_served(address))
    assert not has(address, "/live", str(watched.pid))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_another_process_takes_the_address_of_one_that_was_killed(place: Path, kind: str) -> None:
    address = f"127.0.0.1:{unused_port()}" if kind == "tcp" else f"unix:{place}/socket"
    with process_at(place, address) as holder, process_at(place, address) as heir:
        wait_until(lambda: has(address, "/live", f"process {heir.pid},"))
        holder.process.kill()
        holder.process.wait()
        wait_until(lambda: is_served(address))
        wait_until(lambda: not has(address, "/live", f"process {holder.pid}"))
        assert has(address, "/live", f"process {heir.pid},")
        assert heir.end() == ""


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage",
        b"\xff\x00\r\n\r\n\xff",
        b"HTTP/1.0 500 x\r\n\r\n[]",
        OK,
        OK + b"\xff\xfe",
        OK + b"[{",
        OK + b"5",
        OK + b"null",
        OK + b'"text"',
        OK + b'{"pid": 1}',
        OK + b"[1, null]",
        OK + b"[{}]",
        OK + b"[" * 100_000,
        OK + b"# HELP\n",
        OK + b"# HELP name\n# TYPE name",
    ],
)
def test_sibling_that_answers_garbage_is_ignored(answer: bytes) -> None:
    address = serve(stacks=True)
    with (
        loop_named("own"),
        forger(name_in(address), answer) as questions,
    ):
        for path in ("/live", "/ready", "/metrics", "/stacks"):
            assert (path, ask(address, path).status) == (path, 200)
        assert has(address, "/live", f"process {os.getpid()}, loop own: asleep\n")
        assert b"GET /loops HTTP/1.0\r\n\r\n" in questions


def test_rest_of_a_long_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "ANSWER_BYTES_MAX", 1000)
    address = serve()
    with loop_named("own"), forger(name_in(address), OK + b"x" * 3_000_000):
        assert ask(address, "/live").status == 200
        question = siblings.Question(name_in(address), "/loops", os.geteuid())
        with question.sock:
            wait_until(question.has_ended)
            assert 1000 <= len(question.received) < 100_000


def test_names_that_are_not_of_the_group_are_not_asked() -> None:
    address = serve()
    group = siblings.group_of(address)
    names = [f"{group}1.{'g' * 16}", f"{group}0.{'0' * 16}", f"{group}1.0", f"x{group}1.{'0' * 16}"]
    with contextlib.ExitStack() as stack:
        asked = [stack.enter_context(forger(name, OK + b"[]")) for name in names]
        assert ask(address, "/live").status == 200
        assert asked == [[]] * len(names)


@as_root
def test_process_of_another_user_with_a_name_of_the_group_is_ignored(place: Path) -> None:
    address = serve()
    busy = [{"pid": 1, "loop": "forged", "running": True, "busy": 1e9, "doing": "harm"}]
    answer = OK + json.dumps(busy).encode()
    script = f"""
    import socket
    os.setgid({NOBODY})
    os.setuid({NOBODY})
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(chr(0) + {name_in(address)!r})
    listener.listen()
    ready()
    sock, _ = listener.accept()
    print(sock.recv(100), flush=True)
    try:
        sock.sendall({answer!r})
    except OSError:
        # The connection has been closed.
        pass
    sock.close()
    listener.close()
    """
    with process_at(place, "", script) as stranger, loop_named("own"):
        reply = ask(address, "/ready")
        assert reply[::2] == (200, f"process {os.getpid()}, loop own: asleep\n")
        # It was found, but not even asked.
        assert stranger.line() == "b''"
        stranger.end()


@as_root
def test_another_user_may_not_ask_a_process_what_its_siblings_ask(place: Path) -> None:
    serve(stacks=True)
    name = server().others
    assert name is not None
    script = f"""
    import socket
    os.setgid({NOBODY})
    os.setuid({NOBODY})
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(chr(0) + {name.own!r})
    ready()
    try:
        sock.sendall(b"GET /stacks HTTP/1.0" + 2 * b"\\r\\n")
        print(sock.recv(100), flush=True)
    except (BrokenPipeError, ConnectionResetError):
        print(b"", flush=True)
    sock.close()
    """
    with process_at(place, "", script) as stranger:
        # Nothing if the connection has ended before the question was sent.
        assert stranger.line() in ("b''", repr(health_pages.FORBIDDEN))
        stranger.end()


# ── forks ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("how", ["call", "variable"])
def test_forked_child_serves_from_its_first_loop_and_its_parent_goes_on(
    place: Path, how: str
) -> None:
    address = f"unix:{place}/socket"
    script = f"""
    if {how!r} == "call":
        uringloop.monitor.serve({address!r})
    loop = uringloop.new_event_loop()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        own = uringloop.new_event_loop()
        ready("made")
        os.read(read, 1)
        sys.exit(0)
    os.close(read)
    ready()
    print(child, threading.active_count(), flush=True)
    for _ in range(2):
        go()
        os.write(write, b"1")
    os.waitpid(child, 0)
    ready("reaped")
    go()
    """
    variables = {"URINGLOOP_HEALTH": address if how == "variable" else "", "URINGLOOP_MONITOR": ""}
    with program(place, script, PYTHONWARNINGS=NO_FORK_WARNING, **variables) as watched:
        child, threads = watched.line().split()
        assert threads == "2"
        assert has(address, "/live", f"process {watched.pid},")
        assert not has(address, "/live", f"process {child},")
        watched.go()
        assert watched.line() == "made"
        wait_until(lambda: has(address, "/live", f"process {child},"))
        assert has(address, "/live", f"process {watched.pid},")
        watched.go()
        assert watched.line() == "reaped"
        wait_until(lambda: not has(address, "/live", f"process {child}"))
        assert is_served(address)
        watched.end()
        assert list(place.iterdir()) == []


@pytest.mark.slow
def test_forked_child_takes_the_address_of_a_parent_that_was_killed(place: Path) -> None:
    port = unused_port()
    script = f"""
    uringloop.monitor.serve("127.0.0.1:{port}")
    if os.fork() == 0:
        loop = uringloop.new_event_loop()
        ready()
        print(os.getpid(), flush=True)
        go()
        os._exit(0)
    go()
    """
    variables = {"URINGLOOP_MONITOR": "", "PYTHONWARNINGS": NO_FORK_WARNING}
    with program(place, script, **variables) as watched:
        child = watched.line()
        watched.process.kill()
        watched.process.wait()
        wait_until(lambda: has(f"127.0.0.1:{port}", "/live", f"process {child},"))


@pytest.mark.parametrize("how", ["call", "variable"])
def test_child_of_a_parent_that_has_stopped_serves_nothing(place: Path, how: str) -> None:
    script = f"""
    if {how!r} == "call":
        uringloop.monitor.serve("127.0.0.1:0")
    uringloop.new_event_loop().close()
    uringloop.monitor.stop_serving()
    child = os.fork()
    if child == 0:
        uringloop.new_event_loop().close()
        os._exit(threading.active_count())
    ready()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    """
    with process_at(place, LOCAL if how == "variable" else "", script) as watched:
        assert watched.line() == "1"
        assert watched.end() == ""


def test_forked_child_without_a_loop_has_no_descriptor_of_its_parent(place: Path) -> None:
    script = f"""
    def sockets():
        names = (f"/proc/self/fd/{{name}}" for name in os.listdir("/proc/self/fd"))
        return sum(os.path.exists(n) and os.readlink(n).startswith("socket:") for n in names)

    before = sockets()
    uringloop.monitor.serve("unix:{place}/socket")
    assert sockets() == before + 2
    child = os.fork()
    if child == 0:
        os._exit(sockets() - before)
    ready()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    print(os.path.exists("{place}/socket"), flush=True)
    """
    variables = {"URINGLOOP_MONITOR": "", "PYTHONWARNINGS": NO_FORK_WARNING}
    with program(place, script, **variables) as watched:
        assert (watched.line(), watched.line()) == ("0", "True")
        watched.end()
    assert list(place.iterdir()) == []


# ── the program's own classes ────────────────────────────────────────────────────────────────


class Rude(Exception):
    """An exception that has no text either."""

    def __str__(self) -> str:
        raise SystemExit


class RudeLoop(uringloop.Loop):
    """A class of the program, all of whose methods for people fail."""

    def stats(self) -> Any:
        raise Rude

    def get_debug(self) -> bool:
        raise Rude


class RudeTask(asyncio.Task[None]):
    def get_name(self) -> str:
        raise SystemExit


@pytest.mark.parametrize("path", ["/live", "/ready", "/metrics"])
def test_classes_of_the_program_that_raise_change_no_answer(path: str) -> None:
    address = serve()
    with contextlib.closing(RudeLoop()) as loop, loop_named("well"):
        assert ask(address, path).status == 200
        assert is_served(address)
    assert loop.is_closed()


def test_task_without_a_name_is_told_as_unknown() -> None:
    address = serve(ready_after=0.1)
    entered, release = threading.Event(), threading.Event()

    async def stuck() -> None:
        entered.set()
        release.wait(PATIENCE)

    with loop_named("worker") as loop:
        loop.call_soon_threadsafe(lambda: rude.append(RudeTask(stuck(), loop=loop)))
        rude: list[RudeTask] = []
        assert entered.wait(PATIENCE)
        wait_until(lambda: status_of(address, "/ready") == 503)
        assert has(address, "/ready", "unknown: SystemExit")
        release.set()
    assert is_served(address)


def goes_on_after_an_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(over_http.Pages, "answer", lambda *_: int("no number"))
        with connected(address) as sock, contextlib.suppress(ConnectionResetError):
            sock.sendall(b"GET /live HTTP/1.0\r\n\r\n")
            assert sock.recv(100) == b""
    assert is_served(address)


def test_thread_goes_on_after_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on_after_an_error(serve(), monkeypatch)
    assert [one.getMessage() for one in caplog.records] == [
        "uringloop-health goes on after an error"
    ]


def test_callback_and_place_in_it_are_told() -> None:
    address = serve(ready_after=0.1)
    release = threading.Event()

    def the_callback() -> None:
        release.wait(PATIENCE)

    with loop_named("worker") as loop:
        loop.call_soon_threadsafe(the_callback)
        wait_until(lambda: status_of(address, "/ready") == 503)
        body = ask(address, "/ready").body
        release.set()
    callback = rf"in the_callback, {re.escape(__file__)}:\d+"
    assert re.search(rf"busy for .* s, {callback}, in wait, .*threading.py:\d+\n", body), body


# ── what a service has lost ──────────────────────────────────────────────────────────────────


@pytest.mark.slow
@as_root
def test_siblings_are_asked_after_the_service_has_changed_its_user(place: Path) -> None:
    address = f"127.0.0.1:{unused_port()}"
    script = f"""
    async def main():
        os.setgid({NOBODY})
        os.setuid({NOBODY})
        asyncio.get_running_loop().call_soon(ready)
        await asyncio.get_running_loop().run_in_executor(None, go)

    uringloop.run(main())
    """
    with process_at(place, address, script) as first, process_at(place, address, script) as second:
        for one in (first, second):
            wait_until(functools.partial(has, address, "/live", f"process {one.pid}, loop"))


def test_sibling_that_cannot_answer_is_named() -> None:
    address = serve()
    answer = b"HTTP/1.0 500 Internal Server Error\r\n\r\nMemoryError\n"
    with loop_named("own"), forger(name_in(address), answer):
        wait_until(lambda: has(address, "/live", "process 1: cannot answer\n"))
        assert ask(address, "/live").status == 200


def test_siblings_are_remembered_while_no_descriptor_is_left(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    address = serve(ready_after=0.3)
    with process_at(place, address) as watched:
        wait_until(lambda: has(address, "/live", str(watched.pid)))
        stop(watched)
        assert has(address, "/live", "has not answered")
        with monkeypatch.context() as patched:
            patched.setattr(siblings, "KEEP_S", 0.0)
            patched.setattr(siblings, "names_of", no_descriptor)
            patched.setattr(siblings, "Question", no_descriptor)
            wait_until(lambda: status_of(address, "/ready") == 503)
            assert has(address, "/live", f"process {watched.pid}: has not answered for ")


def test_time_of_a_silent_process_is_a_metric(place: Path) -> None:
    address = serve()
    with process_at(place, address) as watched:
        wait_until(lambda: has(address, "/live", str(watched.pid)))
        stop(watched)
        assert has(address, "/live", "has not answered")
        assert has(address, "/metrics", f'\nuringloop_silent_seconds{{pid="{watched.pid}"}} 0.')
    assert "uringloop_silent_seconds" not in ask(address, "/metrics").body


# ── clients that do not read ─────────────────────────────────────────────────────────────────


def test_answers_that_are_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    address = serve()
    show(lambda: over_http.Page("x" * 500_000))
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            sock = stack.enter_context(connected(address))
            sock.sendall(b"GET /own HTTP/1.0\r\n\r\n")
        wait_until(lambda: is_served(address))
        unsent = [len(one.unsent) for one in list(server().clients.values())]
        assert sum(unsent) <= serving.UNSENT_BYTES_MAX + 500_000


def test_probe_does_not_wait_for_the_cost_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def burn() -> over_http.Page:
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass
        return over_http.Page("done\n")

    address = serve()
    show(burn)
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(connected(address)).sendall(b"GET /own HTTP/1.0\r\n\r\n")
        assert ask(address, "/own").status == 200
        began = time.monotonic()
        assert is_served(address)
        # Without a limit it would take ten times the processor time of the others: ten seconds.
        assert time.monotonic() - began < 2


def test_stop_serving_does_not_wait_for_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PAUSE_S", 3.0)
    address = serve()
    assert is_served(address)
    began = time.monotonic()
    monitor.stop_serving()
    assert time.monotonic() - began < 2


# ── systemd's watchdog ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def systemd(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket at which systemd is told; it wants to be each second."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(place / "notify"))
        sock.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(place / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        yield sock


def watch(address: str = LOCAL, dead_after: float = LONG_S) -> str:
    found = monitor.serve(address, dead_after=dead_after, watchdog=True)
    assert found is not None
    return found


def test_systemd_is_told_again_and_again(systemd: socket.socket) -> None:
    watch()
    with loop_named("own"):
        for _ in range(3):
            assert systemd.recv(100) == b"WATCHDOG=1"


def test_systemd_is_not_told_while_a_loop_is_dead(systemd: socket.socket) -> None:
    address = watch(dead_after=0.3)
    with blocked_loop():
        wait_until(lambda: status_of(address, "/live") == 503)
        systemd.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            # What was sent before.
            while systemd.recv(100):
                pass
        with pytest.raises(TimeoutError):
            systemd.recv(100)
    systemd.settimeout(PATIENCE)
    assert systemd.recv(100) == b"WATCHDOG=1"


def test_systemd_is_told_though_another_program_has_the_address(
    systemd: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        watch(f"127.0.0.1:{other.getsockname()[1]}")
        assert systemd.recv(100) == b"WATCHDOG=1"
    assert "another program has the address" in caplog.text


def test_abstract_socket_of_systemd_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"uringloop-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        watch()
        assert sock.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize("time_us", ["", "0", "soon"])
def test_health_is_served_without_a_watchdog_that_systemd_does_not_want(
    systemd: socket.socket,
    time_us: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", time_us)
    assert is_served(watch())
    (warning,) = warnings_of(caplog)
    assert warning.endswith("systemd is not told, as it has not asked for it: the unit needs "
                            "WatchdogSec=")  # fmt: skip


def test_systemd_that_cannot_be_told_is_one_warning(
    systemd: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    os.unlink(systemd.getsockname())
    address = watch()
    wait_until(lambda: "systemd cannot be told" in caplog.text)
    assert is_served(address)
    assert len(warnings_of(caplog)) == 1


# ── what a program does to its process ───────────────────────────────────────────────────────


class Refusing(logging.Handler):
    """A log handler of the program that fails."""

    def emit(self, record: logging.LogRecord) -> None:
        raise SystemExit


@pytest.fixture
def refusing() -> Iterator[None]:
    handler = Refusing()
    logging.getLogger("uringloop").addHandler(handler)
    yield
    logging.getLogger("uringloop").removeHandler(handler)


def test_log_handler_that_raises_does_not_end_the_thread(
    refusing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on_after_an_error(serve(), monkeypatch)


def test_default_timeout_of_sockets_does_not_hold_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = serve()
    monkeypatch.setattr(serving, "PAUSE_S", 0.001)
    socket.setdefaulttimeout(3.0)
    try:
        with connected(address) as idle:
            idle.sendall(b"GET /li")
            began = time.monotonic()
            assert is_served(address)
            assert time.monotonic() - began < 2
    finally:
        socket.setdefaulttimeout(None)


@pytest.mark.slow
def test_probe_is_answered_though_no_descriptor_is_left(place: Path) -> None:
    address = f"127.0.0.1:{unused_port()}"
    script = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    async def main():
        kept = []
        try:
            while True:
                kept.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            asyncio.get_running_loop().call_soon(ready)
        await asyncio.get_running_loop().create_future()

    uringloop.run(main())
    """
    serve(address)
    # As a sibling, and as the process with the address.
    with process_at(place, address, script) as watched:
        wait_until(lambda: has(address, "/live", f"process {watched.pid}, loop MainThread: asleep"))
        monitor.stop_serving()
        wait_until(lambda: status_of(address, "/live") == 0)


def test_answers_asked_for_later_are_bounded_as_well() -> None:
    address = serve()
    show(lambda: over_http.Page("x" * 500_000))
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connected(address)) for _ in range(10)]
        wait_until(lambda: len(server().clients) == 10)
        for sock in socks:
            sock.sendall(b"GET /own HTTP/1.0\r\n\r\n")
        wait_until(lambda: len(server().clients) < 5)
        wait_until(lambda: is_served(address))
        unsent = [len(one.unsent) for one in list(server().clients.values())]
        assert sum(unsent) <= serving.UNSENT_BYTES_MAX + 500_000


@pytest.mark.slow
def test_stacks_of_a_process_that_does_not_show_them_are_not_shown(place: Path) -> None:
    address = serve(stacks=True)
    with process_at(place, address) as watched:
        wait_until(lambda: has(address, "/live", str(watched.pid)))
        assert has(address, "/stacks", f"process {watched.pid}: cannot answer")


def test_callback_of_a_deep_stack_is_told() -> None:
    address = serve(ready_after=0.1)
    release = threading.Event()

    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        else:
            release.wait(PATIENCE)

    def the_callback() -> None:
        deep(200)

    with loop_named("worker") as loop:
        loop.call_soon_threadsafe(the_callback)
        wait_until(lambda: status_of(address, "/ready") == 503)
        assert has(address, "/ready", f", in the_callback, {__file__}:")
        release.set()
