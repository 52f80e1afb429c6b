/* What a model calls: threads, locks and waits that the checker knows (checker/src/lib.rs). The
 * models include the project's C code, which then calls these in place of the system.
 *
 * Each model defines three functions. model_reset() gives all memory its first values; the checker
 * calls it before it looks. model_begin() is the first thread and starts the others. model_end()
 * comes when all have ended. */
#ifndef CHECKER_H
#define CHECKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

void checker_fail(const char *what) __attribute__((noreturn));
void checker_lacks(const char *what) __attribute__((noreturn));
void checker_start(void *(*run)(void *), void *with);
void checker_yield(void);
void checker_lock(const void *lock);
void checker_unlock(const void *lock);
void checker_wait(const void *condition, const void *lock);
void checker_wake(const void *condition);
int checker_run(void);

#define MODEL_RESET __attribute__((no_sanitize_thread)) void model_reset(void)
void model_reset(void);
void model_begin(void);
void model_end(void);

int main(void) { return checker_run(); }

static inline void must(bool holds, const char *what) {
    if (!holds)
        checker_fail(what);
}

/* An eventfd, or anything else of the kernel that one thread writes to and another waits for. */
typedef struct event {
    int written;
} event;

static inline void event_write(event *one) {
    checker_lock(one);
    one->written = 1;
    checker_wake(one);
    checker_unlock(one);
}

static inline void event_wait(event *one) {
    checker_lock(one);
    while (!one->written)
        checker_wait(one, one);
    one->written = 0;
    checker_unlock(one);
}

#endif
