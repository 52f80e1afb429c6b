"""Runs a command under a filter of Linux 7.0: its rings may do only what a loop needs for sockets.

    python examples/filter_io_uring.py [--files] COMMAND [ARGUMENT...]

The filter holds for every ring that the command or a child of it makes, and cannot be removed.
With --files, rings may do the loop's operations on files, too; without, the loop performs those in
threads, by system calls that seccomp and audit can see.
"""

import argparse
import ctypes
import os
import struct
import sys

# linux/prctl.h, linux/io_uring.h, linux/io_uring/bpf_filter.h, linux/filter.h. The number of the
# system call is the same on every architecture.
PR_SET_NO_NEW_PRIVS = 38
IO_URING_REGISTER, IORING_REGISTER_BPF_FILTER, NO_RING = 427, 37, -1
IO_URING_BPF_CMD_FILTER, DENY_REST = 1, 1
RETURN, REFUSE, ALLOW = 0x06, 0, 1

# The operations of SECURITY.md, by their numbers in linux/io_uring.h.
SOCKETS = {
    "NOP": 0, "POLL_ADD": 6, "SENDMSG": 9, "RECVMSG": 10, "ASYNC_CANCEL": 14, "SEND": 26,
    "RECV": 27, "EPOLL_WAIT": 59,
}  # fmt: skip
FILES = {
    "READV": 1, "WRITEV": 2, "FSYNC": 3, "FALLOCATE": 17, "OPENAT": 18, "CLOSE": 19, "STATX": 21,
    "READ": 22, "WRITE": 23, "RENAMEAT": 35, "UNLINKAT": 36, "MKDIRAT": 37, "SYMLINKAT": 38,
    "LINKAT": 39, "FTRUNCATE": 55,
}  # fmt: skip

libc = ctypes.CDLL(None, use_errno=True)


def instruction(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
    """Return an instruction of classic BPF."""
    return struct.pack("=HBBI", code, true, false, value)


def register(opcode: int, program: bytes, flags: int = 0) -> None:
    """Let *program* decide about an operation, in all rings that this thread makes from now on."""
    code = ctypes.create_string_buffer(program, len(program))
    fields = (IO_URING_BPF_CMD_FILTER, opcode, flags, len(program) // 8, ctypes.addressof(code))
    argument = ctypes.create_string_buffer(struct.pack("=H6xIII4xQ40x", *fields), 72)
    address = ctypes.c_void_p(ctypes.addressof(argument))
    number = ctypes.c_long(IO_URING_REGISTER)
    if libc.syscall(number, NO_RING, IORING_REGISTER_BPF_FILTER, address, 1) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def give_up_privileges() -> None:
    """Let no program that this process executes gain rights, as the kernel demands for a filter."""
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs a command under a filter of Linux 7.0.")
    parser.add_argument("--files", action="store_true", help="allow operations on files")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command to run")
    parsed = parser.parse_args()
    if not parsed.command:
        parser.error("there is no command")
    *opcodes, last = {**SOCKETS, **(FILES if parsed.files else {})}.values()
    give_up_privileges()
    try:
        for opcode in opcodes:
            register(opcode, instruction(RETURN, ALLOW))
        register(last, instruction(RETURN, ALLOW), DENY_REST)
    except OSError as exc:
        sys.exit(f"io_uring cannot be filtered here, which needs Linux 7.0: {exc.strerror}")
    os.execvp(parsed.command[0], parsed.command)


if __name__ == "__main__":
    main()
