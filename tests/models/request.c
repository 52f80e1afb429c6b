/* Two threads ask for the times in mid-turn: the loop must not take a turn whose begin nobody
 * has noted for one that has lasted since the machine was started. */
#include "clock.h"

static void *request(void *with) {
    (void)with;
    must(times_busy_ns(&times, TURN) <= TURN, "the loop has worked for longer than it was watched");
    return NULL;
}

void model_begin(void) {
    model_set_clock(SLEPT_UNTIL);
    times_begin_run(&times, 2);
    checker_start(request, NULL);
    checker_start(request, NULL);
    model_set_clock(SLEPT_UNTIL + TURN - 1);
    times_end_turn(&times);
}

void model_end(void) {
    must(uring_load(&times.stall_version) == 0, "a short turn was taken for a stall");
}
