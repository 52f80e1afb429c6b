/* The clock of a model, in place of _kernel/clock.h, and the times that it marks: the loop's thread
 * moves the clock, and what others read is never older than the times that they have seen. */
#ifndef MODEL_CLOCK_H
#define MODEL_CLOCK_H

#include <sched.h>

#include "checker.h"

#define URINGLOOP_CLOCK_H
#define sched_yield checker_yield

static int64_t model_now;

/* Read-modify-writes find the newest value, and order nothing else. */

static inline int64_t uring_clock_ns(void) {
    return __atomic_fetch_add(&model_now, 0, __ATOMIC_RELAXED);
}

static inline void model_set_clock(int64_t now) {
    __atomic_exchange_n(&model_now, now, __ATOMIC_RELAXED);
}

/* The turns of the models, in nanoseconds. */
enum { WORKED = 100, SLEPT_UNTIL = 1000, TURN = 10 };

#include "_turn/times.h"

static turn_times times;

MODEL_RESET {
    memset(&times, 0, sizeof(times));
    model_now = 0;
}

#endif
