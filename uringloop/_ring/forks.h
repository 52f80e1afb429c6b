/* The rings of this process, which a forked child must not touch. The list changes under the GIL
 * only. One compiled module may include this file: it defines static variables. */
#ifndef URINGLOOP_FORKS_H
#define URINGLOOP_FORKS_H

#include "_ring/uring.h"

static uring *uring_live;

/* The number of children that this process has forked. */
static unsigned uring_forks;

static void uring_count_fork(void) {
    __atomic_add_fetch(&uring_forks, 1, __ATOMIC_RELAXED);
}

static void uring_leave_all_to_parent(void) {
    for (uring *u = uring_live; u; u = u->next)
        uring_leave_to_parent(u);
}

/* Registers the fork handlers, once in a process: a child abandons its copies of the rings. */
static inline int uring_watch_forks(void) {
    return pthread_atfork(NULL, uring_count_fork, uring_leave_all_to_parent);
}

static inline void uring_remember(uring *u) {
    u->next = uring_live;
    uring_live = u;
}

static inline void uring_forget(uring *u) {
    for (uring **link = &uring_live; *link; link = &(*link)->next) {
        if (*link == u) {
            *link = u->next;
            break;
        }
    }
}

#endif
