/* How a ring ends the sleep of a loop that sleeps in epoll_wait(2), at an epoll instance of the
 * loop's. The kernel's ring writes to an eventfd; a software ring adds its own epoll instance.
 */
#ifndef URINGLOOP_RING_AT_EPOLL_H
#define URINGLOOP_RING_AT_EPOLL_H

#include <sys/epoll.h>

#include "_ring/uring.h"

/* Allows or forbids the kernel to write to the eventfd. */
static inline void uring_switch_eventfd(uring *u, unsigned flags) {
    if (u->ring.cq.kflags == NULL)
        return;
    __atomic_store_n(u->ring.cq.kflags, flags, __ATOMIC_SEQ_CST);
    /* The kernel queues work and then reads the flag; this process writes the flag and then looks
     * for work. */
    atomic_thread_fence(memory_order_seq_cst);
}

/* Makes the eventfd, which the ring keeps until it is closed. Returns 0 or -errno: seccomp may
 * forbid io_uring_register by now. */
static inline int uring_make_eventfd(uring *u) {
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), res;

    if (fd < 0)
        return -errno;
    res = io_uring_register_eventfd(&u->ring, fd);
    if (res < 0) {
        close(fd);
        return res;
    }
    u->eventfd = fd;
    return 0;
}

/* Lets an event with *data* end each sleep at *epoll_fd* when the ring has completions, or work
 * that needs an enter. A ring can end sleeps at one instance only. Returns 0 or -errno. */
static inline int uring_join_epoll(uring *u, int epoll_fd, uint64_t data) {
    /* Edge-triggered: each write makes one event, and nothing reads the eventfd. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = data};
    int res;

    if (u->soft != NULL)
        return softring_add_to_epoll(u->soft, epoll_fd, data);
    res = u->eventfd < 0 ? uring_make_eventfd(u) : 0;
    if (res < 0)
        return res;
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, u->eventfd, &event) < 0 && errno != EEXIST)
        return -errno;
    uring_switch_eventfd(u, 0);
    return 0;
}

/* Undoes uring_join_epoll(). Does nothing in a forked child: the fork handler has closed the
 * child's descriptors, and the parent uses the same epoll instance. */
static inline void uring_leave_epoll(uring *u, int epoll_fd) {
    struct epoll_event event = {0};

    if (!uring_is_usable(u))
        return;
    if (u->soft != NULL) {
        softring_add_to_epoll(u->soft, -1, 0);
    } else if (u->eventfd >= 0) {
        uring_switch_eventfd(u, IORING_CQ_EVENTFD_DISABLED);
        epoll_ctl(epoll_fd, EPOLL_CTL_DEL, u->eventfd, &event);
    }
}

/* Sleeps at *epoll_fd* until it has events, or *timeout_ns* has passed (negative: no limit).
 * Returns the number of events, or -errno. */
static inline int uring_sleep_at_epoll(uring *u, int epoll_fd, struct epoll_event *events, int size,
                                       int64_t timeout_ns) {
    int count;

    if (u->soft != NULL && timeout_ns != 0 && !softring_fall_asleep(u->soft))
        timeout_ns = 0;
    count = uring_epoll_wait(epoll_fd, events, size, timeout_ns);
    if (count < 0)
        count = -errno;
    if (u->soft != NULL)
        softring_wake_up(u->soft);
    uring_count(&u->enters, 1);
    return count;
}

#endif
