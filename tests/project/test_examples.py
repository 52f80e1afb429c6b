"""The examples, each run by the command of its first line and tested over the network."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.loops import on_io_uring
from support.roles import PATIENCE, listens, unused_port, wait_until
from support.tls_contexts import CERTIFICATES, client_context

EXAMPLES = Path(__file__).parents[2] / "examples"
Address = tuple[str, int]

# The tests also run on Pythons on which threads take turns.
WITH_GIL = "ignore:the threads of run_threads:RuntimeWarning"

# The line that an example prints when it is ready.
LISTENING = re.compile(r"listening on ([\d.]+):(\d+)")


@contextlib.contextmanager
def running(
    name: str, *arguments: str, end_by: int = signal.SIGINT
) -> Iterator[subprocess.Popen[str]]:
    """Run an example, and end it by a signal; it must print nothing on standard error.

    The status must be 0 after Ctrl-C; SIGTERM ends the process.
    """
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Buffered output is one write for each line: lines of several processes do not mix.
        env={**os.environ, "PYTHONUNBUFFERED": "", "PYTHONWARNINGS": WITH_GIL},
    ) as process:
        try:
            yield process
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        # A terminal sends Ctrl-C to all processes of the group.
        os.killpg(process.pid, end_by)
        _, errors = process.communicate(timeout=PATIENCE)
    status = 0 if end_by == signal.SIGINT else -end_by
    assert (process.returncode, errors) == (status, "")


def ended(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example that ends by itself."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def listening_address(process: subprocess.Popen[str]) -> Address:
    """Return the address that an example listens on."""
    assert process.stdout is not None
    found = LISTENING.search(process.stdout.readline())
    assert found is not None
    return found[1], int(found[2])


def sockets(pid: int) -> set[str]:
    """Return the open sockets of a process, by their inodes."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(entry))
    return {name for name in found if name.startswith("socket:")}


@contextlib.contextmanager
def serving(name: str, *arguments: str) -> Iterator[Address]:
    with running(name, "--port", "0", *arguments) as process:
        address = listening_address(process)
        before = sockets(process.pid)
        yield address
        wait_until(lambda: sockets(process.pid) == before)


def received(sock: socket.socket, size: int) -> bytes:
    """Return *size* bytes, or fewer if EOF comes first."""
    data = b""
    while len(data) < size and (part := sock.recv(size - len(data))):
        data += part
    return data


@contextlib.contextmanager
def answering(sock: socket.socket, answer: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Serve on a socket in a thread until the end of the block, which closes the socket."""
    sock.bind(("127.0.0.1", 0))
    sock.settimeout(PATIENCE)
    thread = threading.Thread(target=answer, args=(sock,))
    if sock.type == socket.SOCK_STREAM:
        sock.listen()
    thread.start()
    try:
        yield sock.getsockname()
    finally:
        sock.close()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def test_examples_are_short() -> None:
    found = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    # Two loops, two clients and the processor time: this one does more than the others.
    assert found.pop("compare_service.py") < 125
    assert len(found) == 16
    assert {name: lines for name, lines in found.items() if lines >= 80} == {}


@pytest.mark.parametrize("arguments", [(), ("--streams",)])
def test_echo(arguments: tuple[str, ...]) -> None:
    data = os.urandom(1 << 20)
    with (
        serving("echo.py", *arguments) as address,
        socket.create_connection(address, PATIENCE) as client,
    ):
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        assert received(client, len(data)) == data
        sender.join()


def answer_to(address: Address, pieces: list[bytes]) -> bytes:
    """Send *pieces* one after the other, and half-close; return all that comes back."""
    with socket.create_connection(address, PATIENCE) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send() -> None:
            for piece in pieces:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        answer = b"".join(iter(lambda: client.recv(1 << 20), b""))
        sender.join()
    return answer


@pytest.mark.parametrize(
    ("loop", "ring"),
    [
        pytest.param("uringloop", "io_uring", marks=on_io_uring),
        ("uringloop", "soft"),
        ("asyncio", ""),
        ("uvloop", ""),
    ],
)
def test_hand_over(loop: str, ring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(loop)
    if ring:
        monkeypatch.setenv("URINGLOOP_BACKEND", ring)
    data = os.urandom(1 << 20).replace(b"\n", b"")
    line = [bytes([byte]) for byte in b"a name that comes byte by byte\n"]
    greetings: set[bytes] = set()
    with serving("hand_over.py", "--loop", loop) as address:
        for pieces in ([b"name\n"], [b"name\n" + data], [*line, data], [b"no line"], []):
            greeting, _, rest = answer_to(address, pieces).partition(b"\n")
            assert rest == b"".join(pieces).upper()
            greetings.add(greeting)
    # One process has served all connections.
    assert len(greetings) == 1
    assert re.fullmatch(rb"process \d+", greetings.pop())


def fetched(address: Address, path: str) -> tuple[int, bytes]:
    """Send a GET request; return the status and the body."""
    url = f"http://{address[0]}:{address[1]}{path}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read()


def test_file_server(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").mkdir()
    data = os.urandom(3_000_001)
    (root / "a file.bin").write_bytes(data)
    (tmp_path / "secret").write_text("not to be seen")
    (root / "way out").symlink_to(tmp_path / "secret")
    with serving("file_server.py", "--root", str(root)) as address:
        assert fetched(address, "/a%20file.bin") == (200, data)
        assert fetched(address, "/nothing") == (404, b"")
        assert fetched(address, "/a%20file.bin/below") == (404, b"")
        for path in ("/folder", "/../secret", "/%2e%2e/secret", "/way%20out"):
            assert fetched(address, path) == (403, b"")
        with socket.create_connection(address, PATIENCE) as client:
            client.sendall(b"POST / HTTP/1.1\r\n\r\nGET /folder HTTP/1.1\r\n\r\nnonsense\r\n\r\n")
            answers = client.makefile("rb").read()
    statuses = re.findall(rb"HTTP/1.1 (\d+)", answers)
    assert statuses == [b"405", b"403", b"400"]


def test_dns_forwarder() -> None:
    def upstream(sock: socket.socket) -> None:
        # Answers both queries in the wrong order, each after an answer with an unknown id.
        queries = [sock.recvfrom(512) for _ in range(2)]
        for query, sender in reversed(queries):
            sock.sendto(b"\0\0" + query[2:], sender)
            sock.sendto(query + b" answered", sender)

    with (
        answering(socket.socket(type=socket.SOCK_DGRAM), upstream) as address,
        serving("dns_forwarder.py", "--upstream", f"{address[0]}:{address[1]}") as forwarder,
        socket.socket(type=socket.SOCK_DGRAM) as one,
        socket.socket(type=socket.SOCK_DGRAM) as two,
    ):
        for number, client in enumerate((one, two)):
            client.settimeout(PATIENCE)
            client.sendto(b"short", forwarder)
            # Both clients use the same id.
            client.sendto(b"\x12\x34" + b"%d" % number * 20, forwarder)
        for number, client in enumerate((one, two)):
            assert client.recv(512) == b"\x12\x34" + b"%d" % number * 20 + b" answered"


def dns_query(name: str, kind: int = 1, flags: int = 0x100) -> bytes:
    """Return a question for a record, of an address (A) by default."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", 0x1234, flags, 1, 0, 0, 0) + labels + struct.pack("!xHH", kind, 1)


def test_names() -> None:
    known = dns_query("Here.test")
    unknown = dns_query("nowhere.test")
    text = dns_query("here.test", 16)
    garbage = [
        b"",
        b"short",
        bytes(12),
        b"x" * 60_000,
        known[:-1],
        known[:12] + b"x" * 300,
        dns_query("here.test", flags=0x8000),
        dns_query("here.test", flags=0x2000),
    ]

    def checked(query: bytes, answer: bytes, code: int, count: int) -> bytes:
        """Check the header and the question, and return what is behind."""
        assert struct.unpack_from("!6H", answer) == (0x1234, 0x8500 | code, 1, count, 0, 0)
        assert answer[12 : len(query)] == query[12:]
        return answer[len(query) :]

    with running("names.py", "here.test=10.0.0.1", "two.test=10.0.0.2", "--port", "0") as process:
        _, port = listening_address(process)
        for host in ("127.0.0.1", "127.0.0.2"):
            # A connected socket receives answers from the address that it asks only.
            with socket.socket(type=socket.SOCK_DGRAM) as client:
                client.settimeout(PATIENCE)
                client.connect((host, port))
                for data in garbage:
                    client.send(data)
                client.send(known)
                record = checked(known, client.recv(512), 0, 1)
                assert record[:6] == b"\xc0\x0c\0\1\0\1"
                assert record[10:] == b"\0\4" + socket.inet_aton("10.0.0.1")
                client.send(unknown)
                assert checked(unknown, client.recv(512), 3, 0) == b""
                client.send(text)
                assert checked(text, client.recv(512), 0, 0) == b""


@pytest.mark.parametrize("wrong", ["here.test", "here.test=1.2.3", "=10.0.0.1", "a..b=10.0.0.1"])
def test_names_refuses_a_wrong_entry(wrong: str) -> None:
    result = ended("names.py", "--port", "0", wrong)
    assert result.returncode == 2
    assert f"invalid entry value: {wrong!r}" in result.stderr


def test_delay() -> None:
    with running("delay.py", "receive", "--port", "0") as process:
        _, port = listening_address(process)
        with socket.socket(type=socket.SOCK_DGRAM) as other:
            for size in (0, 15, 16, 17):
                other.sendto(b"x" * size, ("127.0.0.1", port))
        for count in (1, 5):
            sent = ended("delay.py", "send", "127.0.0.1", str(port), "--count", str(count))
            assert (sent.returncode, sent.stdout, sent.stderr) == (0, "", "")
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(count + 1)]
            found = [re.fullmatch(r"(\w+): ([\d.]+) us\n", line) for line in lines]
            names, delays = zip(*(one.groups() for one in found if one is not None), strict=True)
            assert names == (*map(str, range(count)), "median")
            *each, median = map(float, delays)
            assert all(0 <= delay < 1_000_000 for delay in each)
            assert median == pytest.approx(statistics.median(each), abs=0.11)


def test_delay_says_that_nobody_receives() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    result = ended("delay.py", "send", "127.0.0.1", str(port))
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch("nobody receives there: .*\n", result.stderr)


def test_tls_proxy() -> None:
    data = b"Data" * 250_000

    def server(sock: socket.socket) -> None:
        client, _ = sock.accept()
        with client:
            client.sendall(received(client, len(data)).swapcase())

    certificate = str(CERTIFICATES / "server.pem")
    with (
        answering(socket.socket(), server) as address,
        serving(
            *("tls_proxy.py", "--certificate", certificate, "--key", certificate),
            *("--server", f"{address[0]}:{address[1]}"),
        ) as proxy,
        socket.create_connection(proxy, PATIENCE) as plain,
        client_context().wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.sendall(data)
        # One byte more than that, to receive EOF of the server's side.
        assert received(client, len(data) + 1) == data.swapcase()


def test_tls_proxy_closes_the_connection_if_the_server_is_down() -> None:
    certificate = str(CERTIFICATES / "server.pem")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    with (
        serving(
            *("tls_proxy.py", "--certificate", certificate, "--key", certificate),
            *("--server", f"{address[0]}:{address[1]}"),
        ) as proxy,
        socket.create_connection(proxy, PATIENCE) as plain,
        client_context().wrap_socket(plain, server_hostname="localhost") as client,
    ):
        assert client.recv(1) == b""


@pytest.mark.slow
def test_log_shipper(tmp_path: Path) -> None:
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    got: list[tuple[str, str]] = []

    def server(sock: socket.socket) -> None:
        client, _ = sock.accept()
        with client, client.makefile("rb") as lines:
            for line in lines:
                record = json.loads(line)
                got.append((Path(record["file"]).name, record["line"]))

    with (
        answering(socket.socket(), server) as address,
        running("log_shipper.py", *map(str, logs), "--to", f"{address[0]}:{address[1]}"),
    ):
        logs[0].write_text("first\nsecond\npart")
        wait_until(lambda: len(got) == 2)
        logs[1].write_text("other\n")
        with logs[0].open("a", buffering=1) as log:
            log.write(" and whole\n")
            wait_until(lambda: len(got) == 4)
            logs[0].rename(tmp_path / "one.log.1")
            log.write("last\n")
        logs[0].write_text("rotated\n")
        wait_until(lambda: len(got) == 6)
        logs[1].write_text("")
        wait_until(lambda: logs[1].stat().st_size == 0)
        # The new content is longer than the old offset, and written after the shipper's next look.
        time.sleep(1.0)
        logs[1].write_text("begun anew\n")
        wait_until(lambda: len(got) == 7)
    shipped = [line for name, line in got if name == "one.log"]
    assert shipped == ["first", "second", "part and whole", "last", "rotated"]
    assert [line for name, line in got if name == "two.log"] == ["other", "begun anew"]


@pytest.mark.slow
def test_many_cores() -> None:
    # A port that was free a moment ago: all processes need the same one, so not 0.
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = found.getsockname()
    url = f"http://{address[0]}:{address[1]}/"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask() -> int:
        with opener.open(url, timeout=PATIENCE) as answer:
            return int(answer.read().split()[1])

    with running("many_cores.py", "--port", str(address[1]), "--processes", "2") as process:
        assert process.stdout is not None
        began = {int(process.stdout.readline().split()[1]) for _ in range(2)}
        assert len(began) == 2
        asked: set[int] = set()

        def answered_by_all() -> bool:
            asked.add(ask())
            return asked == began

        wait_until(answered_by_all)
        os.kill(min(began), signal.SIGKILL)
        new = int(process.stdout.readline().split()[1])
        assert new not in began
        wait_until(lambda: ask() == new)
    for pid in (*began, new):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# ── many threads ─────────────────────────────────────────────────────────────────────────────

THREADS = 3
NAMES = {f"uringloop-{number}" for number in range(THREADS)}


@pytest.mark.slow
@pytest.mark.parametrize("end_by", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
@pytest.mark.parametrize("framework", [None, "fastapi", "aiohttp"])
def test_every_thread_of_a_server_answers(framework: str | None, end_by: int) -> None:
    if framework is not None and find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    if framework == "fastapi":
        pytest.importorskip("uvicorn")
    name = "many_threads.py" if framework is None else f"threads_{framework}.py"
    # A port that was free a moment ago: all threads need the same one, so not 0.
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = found.getsockname()
    options = ("--port", str(address[1]), "--threads", str(THREADS))
    with (
        socket.socket() as idle,
        running(name, *options, end_by=end_by) as process,
    ):
        assert process.stdout is not None
        assert {process.stdout.readline().split()[0] for _ in range(THREADS)} == NAMES
        answered: set[str] = set()

        def answered_by_all() -> bool:
            status, body = fetched(address, "/")
            assert status == 200
            answered.update(re.findall(r"uringloop-\d+", body.decode()))
            return answered == NAMES

        wait_until(answered_by_all)
        # A client that keeps its connection must not keep the server.
        idle.settimeout(PATIENCE)
        idle.connect(address)
        idle.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert idle.recv(10) == b"HTTP/1.1 2"


@pytest.mark.slow
@pytest.mark.parametrize("end_by", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_balancer(end_by: int) -> None:
    options = ("--port", "0", "--threads", str(THREADS))
    with (
        contextlib.ExitStack() as clients,
        running("balancer.py", *options, end_by=end_by) as process,
    ):
        address = listening_address(process)

        counts: collections.Counter[str] = collections.Counter()

        def connect() -> None:
            client = clients.enter_context(socket.create_connection(address, PATIENCE))
            with client.makefile("rw") as lines:
                counts[lines.readline().strip()] += 1
                lines.write("hello\n")
                lines.flush()
                assert lines.readline() == "hello\n"

        def all_are_equal() -> bool:
            connect()
            return set(counts) == NAMES and len(set(counts.values())) == 1

        # The threads begin one after the other; the last gets connections until it has as many.
        wait_until(all_are_equal)
        for _ in range(4 * THREADS):
            connect()
        assert len(set(counts.values())) == 1


SERVICE = """
import asyncio
import importlib
import sys


class Hello(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        status = b"404 No" if b"/nothing" in data else b"200 OK"
        self.transport.write(b"HTTP/1.1 %s\\r\\nContent-Length: 5\\r\\n\\r\\nhello" % status)


async def main():
    loop = asyncio.get_running_loop()
    async with await loop.create_server(Hello, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()


with asyncio.Runner(loop_factory=importlib.import_module(sys.argv[2]).new_event_loop) as runner:
    runner.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["wrk", "Python"])
def test_compare_service(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if tool == "wrk" and shutil.which(tool) is None:
        pytest.skip("wrk is not installed")
    if tool == "Python":
        monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "service.py").write_text(SERVICE)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    command = f"{sys.executable} service.py {port} {{loop}}"

    def compared(path: str) -> subprocess.CompletedProcess[str]:
        url = f"http://127.0.0.1:{port}{path}"
        return ended(
            *("compare_service.py", command, "--loops", "asyncio", "uringloop", "--url", url),
            *("--folder", str(tmp_path), "--clients", "2", "--seconds", "1", "--rounds", "1"),
        )

    result = compared("/")
    assert (result.returncode, result.stderr) == (0, "")
    heads, *rows = result.stdout.splitlines()
    assert heads.split("  ")[-1] == "CPU us/request"
    names = ["asyncio", "uringloop", "ratio, median", "lowest", "highest"]
    for name, row in zip(names, rows, strict=True):
        assert row.startswith(name)
        assert all(float(word.replace(",", "")) > 0 for word in row.removeprefix(name).split())
    result = compared("/nothing")
    assert result.returncode == 1
    assert re.search("404 no|Non-2xx", result.stderr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_compare_service_ends_the_service_when_it_is_ended(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    port = unused_port()
    command = f"{sys.executable} service.py {port} {{loop}}"
    options = ("--url", f"http://127.0.0.1:{port}/", "--folder", str(tmp_path))
    words = [sys.executable, str(EXAMPLES / "compare_service.py"), command, *options]
    loops = ("--loops", "asyncio", "uringloop")
    with subprocess.Popen([*words, *loops], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tool:
        assert tool.stdout is not None
        assert tool.stdout.readline()
        wait_until(lambda: listens(port))
        tool.send_signal(number)
        _, errors = tool.communicate(timeout=PATIENCE)
    assert (tool.returncode, b"interrupted" in errors) == (1, True), errors
    assert not listens(port)


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ("program", 2, "the command has no {loop}"),
        ("/nothing {loop}", 1, "No such file or directory: '/nothing'"),
        ("false {loop}", 1, "nothing listens at http://127.0.0.1:1/"),
    ],
)
def test_compare_service_says_what_is_wrong(command: str, status: int, message: str) -> None:
    result = ended("compare_service.py", command, "--url", "http://127.0.0.1:1/")
    assert (result.returncode, message in result.stderr) == (status, True), result.stderr
