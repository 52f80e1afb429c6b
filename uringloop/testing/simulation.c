/* A simulated kernel: its random numbers, its choices, and the table of its functions. */
#include "testing/simulation.h"

#include <errno.h>
#include <stdlib.h>

#include "_kernel/compat.h"
#include "_softring/queue.h"
#include "_softring/softring.h"
#include "_softring/state.h"
#include "_softring/waits.h"

/* ── random numbers ─────────────────────────────────────────────────────────────────────────── */

/* SplitMix64: every seed, even 0, gives a different sequence. */
static uint64_t next_random(simulation *kernel) {
    uint64_t mixed = kernel->state += UINT64_C(0x9E3779B97F4A7C15);

    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94D049BB133111EB);
    return mixed ^ mixed >> 31;
}

uint64_t simulation_random_below(simulation *kernel, uint64_t limit) {
    if (kernel->choose != NULL)
        return kernel->choose(kernel->owner, limit);
    return next_random(kernel) % limit;
}

bool simulation_happens(simulation *kernel, uint64_t chance) {
    return chance != 0 &&
           SIMULATION_ALWAYS - simulation_random_below(kernel, SIMULATION_ALWAYS) <= chance;
}

bool simulation_decide(simulation *kernel, simulation_faults kind) {
    if (!simulation_happens(kernel, kernel->chance[kind]))
        return false;
    kernel->happened[kind]++;
    return true;
}

size_t simulation_shorten(simulation *kernel, size_t size) {
    if (size < 2 || !simulation_decide(kernel, FAULT_SHORT))
        return size;
    /* In half of the cases, at most 7 bytes. */
    return 1 + simulation_random_below(kernel, simulation_random_below(kernel, 2) ? size - 1
                                               : size < 8                         ? size - 1
                                                                                  : 7);
}

/* ── entering, waiting, cancelling ──────────────────────────────────────────────────────────── */

simulation_note *simulation_note_of(soft_request *request) {
    _Static_assert(sizeof(simulation_note) == sizeof(request->note), "a note has no more room");
    return (simulation_note *)&request->note;
}

static bool chooses(void *owner, soft_choices outcome) {
    simulation *kernel = owner;

    switch (outcome) {
    case SOFT_EVENT_LATE:
        return simulation_decide(kernel, FAULT_LATE);
    case SOFT_MULTISHOT_ENDS:
        return simulation_decide(kernel, FAULT_ENDED);
    case SOFT_WAIT_INTERRUPTED:
        return !kernel->waiting && simulation_decide(kernel, FAULT_INTERRUPTED);
    case SOFT_NO_BUFFER:
        return simulation_decide(kernel, FAULT_STARVED);
    case SOFT_NO_ROOM:
        return simulation_decide(kernel, FAULT_OVERFLOW);
    case SOFT_NO_DESCRIPTOR:
        return simulation_decide(kernel, FAULT_NO_FILES);
    }
    return false;
}

/* Ends a request whose cancel has come late. */
static void end_cancelled(softring *s, soft_request *request) {
    if (request->state == SOFT_WAITING && simulation_note_of(request)->cancelled)
        soft_end(s, request);
}

static int enter(void *owner, softring *s) {
    simulation *kernel = owner;

    if (!kernel->waiting && simulation_decide(kernel, FAULT_BUSY))
        return simulation_decide(kernel, FAULT_BUSY) ? -EBUSY : -EAGAIN;
    soft_walk(s, end_cancelled);
    return 0;
}

static void shuffle(simulation *kernel, struct epoll_event *events, int count) {
    struct epoll_event other;
    int i, j;

    for (i = count - 1; i > 0; i--) {
        j = i - (int)simulation_random_below(kernel, (uint64_t)i + 1);
        other = events[i];
        events[i] = events[j];
        events[j] = other;
    }
}

static int wait_for_events(void *owner, int epoll_fd, struct epoll_event *events, int size,
                           int64_t timeout_ns) {
    int count = uring_epoll_wait(epoll_fd, events, size, timeout_ns);

    if (count < 0)
        return -errno;
    if (count > 1 && simulation_decide(owner, FAULT_REORDERED))
        shuffle(owner, events, count);
    return count;
}

/* Continues a request whose cancel comes late, and ends it in the next enter, or misses it. */
static int overtakes(void *owner, softring *s, soft_request *request) {
    int failure = 0;

    if (!simulation_decide(owner, FAULT_OVERTAKEN))
        return 0;
    if (simulation_decide(owner, FAULT_OVERTAKEN))
        failure = -EALREADY;
    else if (simulation_decide(owner, FAULT_OVERTAKEN))
        failure = -ENOENT;
    simulation_note_of(request)->cancelled = failure == -EALREADY;
    if (request->sqe.opcode != IORING_OP_POLL_ADD)
        request->attempt(s, request, request->events);
    return failure;
}

static void begin(void *owner, soft_request *request) {
    if (request->sqe.opcode == IORING_OP_RECV)
        simulation_note_of(request)->misses_end = simulation_decide(owner, FAULT_MISSED_END);
    else
        simulated_disturb(owner, request);
}

static bool misses_ends(void *owner) {
    const simulation *kernel = owner;

    return kernel->chance[FAULT_MISSED_END] != 0;
}

/* ── lifetime ───────────────────────────────────────────────────────────────────────────────── */

void simulation_begin(simulation *kernel, softring *s) {
    kernel->world = (soft_world){
        .owner = kernel,
        .chooses = chooses,
        .enter = enter,
        .wait = wait_for_events,
        .begin = begin,
        .overtakes = overtakes,
        .receive = simulated_receive,
        .send = simulated_send,
        .perform = simulated_perform,
        .complete = simulated_complete,
        .misses_ends = misses_ends,
        .ended_by = simulated_ended_by,
    };
    softring_set_world(s, &kernel->world);
}

void simulation_clear(simulation *kernel) {
    simulation_ending *ending;

    while ((ending = kernel->endings) != NULL) {
        kernel->endings = ending->next;
        free(ending);
    }
    free(kernel->bytes);
    kernel->bytes = NULL;
    kernel->bytes_size = 0;
}
