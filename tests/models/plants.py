"""Reorderings to plant: each weakens one ordering of the package, and so breaks what a model says.

A text must be in its file exactly once, so that a plant does not outlive the code that it changes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plant:
    """One change of one file of the package."""

    name: str
    model: str
    file: str
    old: str
    new: str


def relaxed_store(name: str, model: str, file: str, store: str) -> Plant:
    """Make a store with release relaxed."""
    return Plant(name, model, file, store, store.replace("store_release", "store"))


def relaxed_load(name: str, model: str, file: str, load: str) -> Plant:
    """Make a load with acquire relaxed."""
    return Plant(name, model, file, load, load.replace("load_acquire", "load"))


ATOMICS = "_kernel/atomics.h"
PARK = "_kernel/park.h"
INBOX = "_turn/inbox.h"
TIMES = "_turn/times.h"
RING = "_ring/uring.h"
THREADS = "_softring/threads.c"
WAITS = "_softring/waits.c"
REPLACE = "__atomic_compare_exchange_n(p, expected, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)"

PLANTS = (
    Plant(
        *("put without release", "inbox", ATOMICS, REPLACE),
        REPLACE.replace("__ATOMIC_ACQ_REL", "__ATOMIC_ACQUIRE"),
    ),
    Plant(
        *("take without acquire", "inbox", ATOMICS, REPLACE),
        REPLACE.replace("ACQ_REL", "RELEASE").replace("__ATOMIC_ACQUIRE", "__ATOMIC_RELAXED"),
    ),
    Plant(
        *("fall asleep in two steps", "inbox", INBOX),
        "    return uring_replace(&word->newest, &newest, INBOX_ASLEEP);\n",
        "    if (uring_load_acquire(&word->newest) != newest)\n        return false;\n"
        "    uring_store_release(&word->newest, INBOX_ASLEEP);\n    return true;\n",
    ),
    Plant(
        *("count a wake-up without release", "close", ATOMICS),
        "#define uring_add_release(p, more) __atomic_fetch_add(p, more, __ATOMIC_RELEASE)",
        "#define uring_add_release(p, more) __atomic_fetch_add(p, more, __ATOMIC_RELAXED)",
    ),
    Plant(
        *("count a wake-up before it", "close", INBOX),
        "        uring_wake(word->wake_fd);\n"
        "        /* Release: whoever counts this wake-up may close the descriptor. */\n"
        "        uring_add_release(&word->wakes_done, 1);\n",
        "        uring_add_release(&word->wakes_done, 1);\n        uring_wake(word->wake_fd);\n",
    ),
    relaxed_load(
        *("close without acquire", "close", INBOX),
        "uring_load_acquire(&word->wakes_done)",
    ),
    Plant(
        *("unpark without release", "park", PARK),
        "__atomic_store_n(woken, 1, __ATOMIC_RELEASE)",
        "__atomic_store_n(woken, 1, __ATOMIC_RELAXED)",
    ),
    Plant(
        *("park without acquire", "park", PARK),
        "__atomic_load_n(woken, __ATOMIC_ACQUIRE)",
        "__atomic_load_n(woken, __ATOMIC_RELAXED)",
    ),
    relaxed_store(
        *("wake up without release", "wake", TIMES),
        "uring_store_release(&times->sleeping, 0)",
    ),
    Plant(
        *("wake up before the times are set", "wake", TIMES),
        "    times_begin_turn(times);\n"
        "    /* Release: who sees the loop awake also sees when the sleep has ended. */\n"
        "    uring_store_release(&times->sleeping, 0);\n",
        "    uring_store_release(&times->sleeping, 0);\n    times_begin_turn(times);\n",
    ),
    relaxed_load(
        *("see the loop awake without acquire", "wake", TIMES),
        "    if (uring_load_acquire(&times->sleeping) || !times_thread(times))\n",
    ),
    relaxed_load(
        *("see the turn's begin without acquire", "wake", TIMES),
        "        until = uring_load_acquire(&times->began_ns);\n",
    ),
    relaxed_store(
        *("begin a turn without release", "wake", TIMES),
        "uring_store_release(&times->began_ns, now);\n}\n\n/* Notes a stall",
    ),
    relaxed_store(
        *("end a turn without release", "wake", TIMES),
        "may read this time. */\n    uring_store_release(&times->began_ns, now);\n",
    ),
    relaxed_store(
        *("begin a run without release", "run", TIMES),
        "uring_store_release(&times->thread_id, thread)",
    ),
    Plant(
        *("begin a run before the times are set", "run", TIMES),
        "    times_begin_turn(times);\n"
        "    /* Release: who sees the thread sees that the time between two runs was no work. */\n"
        "    uring_store_release(&times->thread_id, thread);\n",
        "    uring_store_release(&times->thread_id, thread);\n    times_begin_turn(times);\n",
    ),
    relaxed_load(
        *("see the thread without acquire", "run", TIMES),
        "uring_load_acquire(&times->thread_id)",
    ),
    relaxed_load(
        *("end a turn that nobody has timed", "request", TIMES),
        "    if (!uring_load_acquire(&times->timing_users))\n        return -1;\n",
    ),
    relaxed_load(
        *("begin a turn that nobody has timed", "asked", TIMES),
        "    int users = uring_load_acquire(&times->timing_users);\n",
    ),
    relaxed_load(
        *("ask for the times without acquire", "request", TIMES),
        "    if (!(uring_load_acquire(&times->timing_users) & TURN_FOR_BUSY))\n",
    ),
    Plant(
        *("ask for the times without release", "request", ATOMICS),
        "__atomic_fetch_or(p, bits, __ATOMIC_RELEASE)",
        "__atomic_fetch_or(p, bits, __ATOMIC_RELAXED)",
    ),
    Plant(*("write a stall without a fence", "stall", TIMES), "    uring_fence_release();\n", ""),
    Plant(
        *("read a stall without a fence", "stall", TIMES), "        uring_fence_acquire();\n", ""
    ),
    relaxed_store(
        *("end a stall without release", "stall", TIMES),
        "uring_store_release(&times->stall_version, version + 2)",
    ),
    relaxed_load(
        *("read a stall without acquire", "stall", TIMES),
        "uring_load_acquire(&times->stall_version)",
    ),
    Plant(
        *("look at the kernel's thread without a fence", "kernel_thread", RING),
        "    atomic_thread_fence(memory_order_seq_cst);\n",
        "",
    ),
    Plant(
        *("publish submissions without release", "kernel_thread", RING),
        "io_uring_smp_store_release(sq->ktail, sq->sqe_tail)",
        "uring_store(sq->ktail, sq->sqe_tail)",
    ),
    Plant(
        *("see completions without acquire", "kernel_thread", RING),
        "    return io_uring_smp_load_acquire(u->ring.cq.ktail);\n",
        "    return uring_load(u->ring.cq.ktail);\n",
    ),
    Plant(
        *("consume completions without release", "kernel_thread", RING),
        "io_uring_smp_store_release(u->ring.cq.khead, head)",
        "uring_store(u->ring.cq.khead, head)",
    ),
    Plant(
        *("hand over with a relaxed flag", "files", THREADS),
        "__atomic_fetch_or(pool->flags, IORING_SQ_TASKRUN, __ATOMIC_SEQ_CST)",
        "__atomic_fetch_or(pool->flags, IORING_SQ_TASKRUN, __ATOMIC_RELAXED)",
    ),
    Plant(
        *("hand over with a relaxed look", "files", THREADS),
        "atomic_load(&pool->sleeping)",
        "atomic_load_explicit(&pool->sleeping, memory_order_relaxed)",
    ),
    Plant(
        *("look for a sleep before the flag is set", "files", THREADS),
        "    __atomic_fetch_or(pool->flags, IORING_SQ_TASKRUN, __ATOMIC_SEQ_CST);\n"
        "    if (atomic_load(&pool->sleeping))\n",
        "    bool sleeping = atomic_load(&pool->sleeping);\n"
        "    __atomic_fetch_or(pool->flags, IORING_SQ_TASKRUN, __ATOMIC_SEQ_CST);\n"
        "    if (sleeping)\n",
    ),
    Plant(
        *("fall asleep with a relaxed store", "files", WAITS),
        "atomic_store(&s->pool->sleeping, true)",
        "atomic_store_explicit(&s->pool->sleeping, true, memory_order_relaxed)",
    ),
    Plant(
        *("fall asleep with a relaxed look", "files", WAITS),
        "    return !(__atomic_load_n(s->queues.sq.kflags, __ATOMIC_SEQ_CST) & IORING_SQ_TASKRUN);",
        "    return !(__atomic_load_n(s->queues.sq.kflags, __ATOMIC_RELAXED) & IORING_SQ_TASKRUN);",
    ),
)
