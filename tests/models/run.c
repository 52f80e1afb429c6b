/* A loop runs again, long after its last run, while another thread reads its times: the time between
 * the runs is neither work, nor a turn that blocks. */
#include "clock.h"

static void *read_times(void *with) {
    (void)with;
    must(times_blocked_ns(&times) <= TURN, "the time between runs looks like a turn that blocks");
    must(times_busy_ns(&times, 1) <= WORKED + TURN, "the time between runs was counted as work");
    return NULL;
}

void model_begin(void) {
    unsigned long nobody = 0;

    uring_store(&times.stall_ns, SLEPT_UNTIL);
    uring_store(&times.timing_users, TURN_FOR_BUSY);
    model_set_clock(WORKED);
    times_end_turn(&times);

    checker_start(read_times, NULL);
    model_set_clock(SLEPT_UNTIL);
    uring_replace(&times.thread_id, &nobody, TURN_CLAIMED);
    times_begin_run(&times, 2);
    model_set_clock(SLEPT_UNTIL + TURN);
    times_end_turn(&times);
    uring_store_release(&times.thread_id, 0);
}

void model_end(void) {
    must(uring_load(&times.idle_ns) == SLEPT_UNTIL - WORKED, "the idle time is wrong");
}
