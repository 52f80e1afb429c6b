/* The rings of this process, which a forked child must not touch. A lock protects the list, so that
 * any thread may open and close a ring, and fork(2) waits for the lock. Only one compiled module
 * may include this file, because it defines static variables. */
#ifndef URINGLOOP_FORKS_H
#define URINGLOOP_FORKS_H

#include "_ring/uring.h"

static uring *uring_live;
static pthread_mutex_t uring_live_lock = PTHREAD_MUTEX_INITIALIZER;

/* The number of children that this process has forked. */
static unsigned uring_forks;

static void uring_before_fork(void) { pthread_mutex_lock(&uring_live_lock); }

static void uring_after_fork_in_parent(void) {
    pthread_mutex_unlock(&uring_live_lock);
    __atomic_add_fetch(&uring_forks, 1, __ATOMIC_RELAXED);
}

static void uring_after_fork_in_child(void) {
    for (uring *u = uring_live; u; u = u->next)
        uring_leave_to_parent(u);
    pthread_mutex_unlock(&uring_live_lock);
}

/* Registers the fork handlers, once in a process: a child abandons its copies of the rings. */
static inline int uring_watch_forks(void) {
    return pthread_atfork(uring_before_fork, uring_after_fork_in_parent,
                          uring_after_fork_in_child);
}

static inline void uring_remember(uring *u) {
    pthread_mutex_lock(&uring_live_lock);
    u->next = uring_live;
    uring_live = u;
    pthread_mutex_unlock(&uring_live_lock);
}

static inline void uring_forget(uring *u) {
    pthread_mutex_lock(&uring_live_lock);
    for (uring **link = &uring_live; *link; link = &(*link)->next) {
        if (*link == u) {
            *link = u->next;
            break;
        }
    }
    pthread_mutex_unlock(&uring_live_lock);
}

/* Closes *u*, and puts *fresh* in its place in memory and in the list. Other threads may read the
 * members before `ring` meanwhile. The lock makes a fork wait: otherwise the child would close the
 * descriptor of *u*, whose number may belong to another file as soon as *u* is closed here. */
static inline void uring_take_place(uring *u, const uring *fresh) {
    uring *next;

    pthread_mutex_lock(&uring_live_lock);
    uring_close(u);
    next = u->next;
    memcpy(&u->ring, &fresh->ring, sizeof(*u) - offsetof(uring, ring));
    u->next = next;
    uring_store(&u->enters, fresh->enters);
    uring_store(&u->life, fresh->life);
    pthread_mutex_unlock(&uring_live_lock);
}

#endif
