/* The inbox: two threads put handles, and the loop takes them, and sleeps.
 *
 * No handle may be lost, or come before an older one of the same thread; a sleep must end; and what
 * a thread has written into a handle is there. */
#include "checker.h"

static void put_wake_up(int fd);

/* In place of _kernel/wakeup.h. */
#define URINGLOOP_KERNEL_WAKEUP_H
#define uring_wake put_wake_up

#include "_turn/inbox.h"

struct handle {
    void *older;
    int content;
};

static struct {
    inbox_word word;
    event wake;
    struct handle handles[3];
    unsigned taken; /* bits of handles */
} model;

static void put_wake_up(int fd) {
    (void)fd;
    event_write(&model.wake);
}

static void put(int number) {
    struct handle *handle = &model.handles[number];

    handle->content = 1;
    if (!inbox_put(&model.word, handle, &handle->older))
        checker_fail("the inbox has refused a handle");
}

static void *put_two(void *with) {
    (void)with;
    put(0);
    put(1);
    return NULL;
}

static void *put_one(void *with) {
    (void)with;
    put(2);
    return NULL;
}

static void run_loop(void) {
    while (model.taken != 7) {
        struct handle *one = inbox_take(&model.word);
        unsigned before = model.taken;

        for (; one != NULL; one = one->older) {
            unsigned bit = 1U << (one - model.handles);

            must(one->content == 1, "a handle is empty");
            must(!(model.taken & bit), "a handle was taken twice");
            must(one != &model.handles[0] || !(before & 2), "an older handle came later");
            model.taken |= bit;
        }
        if (model.taken != 7 && inbox_fall_asleep(&model.word)) {
            event_wait(&model.wake);
            inbox_wake_up(&model.word);
        }
    }
}

MODEL_RESET { memset(&model, 0, sizeof(model)); }

void model_begin(void) {
    checker_start(put_two, NULL);
    checker_start(put_one, NULL);
    run_loop();
}

void model_end(void) { must(model.taken == 7, "a handle was lost"); }
