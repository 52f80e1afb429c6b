/* The word of an inbox: the newest handle from other threads, or whether the loop sleeps. The states
 * are drawn in inbox.pyx. This is C, without Python, so that the model checker runs the same code
 * (docs/project/memory-ordering.md).
 *
 * All changes of the word are read-modify-writes of one variable. So they have one order, which all
 * threads see: either the loop falls asleep first, and the thread that then puts a handle finds it
 * ASLEEP, or the handle is there first, and the loop does not fall asleep.
 */
#ifndef URINGLOOP_TURN_INBOX_H
#define URINGLOOP_TURN_INBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "_kernel/atomics.h"
#include "_kernel/wakeup.h"

/* Values of `newest` that are not the address of a handle. */
enum {
    INBOX_EMPTY,  /* the loop is awake, or about to find out that it need not sleep */
    INBOX_ASLEEP, /* the next handle wakes the loop */
    INBOX_CLOSED, /* the loop is closed */
};

typedef struct inbox_word {
    uintptr_t newest;    /* a value above, or the newest handle; the inbox owns each handle */
    int wake_fd;         /* ends the loop's sleep; not changed while the loop is open */
    unsigned wakes_due;  /* sleeps that another thread has ended, or is ending; the loop's own */
    unsigned wakes_done; /* of these, the ones whose thread has written to the wake-up */
} inbox_word;

static inline bool inbox_has_new(const inbox_word *word) {
    return uring_load(&word->newest) > INBOX_CLOSED;
}

/* ── for any thread ─────────────────────────────────────────────────────────────────────────── */

/* Puts a handle, whose link to the next older one is *older*, and wakes the loop if it sleeps.
 * Returns false if the loop is closed. */
static inline bool inbox_put(inbox_word *word, void *handle, void **older) {
    uintptr_t newest = uring_load(&word->newest);

    do {
        if (newest == INBOX_CLOSED)
            return false;
        *older = newest > INBOX_CLOSED ? (void *)newest : NULL;
    } while (!uring_replace(&word->newest, &newest, (uintptr_t)handle));
    if (newest == INBOX_ASLEEP) {
        uring_wake(word->wake_fd);
        /* Release: whoever counts this wake-up may close the descriptor. */
        uring_add_release(&word->wakes_done, 1);
    }
    return true;
}

/* ── for the loop's thread ──────────────────────────────────────────────────────────────────── */

/* Takes all handles; returns the newest one, which is linked to the older ones, or NULL. A sleeping
 * loop must still be woken, and a closed one stays closed. */
static inline void *inbox_take(inbox_word *word) {
    uintptr_t newest = uring_load(&word->newest);

    while (newest > INBOX_CLOSED)
        if (uring_replace(&word->newest, &newest, INBOX_EMPTY))
            return (void *)newest;
    return NULL;
}

/* Has other threads wake the loop from now on; returns false if a handle is there. */
static inline bool inbox_fall_asleep(inbox_word *word) {
    uintptr_t newest = INBOX_EMPTY;

    return uring_replace(&word->newest, &newest, INBOX_ASLEEP);
}

/* Notes that the loop is awake. */
static inline void inbox_wake_up(inbox_word *word) {
    uintptr_t newest = INBOX_ASLEEP;

    if (!uring_replace(&word->newest, &newest, INBOX_EMPTY))
        word->wakes_due++;
}

/* Refuses handles from now on; returns the newest of those that are left, or NULL. */
static inline void *inbox_refuse(inbox_word *word) {
    uintptr_t newest = uring_exchange(&word->newest, INBOX_CLOSED);

    return newest > INBOX_CLOSED ? (void *)newest : NULL;
}

/* Returns whether every thread that has found the loop asleep has written to the wake-up. */
static inline bool inbox_is_left(const inbox_word *word) {
    return uring_load_acquire(&word->wakes_done) == word->wakes_due;
}

#endif
