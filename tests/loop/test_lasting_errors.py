"""A system call that fails again and again: every turn ends, timers run, and the error is told.

A security policy may refuse a call for good, or answer EINTR for ever. Each test runs a child
process, since a filter cannot be removed.
"""

from __future__ import annotations

import platform

import pytest
from support import seccomp
from support.loops import each_ring, on_io_uring

# Numbers of system calls that the tests refuse, each with those that do the same.
NUMBERS = {
    "x86_64": {
        "accept4": (288,),
        "epoll_wait": (232, 281, 441),  # with epoll_pwait and epoll_pwait2
        "preadv2": (327,),
        "pwritev2": (328,),
        "recvfrom": (45,),
        "recvmsg": (47,),
        "sendmsg": (46,),
        "sendto": (44,),
        "waitid": (247,),
    },
    "aarch64": {
        "accept4": (242,),
        "epoll_wait": (22, 441),
        "preadv2": (286,),
        "pwritev2": (287,),
        "recvfrom": (207,),
        "recvmsg": (212,),
        "sendmsg": (211,),
        "sendto": (206,),
        "waitid": (95,),
    },
}.get(platform.machine(), {})

pytestmark = [
    pytest.mark.skipif(not NUMBERS, reason="the numbers of this machine's system calls are unknown")
]

PRELUDE = f"""
import asyncio, errno, os, socket, sys, time
import uringloop
from support import seccomp

NUMBERS = {NUMBERS}

def refuse(call, error):
    seccomp.refuse(seccomp.SECCOMP_RET_ERRNO | getattr(errno, error), NUMBERS[call])
"""

ACCEPTING = (
    PRELUDE
    + """
error, sock, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])

async def main():
    loop = asyncio.get_running_loop()
    reports = []
    loop.set_exception_handler(lambda _, context: reports.append(context))
    if sock == "own":
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    else:
        server = await loop.create_server(asyncio.Protocol, sock=socket.create_server(("", 0)))
    port = server.sockets[0].getsockname()[1]
    refuse("accept4", error)
    began, used = time.monotonic(), time.process_time()
    with socket.create_connection(("127.0.0.1", port)):
        for _ in range(20):
            await asyncio.sleep(seconds / 20)
    took, used = time.monotonic() - began, time.process_time() - used
    server.close()
    names = {(context["message"], context["exception"].errno) for context in reports}
    assert names == {("socket.accept() failed", getattr(errno, error))}, reports
    # Once a second, and no sooner.
    assert 2 <= len(reports) <= took + 1, (took, reports)
    assert used < 0.25 * seconds, used
    print("turned")

uringloop.run(main())
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("sock", ["own", "shared"])
@pytest.mark.parametrize("error", ["EPERM", "EACCES", "ECONNABORTED", "ENOSYS"])
@each_ring
def test_a_server_whose_accepts_always_fail_tells_it_and_tries_again(
    backend: str, error: str, sock: str
) -> None:
    ended = seccomp.run("-c", ACCEPTING, error, sock, "2.2", URINGLOOP_BACKEND=backend)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "turned\n", "")


# Traffic of each kind is waiting when the call is refused.
TURNING = (
    PRELUDE
    + """
call, error = sys.argv[1:]

class Quiet(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

async def main():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: None)
    server = await loop.create_server(Quiet, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    streams = [await loop.create_connection(Quiet, *address) for _ in range(3)]
    mail, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, ("127.0.0.1", 0))
    reader, writer = os.pipe()
    reading, _ = await loop.connect_read_pipe(Quiet, os.fdopen(reader, "rb", 0))
    writing, _ = await loop.connect_write_pipe(Quiet, os.fdopen(writer, "wb", 0))
    mail.sendto(b"to myself", mail.get_extra_info("sockname"))
    refuse(call, error)
    for number, (transport, _) in enumerate(streams):
        transport.write(b"x" * (1, 20_000, 3_000_000)[number])
    writing.write(b"x" * 100_000)
    if error != "EINTR":
        # A socket's own method would repeat the call for ever, on asyncio too.
        mail.sendto(b"to myself", mail.get_extra_info("sockname"))
    for _ in range(10):
        await asyncio.sleep(0.001)
    print("turned", flush=True)
    os._exit(0)

uringloop.run(main())
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call", ["preadv2", "pwritev2", "recvfrom", "recvmsg", "sendmsg", "sendto"]
)
@pytest.mark.parametrize("error", ["EINTR", "EPERM"])
@each_ring
def test_the_turn_ends_whatever_error_stays(backend: str, error: str, call: str) -> None:
    ended = seccomp.run("-c", TURNING, call, error, URINGLOOP_BACKEND=backend)
    assert (ended.returncode, ended.stdout) == (0, "turned\n"), ended.stderr


BLOCKING = (
    PRELUDE
    + """
import signal

async def main():
    left, right = socket.socketpair()
    refuse("pwritev2", "EOPNOTSUPP")
    transport, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.Protocol, left)
    os.set_blocking(left.fileno(), True)
    # Ends this process if the write waits for room.
    signal.alarm(10)
    transport.write(bytes(1 << 22))
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert transport.get_write_buffer_size() > 0
    transport.abort()
    print("turned")

uringloop.run(main())
"""
)


@pytest.mark.slow
@each_ring
def test_a_blocking_socket_stops_no_turn_where_a_kernel_lacks_nowait(backend: str) -> None:
    # As kernels before 6.4 do.
    ended = seccomp.run("-c", BLOCKING, URINGLOOP_BACKEND=backend)
    assert (ended.returncode, ended.stdout) == (0, "turned\n"), ended.stderr


INTERRUPTED = (
    PRELUDE
    + """
import signal

def stop(number, frame):
    raise KeyboardInterrupt

async def main():
    left, right = socket.socketpair()
    left.setblocking(False)
    loop = asyncio.get_running_loop()
    refuse("recvfrom", "EINTR")
    refuse("sendto", "EINTR")
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    await getattr(loop, sys.argv[1])(left, *eval(sys.argv[2]))

try:
    uringloop.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
os._exit(0)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "argument"),
    [("sock_recv", "(1,)"), ("sock_recv_into", "(bytearray(1),)"), ("sock_sendall", "(b'x',)")],
)
@each_ring
def test_a_signal_handler_runs_while_a_socket_call_is_interrupted_for_ever(
    backend: str, method: str, argument: str
) -> None:
    ended = seccomp.run("-c", INTERRUPTED, method, argument, URINGLOOP_BACKEND=backend)
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n"), ended.stderr


WATCHING = (
    PRELUDE
    + """
async def main():
    loop = asyncio.get_running_loop()
    reports = []
    loop.set_exception_handler(lambda _, context: reports.append(context["exception"].errno))
    left, right = socket.socketpair()
    right.send(b"x")
    refuse("epoll_wait", "EPERM")
    loop.add_reader(left, lambda: None)
    began, used = time.monotonic(), time.process_time()
    for _ in range(20):
        await asyncio.sleep(0.11)
    took, used = time.monotonic() - began, time.process_time() - used
    assert 2 <= len(reports) <= took + 1, (took, reports)
    assert set(reports) == {errno.EPERM}
    assert used < 0.3, used
    print("turned", flush=True)
    os._exit(0)

uringloop.run(main())
"""
)


@pytest.mark.slow
@on_io_uring
def test_watchers_whose_wait_always_fails_tell_it_and_try_again() -> None:
    ended = seccomp.run("-c", WATCHING, URINGLOOP_DISABLE="epoll_wait,epoll_sleep")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "turned\n", "")


REAPING = (
    PRELUDE
    + """
async def main():
    if sys.argv[1] == "thread":
        del os.pidfd_open
    refuse("waitid", "EPERM")
    for code in range(3):
        process = await asyncio.create_subprocess_shell(f"exit {code}")
        assert await process.wait() == code
    process = await asyncio.create_subprocess_exec("sleep", "600")
    process.kill()
    assert await process.wait() == -9
    print("reaped")

uringloop.run(main())
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("waiter", ["pidfd", "thread"])
@each_ring
def test_children_are_reaped_where_waitid_is_refused(backend: str, waiter: str) -> None:
    ended = seccomp.run("-c", REAPING, waiter, URINGLOOP_BACKEND=backend)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "reaped\n", "")
