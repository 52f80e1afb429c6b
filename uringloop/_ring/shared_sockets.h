/* Listening sockets that several processes share, and how a loop sleeps beside them.
 *
 * A connection wakes one of the processes that wait for it exclusively. A request of a ring waits
 * for its socket while its process computes, too, and would take the wake-up of a process that is
 * free. epoll does not: with EPOLLEXCLUSIVE an instance passes a wake-up on unless a thread sleeps
 * in epoll_wait(2) at that moment (4.5, ep_poll_callback in fs/eventpoll.c). So a ring with shared
 * listening sockets sleeps there, and a process is woken for a connection only while it is free.
 * The one that has taken a connection goes to the end of the socket's queue: they take turns.
 *
 * The doors are an epoll instance that has the listening sockets and a bell, by which the ring ends
 * the sleep: of the kernel's ring an eventfd that it writes to, of a software ring its own epoll.
 * They belong to one uring and its thread.
 *
 * The kernel's ring does not write to its eventfd from within a write to another one (seen on 6.18:
 * once, and never again). So whatever may be waiting for an eventfd is at the doors itself: what other
 * threads wake the loop by, and the epoll of what the program watches.
 *
 * A sleep there costs 2 us more than one in the ring: a second system call, and the bell. So a process
 * that is alone with its sockets, or busy with the connections it has, goes away from the doors: it
 * sleeps in the ring, where polls of the sockets tell it of new connections. They take no wake-up from
 * anybody. The first connection brings it back if there are others.
 */
#ifndef URINGLOOP_DOORS_H
#define URINGLOOP_DOORS_H

#include <fcntl.h>
#include <sched.h>
#include <sys/epoll.h>

#include "_ring/uring.h"

#ifndef EPOLLEXCLUSIVE
#define EPOLLEXCLUSIVE (1U << 28) /* 4.5 */
#endif

/* Events that a look takes: the bell, what wakes, and a socket behind them. */
#define URING_DOOR_EVENTS 4

/* In the events of the bell, and of what wakes the loop without it. */
#define URING_BELL UINT64_MAX
#define URING_WAKE (UINT64_MAX - 1)

/* A sleep that is shorter is a nap: the process is busy. */
#define URING_NAP_NS 1000000

/* Of one that is shorter nobody knows whether what ended it was there before. */
#define URING_REST_NS 20000

/* A process that has been woken for a connection and is killed, stopped or kept from running takes
 * the wake-up with it, and nobody else is told of that connection. So often all look for such, and
 * half as often after each look in a sleep: one costs 50 us, most of it for the end of an idle state. */
#define URING_SEARCH_NS 50000000

/* The longest sleep there: what reads an eventfd by a request of the ring is noticed after it, and
 * that the others have gone. */
#define URING_DOORS_SLEEP_NS 1000000000

static inline int uring_hang_bell(uring *u) {
    /* Told of each write, and never read. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = URING_BELL};
    int res;

    if (u->soft != NULL)
        return softring_hang_bell(u->soft, u->doors_fd, URING_BELL);
    u->bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (u->bell_fd < 0)
        return -errno;
    if (epoll_ctl(u->doors_fd, EPOLL_CTL_ADD, u->bell_fd, &event) < 0)
        return -errno;
    res = io_uring_register_eventfd(&u->ring, u->bell_fd);
    return res < 0 ? res : 0;
}

/* From now on the ring sleeps as it did without. */
static inline void uring_close_doors(uring *u) {
    /* The fork handler has closed those of a parent. */
    if (u->inherited)
        return;
    if (u->soft != NULL && u->open)
        softring_hang_bell(u->soft, -1, 0);
    else if (u->bell_fd >= 0 && u->open)
        io_uring_unregister_eventfd(&u->ring);
    uring_forget_doors(u);
}

/* Makes the instance; the calling thread owns the ring. 0, or -errno where that can not be: the
 * kernel's ring may not be told any more (seccomp), and a simulated kernel has a clock of its own. */
static inline int uring_open_doors(uring *u) {
    int res;

#ifdef URINGLOOP_SIMULATOR
    return -ENOSYS;
#endif
    u->doors_fd = epoll_create1(EPOLL_CLOEXEC);
    if (u->doors_fd < 0)
        return -errno;
    res = uring_hang_bell(u);
    if (res < 0)
        uring_forget_doors(u);
    return res;
}

/* *fresh*, the successor of *old*, gets the doors, or there are none any more. */
static inline void uring_move_doors(uring *fresh, uring *old) {
    int res = 0;

    fresh->doors_fd = old->doors_fd;
    fresh->bell_fd = old->bell_fd;
    fresh->knocked_fd = old->knocked_fd;
    fresh->reserve_fd = old->reserve_fd;
    fresh->doors = old->doors;
    fresh->doors_count = old->doors_count;
    old->doors_fd = old->bell_fd = old->knocked_fd = old->reserve_fd = -1;
    old->doors = NULL;
    old->doors_count = 0;
    old->away = false;
    if (fresh->doors_fd >= 0 && fresh->soft != NULL)
        res = softring_hang_bell(fresh->soft, fresh->doors_fd, URING_BELL);
    else if (fresh->doors_fd >= 0)
        res = io_uring_register_eventfd(&fresh->ring, fresh->bell_fd);
    if (res < 0)
        uring_forget_doors(fresh);
}

/* Has *fd* end a sleep, once for each of its events. */
static inline int uring_add_waker(uring *u, int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = URING_WAKE};

    if (u->soft != NULL || u->doors_fd < 0)
        return 0;
    return epoll_ctl(u->doors_fd, EPOLL_CTL_ADD, fd, &event) < 0 && errno != EEXIST ? -errno : 0;
}

/* Tells other processes that this one accepts from the socket, by a lock on it that all of them may
 * have: the kernel forgets it with the process. */
static inline void uring_sign(int fd) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};

    fcntl(fd, F_SETLK, &lock);
}

static inline int uring_join_queue(uring *u, int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.u64 = (unsigned)fd};

    return epoll_ctl(u->doors_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static inline void uring_leave_queue(uring *u, int fd) {
    struct epoll_event event = {0};

    if (u->knocked_fd == fd)
        u->knocked_fd = -1;
    if (u->doors_fd >= 0 && !u->inherited)
        epoll_ctl(u->doors_fd, EPOLL_CTL_DEL, fd, &event);
}

/* Lets the other processes go first the next time. */
static inline int uring_step_back(uring *u, int fd) {
    uring_leave_queue(u, fd);
    return uring_join_queue(u, fd);
}

/* Waits for connections of a socket, too. 0, -errno. */
static inline int uring_add_door(uring *u, int fd) {
    struct pollfd *doors = realloc(u->doors, (u->doors_count + 1) * sizeof(*doors));

    if (doors == NULL)
        return -ENOMEM;
    u->doors = doors;
    doors[u->doors_count++] = (struct pollfd){.fd = fd, .events = POLLIN};
    return uring_join_queue(u, fd);
}

static inline void uring_remove_door(uring *u, int fd) {
    unsigned i;

    uring_leave_queue(u, fd);
    for (i = 0; i < u->doors_count; i++)
        if (u->doors[i].fd == fd) {
            u->doors[i] = u->doors[--u->doors_count];
            break;
        }
}

/* Has the next look tell of connections whose wake-up went to a process that has not come. */
static inline void uring_search(uring *u) {
    unsigned i;

    if (poll(u->doors, u->doors_count, 0) <= 0)
        return;
    for (i = 0; i < u->doors_count; i++)
        /* Who joins the queue is told of what waits. */
        if (u->doors[i].revents)
            uring_step_back(u, u->doors[i].fd);
}

/* Keeps a descriptor for a connection that comes when the process has no other: it has been woken
 * for that one, and nobody else has. 0, or -errno if there is none to keep. */
static inline int uring_reserve(uring *u) {
    if (u->doors_fd < 0 || u->reserve_fd >= 0)
        return 0;
    u->reserve_fd = eventfd(0, EFD_CLOEXEC);
    return u->reserve_fd < 0 ? -errno : 0;
}

/* Gives that descriptor up; whether there was one. */
static inline bool uring_use_reserve(uring *u) {
    if (u->reserve_fd < 0)
        return false;
    close(u->reserve_fd);
    u->reserve_fd = -1;
    return true;
}

/* Whether so many connections wait that the socket will soon refuse more: half of its backlog. */
static inline bool uring_is_crowded(int fd) {
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);

    /* Of a listening socket these are the connections that wait, and the backlog. */
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
           2 * info.tcpi_unacked >= info.tcpi_sacked && info.tcpi_unacked > 0;
}

/* Whether another process has signed for the socket: 0.3 us. */
static inline bool uring_has_company(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};

    return fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Sleeps *timeout_ns* at most; the first listening socket that has a connection is noted: that of
 * which the instance has told the longest ago. The others are told of again by the next look.
 * Returns the number of events, -errno. */
static inline int uring_listen_at_doors(uring *u, int64_t timeout_ns) {
    struct epoll_event events[URING_DOOR_EVENTS];
    int i, count = uring_epoll_wait(u->doors_fd, events, URING_DOOR_EVENTS, timeout_ns);

    u->enters++;
    if (count < 0)
        return -errno;
    for (i = 0; i < count; i++) {
        if (events[i].data.u64 == URING_WAKE)
            u->woken = true;
        else if (events[i].data.u64 != URING_BELL && u->knocked_fd < 0)
            u->knocked_fd = (int)events[i].data.u64;
    }
    return count;
}

/* Whether anything has come that ends a sleep. */
static inline bool uring_is_called(const uring *u) {
    return u->woken || u->knocked_fd >= 0 || uring_head(u) != uring_tail(u);
}

/* Leaves the doors for the ring, or comes back. Meanwhile the kernel writes to no bell. */
static inline void uring_leave_doors(uring *u, bool away) {
    u->away = away;
    u->naps = 0;
    if (u->soft != NULL || u->ring.cq.kflags == NULL)
        return;
    __atomic_store_n(u->ring.cq.kflags, away ? IORING_CQ_EVENTFD_DISABLED : 0, __ATOMIC_SEQ_CST);
    /* The kernel notes what it has to do and then looks at the flag; we do it the other way round. */
    atomic_thread_fence(memory_order_seq_cst);
}

/* Notes how long the newest sleep was, and counts naps in a row. */
static inline void uring_note_sleep(uring *u, int64_t slept_ns) {
    u->rested = slept_ns >= URING_REST_NS;
    u->naps = u->knocked_fd < 0 && slept_ns < URING_NAP_NS ? u->naps + 1 : 0;
}

/* Submits, and sleeps until something completes, a connection waits or *timeout_ns* has passed. */
static inline int uring_wait_at_doors(uring *u, int64_t timeout_ns) {
    int submitted = uring_needs_enter(u) ? uring_submit(u) : 0, res = submitted;
    int64_t began = uring_clock_ns(), end, search_ns = URING_SEARCH_NS;

    u->woken = false;
    if (timeout_ns == URING_FOREVER || timeout_ns > URING_DOORS_SLEEP_NS)
        timeout_ns = URING_DOORS_SLEEP_NS;
    end = began + timeout_ns;
    while (res >= 0 && !uring_is_called(u)) {
        int64_t left = end - uring_clock_ns();

        if (left <= 0)
            break;
        if (left > search_ns)
            left = search_ns;
        if (u->soft != NULL && !softring_fall_asleep(u->soft))
            left = 0;
        res = uring_listen_at_doors(u, left);
        if (u->soft != NULL)
            softring_wake_up(u->soft);
        if (res == 0 && left > 0) {
            uring_search(u);
            search_ns *= 2;
        }
        /* The bell says that there is something to enter for. */
        if (res >= 0 && (u->soft != NULL || !uring_is_called(u)))
            res = uring_submit(u);
    }
    uring_note_sleep(u, uring_clock_ns() - began);
    return submitted > 0 ? submitted : res;
}

/* Submits and sleeps, as the loop does when it has nothing to do: uring_wait_batch, beside the
 * doors if there are any. */
static inline int uring_sleep(uring *u, unsigned wanted, int64_t least_ns, int64_t timeout_ns) {
    int res;

    if (u->doors_fd < 0 || u->away)
        return uring_wait_batch(u, wanted, least_ns, timeout_ns);
    res = uring_wait_at_doors(u, timeout_ns);
    if (least_ns && wanted > 1 && uring_is_called(u) && u->knocked_fd < 0)
        /* The rest has as long to gather. */
        uring_wait_for(u, wanted, 0, least_ns);
    return res;
}

#endif
