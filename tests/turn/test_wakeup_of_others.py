"""Other code has closed the descriptors of a sleeping loop: its wake-up writes to no other file."""

from __future__ import annotations

import pytest
from support import seccomp
from support.loops import each_ring

SCRIPT = """
import os, socket, sys, tempfile, threading, time
import uringloop

kind = sys.argv[1]

def eventfds():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventfd]":
                found.append(int(name))
        except OSError:
            # The listing's own descriptor, which is closed by now.
            pass
    return found

def open_one():
    # What it was written to is read through the other end.
    if kind == "file":
        file = tempfile.TemporaryFile()
        return file.fileno(), lambda: os.fstat(file.fileno()).st_size
    left, right = os.pipe() if kind == "pipe" else [end.detach() for end in socket.socketpair()]
    os.set_blocking(left, False)
    def size():
        try:
            return len(os.read(left, 100))
        except BlockingIOError:
            return 0
    return right, size

def asleep():
    # In the kernel, and not for the GIL: this thread has just let go of it.
    time.sleep(0.001)
    with open(f"/proc/self/task/{os.getpid()}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"

def act():
    # While the loop sleeps, the numbers of its eventfds come to belong to a file.
    while not all(asleep() for _ in range(20)):
        pass
    number, size = open_one()
    for fd in eventfds():
        os.dup2(number, fd)
    loop.call_soon_threadsafe(lambda: None)
    print("written", size(), flush=True)
    os._exit(0)

loop = uringloop.new_event_loop()
loop.call_soon(threading.Thread(target=act).start)
loop.call_later(30, os._exit, 1)
loop.run_forever()
"""


@pytest.mark.parametrize("kind", ["file", "pipe", "socket"])
@each_ring
def test_a_wakeup_writes_to_no_file_that_other_code_has_opened(backend: str, kind: str) -> None:
    ended = seccomp.run("-c", SCRIPT, kind, URINGLOOP_BACKEND=backend)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "written 0\n", "")
