"""The kernel's interface: system calls, io_uring's structures, what this kernel supports."""
