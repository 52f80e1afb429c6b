/* The times of a loop's turns. The loop's thread marks them, and other threads read them, without a
 * lock. This is C, without Python, so that the model checker runs the same code
 * (docs/project/memory-ordering.md).
 *
 * With a GIL a reader sees all marks of a turn or none, unless the loop sleeps; without one this
 * depends on the order of the accesses here.
 */
#ifndef URINGLOOP_TURN_TIMES_H
#define URINGLOOP_TURN_TIMES_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "_kernel/atomics.h"
#include "_kernel/clock.h"

/* A value of `thread_id`: no thread runs the loop, but one is using its queues. No thread's
 * identifier, an address, is that small. */
enum { TURN_CLAIMED = 1 };

/* Bounds of a histogram, in timing.pyx; durations above the last have their own count. */
enum { TURN_BOUNDS = 19 };

/* Reasons to time the turns of a loop. */
typedef enum turn_users {
    TURN_FOR_STALLS = 1,     /* Loop(stall_ms=) */
    TURN_FOR_MONITOR = 2,    /* uringloop.monitor */
    TURN_FOR_HISTOGRAMS = 4, /* uringloop.prometheus; times callbacks, too */
    TURN_FOR_BUSY = 8,       /* the first stats(): how long the loop works */
} turn_users;

typedef struct turn_durations {
    uint64_t counts[TURN_BOUNDS + 1];
    int64_t sum_ns;
} turn_durations;

typedef struct turn_times {
    unsigned long thread_id; /* of the thread that runs the loop; 0 if none does; or CLAIMED */
    int sleeping;            /* in a wait */
    int timing_users;        /* bits of turn_users; while it is 0, a turn reads no clock for this */
    int64_t began_ns;        /* when the turn began; stale while the loop sleeps or is stopped */
    int64_t stall_ns;        /* a turn that takes this long is a stall */
    uint64_t stall_version;  /* twice the number of stalls; odd while the next two are written */
    int64_t stall_began_ns;  /* of the last stall that has ended */
    int64_t stall_took_ns;
    int64_t busy_since_ns;   /* when FOR_BUSY was set */
    int64_t idle_ns;         /* since then: sleeps that have ended, and the times between runs */
    int64_t slept_ns;        /* the last sleep; the loop's own, as the next three */
    uint32_t chance;         /* a number that chooses one sleep of each block to be measured */
    int left_in_block;
    int stands_for;          /* how many sleeps the measured one stands for */
    int64_t busy_ns;         /* the largest that was returned: it never decreases */
    turn_durations turns;
    turn_durations callbacks;
    turn_durations lags;     /* always counted: the clock is read for the timers anyway */
} turn_times;

/* ── for the loop's thread ──────────────────────────────────────────────────────────────────── */

/* Notes that the loop is awake: a turn, or the rest of one, begins. */
static inline void times_begin_turn(turn_times *times) {
    /* Acquire: whoever sets the first bit has set the times before. */
    int users = uring_load_acquire(&times->timing_users);
    int64_t now, idle_since, busy_since;

    if (!users)
        return;
    now = uring_clock_ns();
    if (users & TURN_FOR_BUSY) {
        idle_since = uring_load(&times->began_ns);
        busy_since = uring_load(&times->busy_since_ns);
        times->slept_ns = now - (idle_since > busy_since ? idle_since : busy_since);
        uring_count(&times->idle_ns, times->slept_ns);
    }
    /* Release: who sees the time at which the turn began also sees the idle time before it. */
    uring_store_release(&times->began_ns, now);
}

/* Notes a stall, so that other threads see all of it or nothing. */
static inline void times_note_stall(turn_times *times, int64_t began_ns, int64_t took_ns) {
    uint64_t version = uring_load(&times->stall_version);

    uring_store(&times->stall_version, version + 1);
    /* Who sees one of the two sees the odd version, or a later one. */
    uring_fence_release();
    uring_store(&times->stall_began_ns, began_ns);
    uring_store(&times->stall_took_ns, took_ns);
    uring_store_release(&times->stall_version, version + 2);
}

/* Notes that a turn's work is done; the next turn begins unless the loop sleeps. Returns how long it
 * took, or -1 if turns are not timed. */
static inline int64_t times_end_turn(turn_times *times) {
    int64_t now, began, took;

    if (!uring_load_acquire(&times->timing_users))
        return -1;
    now = uring_clock_ns();
    /* If another thread asked for timing in mid-turn, times_request() has stored this time. */
    began = uring_load(&times->began_ns);
    took = now - began;
    if (took >= uring_load(&times->stall_ns))
        times_note_stall(times, began, took);
    /* Release, as at the begin: who has seen the loop asleep may read this time. */
    uring_store_release(&times->began_ns, now);
    return took;
}

static inline void times_fall_asleep(turn_times *times) { uring_store(&times->sleeping, 1); }

static inline void times_wake_up(turn_times *times) {
    times_begin_turn(times);
    /* Release: who sees the loop awake also sees when the sleep has ended. */
    uring_store_release(&times->sleeping, 0);
}

/* Notes that *thread* runs the loop, which it has claimed. */
static inline void times_begin_run(turn_times *times, unsigned long thread) {
    times_begin_turn(times);
    /* Release: who sees the thread sees that the time between two runs was no work. */
    uring_store_release(&times->thread_id, thread);
}

/* ── for any thread ─────────────────────────────────────────────────────────────────────────── */

/* Returns the thread that runs the loop, or 0. */
static inline unsigned long times_thread(const turn_times *times) {
    unsigned long thread = uring_load_acquire(&times->thread_id);

    return thread == TURN_CLAIMED ? 0 : thread;
}

/* Times the turns from now on, for *users*. */
static inline void times_request(turn_times *times, int users, int64_t stall_ns) {
    if (uring_load(&times->stall_ns) == 0)
        uring_store(&times->stall_ns, stall_ns);
    if (uring_load(&times->timing_users) == 0)
        /* The loop may be in mid-turn, and when that turn began is not known. */
        uring_store(&times->began_ns, uring_clock_ns());
    if (users & TURN_FOR_BUSY && uring_load(&times->busy_since_ns) == 0)
        uring_store(&times->busy_since_ns, uring_clock_ns());
    uring_set_bits(&times->timing_users, users);
}

/* Returns how long the present turn has lasted; 0 if it is not timed, or there is none. */
static inline int64_t times_blocked_ns(const turn_times *times) {
    int64_t began = uring_load(&times->began_ns);
    int64_t now = uring_clock_ns();

    if (!times_thread(times) || uring_load_acquire(&times->sleeping) ||
        !uring_load_acquire(&times->timing_users))
        return 0;
    /* The turn ended while this function was reading it, or a sleep has: report nothing. */
    if (uring_load(&times->began_ns) != began)
        return 0;
    return now > began ? now - began : 0;
}

/* Stores *ns* if it is longer. */
static inline void times_note_longest(int64_t *longest, int64_t ns) {
    int64_t before = uring_load(longest);

    while (ns > before && !uring_replace(longest, &before, ns))
        ;
}

/* Returns how long the loop has worked since the first call of this function. */
static inline int64_t times_busy_ns(turn_times *times, int64_t stall_ns) {
    int64_t idle, until;

    if (!(uring_load_acquire(&times->timing_users) & TURN_FOR_BUSY))
        times_request(times, TURN_FOR_BUSY, stall_ns);
    idle = uring_load(&times->idle_ns);
    /* Before the state is read: the loop may fall asleep. */
    until = uring_clock_ns();
    if (uring_load_acquire(&times->sleeping) || !times_thread(times))
        until = uring_load_acquire(&times->began_ns);
    /* If a sleep has ended meanwhile, `until` may include it: the next call finds the time. */
    if (uring_load(&times->idle_ns) == idle)
        times_note_longest(&times->busy_ns, until - uring_load(&times->busy_since_ns) - idle);
    return uring_load(&times->busy_ns);
}

/* Returns how many stalls have ended, and reads when the last one began and how long it took. */
static inline uint64_t times_last_stall(const turn_times *times, int64_t *began_ns,
                                        int64_t *took_ns) {
    for (;;) {
        uint64_t version = uring_load_acquire(&times->stall_version);

        *began_ns = uring_load(&times->stall_began_ns);
        *took_ns = uring_load(&times->stall_took_ns);
        /* What was read above is not newer than the version that is read below. */
        uring_fence_acquire();
        if (version % 2 == 0 && uring_load(&times->stall_version) == version)
            return version / 2;
        sched_yield();
    }
}

#endif
