/* A thread parks until another one has put something for it: it wakes, and finds that. */
#include "checker.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static long call_futex(int *word, int operation, int value);

#define syscall(number, word, operation, value, ...) call_futex(word, operation, value)
#include "_kernel/park.h"
#undef syscall

static struct {
    int woken;
    int content;
    int queue; /* the kernel's, of the threads that wait */
} model;

/* The kernel compares the word, and puts the thread to sleep, under the lock of its queue. */
static long call_futex(int *word, int operation, int value) {
    checker_lock(&model.queue);
    if (operation == FUTEX_WAKE_PRIVATE)
        checker_wake(&model.queue);
    else if (__atomic_load_n(word, __ATOMIC_RELAXED) == value)
        checker_wait(&model.queue, &model.queue);
    checker_unlock(&model.queue);
    return 0;
}

static void *wait(void *with) {
    (void)with;
    uring_park(&model.woken);
    must(model.content == 1, "a thread was woken before its work was there");
    return NULL;
}

MODEL_RESET { memset(&model, 0, sizeof(model)); }

void model_begin(void) {
    checker_start(wait, NULL);
    model.content = 1;
    uring_unpark(&model.woken);
}

void model_end(void) {}
