/* The faults of a simulated kernel, chosen by random numbers from a seed. */
#include "_softring/faults.h"

/* SplitMix64: every seed, even 0, gives a different sequence. */
static uint64_t soft_random(soft_simulation *simulation) {
    uint64_t mixed = simulation->state += UINT64_C(0x9E3779B97F4A7C15);

    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94D049BB133111EB);
    return mixed ^ mixed >> 31;
}

uint64_t soft_random_below(soft_simulation *simulation, uint64_t limit) {
    return soft_random(simulation) % limit;
}

bool soft_decide(soft_simulation *simulation, soft_faults kind) {
    uint64_t chance = simulation->chance[kind];

    if (chance == 0 || soft_random_below(simulation, SOFT_ALWAYS) >= chance)
        return false;
    simulation->happened[kind]++;
    return true;
}

size_t soft_shorten(const softring *s, size_t size) {
    soft_simulation *simulation = s->simulation;

    if (size < 2 || !soft_fault(s, SOFT_FAULT_SHORT))
        return size;
    /* In half of the cases, at most 7 bytes. */
    return 1 + soft_random_below(simulation, soft_random_below(simulation, 2) ? size - 1
                                             : size < 8                       ? size - 1
                                                                              : 7);
}

void soft_shuffle(const softring *s, struct epoll_event *events, int count) {
    struct epoll_event other;
    int i, j;

    if (count < 2 || !soft_fault(s, SOFT_FAULT_REORDERED))
        return;
    for (i = count - 1; i > 0; i--) {
        j = (int)soft_random_below(s->simulation, (uint64_t)i + 1);
        other = events[i];
        events[i] = events[j];
        events[j] = other;
    }
}

int soft_failure(const softring *s) {
    if (soft_fault(s, SOFT_FAULT_RESET))
        return -ECONNRESET;
    return soft_fault(s, SOFT_FAULT_NO_MEMORY) ? -ENOMEM : 0;
}
