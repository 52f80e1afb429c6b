"""The kernel's interface: system calls, io_uring's structures, errors."""
