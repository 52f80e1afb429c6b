/* A loop is closed while another thread wakes it, from a sleep that has ended by itself: the
 * descriptor of the wake-up may be closed only when the thread has written to it. */
#include "checker.h"

static void put_wake_up(int fd);

/* In place of _kernel/wakeup.h. */
#define URINGLOOP_KERNEL_WAKEUP_H
#define uring_wake put_wake_up

#include "_turn/inbox.h"

struct handle {
    void *older;
};

static struct {
    inbox_word word;
    bool descriptor_closed;
    struct handle handles[2];
} model;

static void put_wake_up(int fd) {
    (void)fd;
    must(!model.descriptor_closed, "a thread has written to a closed descriptor");
}

static void *put(void *with) {
    struct handle *handle = with;

    inbox_put(&model.word, handle, &handle->older);
    return NULL;
}

MODEL_RESET { memset(&model, 0, sizeof(model)); }

void model_begin(void) {
    checker_start(put, &model.handles[0]);
    checker_start(put, &model.handles[1]);
    if (inbox_fall_asleep(&model.word))
        inbox_wake_up(&model.word);
    inbox_refuse(&model.word);
    while (!inbox_is_left(&model.word))
        checker_yield();
    model.descriptor_closed = true;
}

void model_end(void) {}
