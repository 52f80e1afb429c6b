"""The parts of class Loop that do no I/O: running, tasks, threads, signals, exceptions, nesting."""
