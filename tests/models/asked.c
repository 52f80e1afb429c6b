/* Another thread asks for the times while the loop sleeps: the loop must not take the time before
 * that for idle time. */
#include "clock.h"

static void *request(void *with) {
    (void)with;
    times_request(&times, TURN_FOR_BUSY, TURN);
    return NULL;
}

void model_begin(void) {
    model_set_clock(SLEPT_UNTIL);
    times_begin_run(&times, 2);
    checker_start(request, NULL);
    times_fall_asleep(&times);
    model_set_clock(SLEPT_UNTIL + TURN);
    times_wake_up(&times);
}

void model_end(void) {
    must(uring_load(&times.idle_ns) <= TURN, "the loop has slept for longer than it was watched");
}
