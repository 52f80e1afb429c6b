/* The loop's clock, in nanoseconds. */
#ifndef URINGLOOP_CLOCK_H
#define URINGLOOP_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t uring_clock_ns(void) {
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Returns the value that the same clock had at the last tick, 1 to 10 ms ago. Reading it takes a
 * seventh of the time. */
static inline int64_t uring_clock_coarse_ns(void) {
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

#endif
