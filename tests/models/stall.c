/* Stalls end while another thread reads the last one: it reads all of one stall. */
#include "clock.h"

static void *read_stall(void *with) {
    int64_t began, took;
    uint64_t stalls = times_last_stall(&times, &began, &took);

    (void)with;
    must(began == (int64_t)(stalls ? SLEPT_UNTIL + stalls : 0), "the begin is of another stall");
    must(took == (int64_t)stalls * TURN, "the duration is of another stall");
    return NULL;
}

void model_begin(void) {
    checker_start(read_stall, NULL);
    times_note_stall(&times, SLEPT_UNTIL + 1, TURN);
    times_note_stall(&times, SLEPT_UNTIL + 2, 2 * TURN);
}

void model_end(void) {
    must(uring_load(&times.stall_version) == 4, "the number of stalls is wrong");
}
