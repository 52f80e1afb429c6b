/* A loop wakes after a long sleep while another thread reads its times: the sleep is neither work,
 * nor a turn that blocks. The sleep began long ago, so all threads know of it. */
#include "clock.h"

static void *read_times(void *with) {
    (void)with;
    must(times_blocked_ns(&times) <= TURN, "a sleep looks like a turn that blocks");
    must(times_busy_ns(&times, 1) <= WORKED + TURN, "a sleep was counted as work");
    return NULL;
}

void model_begin(void) {
    model_set_clock(WORKED);
    times_begin_run(&times, 2);
    uring_store(&times.stall_ns, SLEPT_UNTIL);
    uring_store(&times.timing_users, TURN_FOR_BUSY);
    times_end_turn(&times);
    times_fall_asleep(&times);
    model_set_clock(WORKED + TURN);

    checker_start(read_times, NULL);
    model_set_clock(SLEPT_UNTIL);
    times_wake_up(&times);
    model_set_clock(SLEPT_UNTIL + TURN);
    times_end_turn(&times);
}

void model_end(void) {
    must(uring_load(&times.idle_ns) == SLEPT_UNTIL - WORKED, "the idle time is wrong");
}
