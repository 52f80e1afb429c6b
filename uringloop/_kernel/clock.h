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

/* The processor time of this thread; a system call, of 0.2 us. */
static inline int64_t uring_thread_cpu_ns(void) {
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

#endif
