/* The faults of a simulated kernel, chosen by random numbers from a seed. */
#include "_softring/faults.h"

#ifdef URINGLOOP_SIMULATOR

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>

#include "_kernel/clock.h"

/* A jump of the clock is 1 us, doubled less than SOFT_JUMP_DOUBLINGS times: at most 17 s. */
#define SOFT_JUMP_MIN_NS INT64_C(1000)
#define SOFT_JUMP_DOUBLINGS 25

__attribute__((visibility("default"))) soft_simulated soft_simulation;

int64_t uring_clock_ahead_ns(void) {
    return soft_simulation.clock_ns;
}

/* SplitMix64: every seed, even 0, gives a different sequence. */
static uint64_t soft_random(void) {
    uint64_t mixed = soft_simulation.state += UINT64_C(0x9E3779B97F4A7C15);

    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94D049BB133111EB);
    return mixed ^ mixed >> 31;
}

static uint64_t soft_random_below(uint64_t limit) {
    return soft_random() % limit;
}

bool soft_fault(soft_faults kind) {
    uint32_t one_in = soft_simulation.one_in[kind];

    if (one_in == 0 || soft_random_below(one_in) != 0)
        return false;
    soft_simulation.happened[kind]++;
    if (kind == SOFT_FAULT_JUMP)
        soft_simulation.clock_ns += SOFT_JUMP_MIN_NS << soft_random_below(SOFT_JUMP_DOUBLINGS);
    return true;
}

size_t soft_shorten(size_t size) {
    if (size < 2 || !soft_fault(SOFT_FAULT_SHORT))
        return size;
    /* In half of the cases, at most 7 bytes. */
    return 1 + soft_random_below(soft_random_below(2) ? size - 1 : size < 8 ? size - 1 : 7);
}

void soft_shuffle(struct epoll_event *events, int count) {
    struct epoll_event other;
    int i, j;

    if (count < 2 || !soft_fault(SOFT_FAULT_REORDERED))
        return;
    for (i = count - 1; i > 0; i--) {
        j = (int)soft_random_below((uint64_t)i + 1);
        other = events[i];
        events[i] = events[j];
        events[j] = other;
    }
}

int soft_failure(void) {
    if (soft_fault(SOFT_FAULT_RESET))
        return -ECONNRESET;
    return soft_fault(SOFT_FAULT_NO_MEMORY) ? -ENOMEM : 0;
}

int64_t soft_pass_time(int epoll_fd, int64_t timeout_ns, bool busy) {
    /* poll(2), since epoll_wait(2) would consume the events. */
    struct pollfd look = {.fd = epoll_fd, .events = POLLIN};

    soft_fault(SOFT_FAULT_JUMP);
    if (timeout_ns <= 0 || !soft_simulation.jumps || busy || poll(&look, 1, 0) != 0)
        return timeout_ns;
    soft_simulation.clock_ns += timeout_ns;
    return 0;
}

#endif
