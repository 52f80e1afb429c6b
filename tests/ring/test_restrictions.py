"""The kernel refuses what the loop never asks of its ring: see _ring/restrictions.h.

A program writes submissions to the memory of a loop's ring, as whoever has taken over the process
could, and the kernel must refuse each operation that is not in the list.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from support import task_filters
from support.loops import on_io_uring
from support.sources import PACKAGE, ROOT

pytestmark = on_io_uring

# The operations of Linux 6.18, in the order of their numbers.
OPERATIONS = re.findall(
    r"\w+",
    """
    NOP READV WRITEV FSYNC READ_FIXED WRITE_FIXED POLL_ADD POLL_REMOVE SYNC_FILE_RANGE SENDMSG
    RECVMSG TIMEOUT TIMEOUT_REMOVE ACCEPT ASYNC_CANCEL LINK_TIMEOUT CONNECT FALLOCATE OPENAT
    CLOSE FILES_UPDATE STATX READ WRITE FADVISE MADVISE SEND RECV OPENAT2 EPOLL_CTL SPLICE
    PROVIDE_BUFFERS REMOVE_BUFFERS TEE SHUTDOWN RENAMEAT UNLINKAT MKDIRAT SYMLINKAT LINKAT
    MSG_RING FSETXATTR SETXATTR FGETXATTR GETXATTR SOCKET URING_CMD SEND_ZC SENDMSG_ZC
    READ_MULTISHOT WAITID FUTEX_WAIT FUTEX_WAKE FUTEX_WAITV FIXED_FD_INSTALL FTRUNCATE BIND
    LISTEN RECV_ZC EPOLL_WAIT READV_FIXED WRITEV_FIXED PIPE
    """,
)

PROGRAM = """
import asyncio, ctypes, errno, json, mmap, os, struct, sys, time
import uringloop

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    result = libc.syscall(number, *map(ctypes.c_long, arguments))
    return -ctypes.get_errno() if result < 0 else result

# A ring of the same kernel says where the parts of a ring are, and which operations there are.
parameters = ctypes.create_string_buffer(120)
other = call(425, 8, ctypes.addressof(parameters))
assert other >= 0, other
sq_head, sq_tail, sq_mask = struct.unpack_from("III", parameters, 40)
cq_head, cq_tail, cq_mask, _, _, cqes = struct.unpack_from("6I", parameters, 80)
probe = ctypes.create_string_buffer(16 + 256 * 8)
assert call(427, other, 8, ctypes.addressof(probe), 256) == 0
known = {probe[16 + 8 * n][0] for n in range(probe[1][0]) if probe[16 + 8 * n + 2][0] & 1}
os.close(other)

(options,) = map(json.loads, sys.argv[1:])
loop = uringloop.Loop(backend="io_uring", **options)
loop.run_until_complete(asyncio.sleep(0))
(fd,) = (
    int(name) for name in os.listdir("/proc/self/fd")
    if os.path.exists("/proc/self/fd/" + name)
    and os.readlink("/proc/self/fd/" + name) == "anon_inode:[io_uring]"
)

def mapped(offset):
    # The kernel accepts no more pages than there are.
    for pages in range(64, 0, -1):
        try:
            return mmap.mmap(fd, pages * mmap.PAGESIZE, offset=offset)
        except OSError:
            continue

ring, entries = mapped(0), mapped(0x10000000)

def word(offset):
    return struct.unpack_from("I", ring, offset)[0]

MARK = 1 << 62

def store(offset, value):
    # One access: struct.pack_into() first clears the bytes, and the kernel's thread could read 0.
    ctypes.c_uint32.from_buffer(ring, offset).value = value

def submit(opcode, flags=0):
    tail = word(sq_tail)
    index = tail & word(sq_mask)
    assert 64 * index < len(entries)
    # A descriptor of -1: what would be allowed fails with EBADF.
    entry = struct.pack("BBHi24xQ", opcode, flags, 0, -1, MARK + opcode)
    entries[64 * index:64 * index + 64] = entry.ljust(64, b"\\0")
    store(sq_tail, tail + 1)
    # IORING_ENTER_GETEVENTS and IORING_ENTER_SQ_WAKEUP.
    call(426, fd, 1, 0, 1 | 2, 0, 0)
    deadline = time.monotonic() + 5
    while True:
        while (head := word(cq_head)) != word(cq_tail):
            at = cqes + 16 * (head & word(cq_mask))
            user_data, result, _ = struct.unpack_from("QiI", ring, at)
            store(cq_head, head + 1)
            # Operations of the loop may end, too.
            if user_data == MARK + opcode:
                return result
        # A worker's completion needs another enter.
        call(426, fd, 0, 0, 1, 0, 0)
        assert time.monotonic() < deadline, opcode

results = {opcode: submit(opcode) for opcode in sorted(known - {0})}
flags = {flag: submit(0, 1 << flag) for flag in (0, 1, 3)}
registers = {number: call(427, fd, number, 0, 0) for number in range(40)}
print(json.dumps([results, flags, registers]))
os._exit(0)
"""


def listed(array: str, prefix: str) -> list[str]:
    """Return the names in an array of the header."""
    text = (PACKAGE / "_ring" / "restrictions.h").read_text()
    _, _, body = text.partition(f"{array}[] = {{")
    return re.findall(rf"{prefix}_(\w+),", body.partition("}")[0])


PREFIX = "(?:IORING|URING)_OP"
OF_LOOPS = listed("uring_loop_operations", PREFIX)
ALLOWED = OF_LOOPS + listed("uring_file_operations", PREFIX)


def test_the_lists_name_known_operations() -> None:
    assert len(ALLOWED) == len(set(ALLOWED)) > 20 > len(OF_LOOPS)
    assert set(ALLOWED) <= set(OPERATIONS)


@pytest.mark.parametrize("options", [{}, {"ring_files": False}, {"sqpoll": 100}])
def test_the_kernel_refuses_every_other_operation(options: dict[str, int]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    results, flags, registers = json.loads(done.stdout)
    refused = {int(number) for number, result in results.items() if result == -13}
    known = {int(number) for number in results}
    names = ALLOWED if options.get("ring_files", True) else OF_LOOPS
    assert refused == known - {OPERATIONS.index(name) for name in names}
    # Fixed files, draining and hard links of requests are refused; a link is not.
    assert [flags[flag] for flag in "013"] == [-13, -13, -13]
    # Restrictions, rings, files and buffers; eventfd (4), workers (19) and buffer rings (22) are
    # allowed, and fail for lack of arguments.
    others = {number: result for number, result in registers.items() if int(number) < 27}
    accepted = {number for number, result in others.items() if result != -13}
    assert accepted == {"4", "19", "22"}


def test_security_md_names_the_allowed_operations() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    for name in ALLOWED:
        assert f"`{name}`" in text, name


def test_each_of_them_has_a_name_for_messages() -> None:
    text = (PACKAGE / "_ring" / "operations.h").read_text()
    named = re.findall(r"(?:URING_NAMED\(|\[URING_OP_)(\w+)[)\]]", text)
    assert set(named) - {"name"} == set(ALLOWED)


def test_the_example_filter_allows_them() -> None:
    example = task_filters.example()
    assert sorted([*example["SOCKETS"], *example["FILES"]]) == sorted(ALLOWED)
    numbers = {**example["SOCKETS"], **example["FILES"]}
    assert all(OPERATIONS[number] == name for name, number in numbers.items())
