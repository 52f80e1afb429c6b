"""The seccomp profile of the documents allows five uses of io_uring_register: a loop needs no more.

Each program runs in a child process under such a filter, and must stay on io_uring.
"""

from __future__ import annotations

import re

import pytest
from support import seccomp
from support.loops import on_io_uring
from support.sources import ROOT

pytestmark = on_io_uring

PAGE = ROOT / "docs" / "how-to" / "containers.md"

# A loop that is busy with watched descriptors sleeps in epoll_wait(2), and registers an eventfd.
BUSY_WITH_WATCHERS = """
async def watch(count):
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    done = loop.create_future()
    def answer():
        nonlocal count
        count -= 1
        os.read(right.fileno(), 1)
        os.write(left.fileno(), b"x") if count else done.set_result(None)
    loop.add_reader(right, answer)
    os.write(left.fileno(), b"x")
    await done
    loop.remove_reader(right)
    left.close(), right.close()

def run(**options):
    loop = uringloop.Loop(**options)
    loop.run_until_complete(watch(20_000))
    loop.run_until_complete(main(tempfile.mkdtemp()))
    print(loop.backend, loop.backend_reason)
    loop.close()
"""


def registrations() -> str:
    """Return the numbers in the program that makes the profile, as the filter's name wants them."""
    found = re.search(r"^REGISTRATIONS = \(([\d, ]+)\)$", PAGE.read_text(), re.MULTILINE)
    assert found is not None
    return "+".join(found[1].split(", "))


@pytest.mark.parametrize("options", ["", "sqpoll=10", "busy_poll_us=50", "batch_wait_us=50"])
def test_a_loop_needs_only_the_registrations_of_the_profile(options: str) -> None:
    rounds, _, _ = seccomp.ROUNDS.partition("with tempfile.")
    script = "import socket" + rounds + BUSY_WITH_WATCHERS + f"run({options})"
    lines = seccomp.lines_of(script, under=f"only:{registrations()}")
    assert lines == [*seccomp.ROUNDS_OUTPUT, "io_uring the kernel has it"]


@pytest.mark.parametrize("number", ["11", "12", "22"])
def test_a_loop_without_one_of_them_is_on_the_software_ring(number: str) -> None:
    others = "+".join(one for one in registrations().split("+") if one != number)
    script = seccomp.ROUNDS + "print(uringloop.Loop().backend)"
    lines = seccomp.lines_of(script, under=f"only:{others}")
    assert lines == [*seccomp.ROUNDS_OUTPUT, "soft"]


def test_the_profile_refuses_other_registrations() -> None:
    script = """
        import ctypes, errno
        libc = ctypes.CDLL(None, use_errno=True)
        allowed = []
        for number in range(64):
            libc.syscall(427, -1, number, 0, 0)
            if ctypes.get_errno() != errno.EPERM:
                allowed.append(number)
        print(*allowed, sep="+")
    """
    assert seccomp.lines_of(script, under=f"only:{registrations()}") == [registrations()]
