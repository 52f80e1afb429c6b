/* Listening sockets that several processes share, and the sleep of a loop that has some.
 *
 * A connection wakes one of the processes that wait for it exclusively. A request of a ring waits
 * for its socket while its process computes, too, and would take the wake-up of a process that is
 * free. epoll does not: with EPOLLEXCLUSIVE an instance passes a wake-up on unless a thread sleeps
 * in epoll_wait(2) at that moment (4.5, ep_poll_callback in fs/eventpoll.c). So a loop with shared
 * listening sockets sleeps in epoll_wait(2), and a connection wakes a process only while it is
 * free. A process that has taken a connection moves to the end of the socket's wait queue, so
 * connections go to the free processes in rotation.
 *
 * The accept epoll is an epoll instance with the listening sockets and a descriptor by which the
 * ring ends the sleep: for the kernel's ring an eventfd that the kernel writes to, for a software
 * ring its own epoll instance. It belongs to one uring and its thread.
 *
 * The kernel's ring does not write to its eventfd from within a write to another eventfd (seen on
 * 6.18: the first time it does, later never). So descriptors that may be eventfds are in the accept
 * epoll themselves: the one by which other threads wake the loop, and the epoll instance of the
 * descriptors that the program watches.
 *
 * A sleep in epoll_wait(2) costs 2 us more than one in the ring: a second system call, and the
 * eventfd. So a process that is alone with its sockets, or busy with the connections that it has,
 * sleeps in the ring, where polls of the sockets report new connections. These polls take no
 * wake-up from other processes. After a connection the process sleeps in epoll_wait(2) again
 * if other processes accept from the socket.
 */
#ifndef URINGLOOP_RING_SHARED_SOCKETS_H
#define URINGLOOP_RING_SHARED_SOCKETS_H

#include <fcntl.h>
#include <sched.h>
#include <sys/epoll.h>

#include "_ring/at_epoll.h"
#include "_ring/uring.h"

#ifndef EPOLLEXCLUSIVE
#define EPOLLEXCLUSIVE (1U << 28) /* 4.5 */
#endif

/* Events of one epoll_wait(2): the ring's eventfd, two wakers, and a listening socket. */
#define URING_EVENTS_MAX 4

/* The data of the eventfd's events, and of the wakers': descriptors that wake the loop. */
#define URING_EVENTFD UINT64_MAX
#define URING_WAKE (UINT64_MAX - 1)

/* After shorter sleeps the process counts as busy. */
#define URING_SHORT_SLEEP_NS 1000000

/* The event that ended a shorter sleep may have been there before the sleep began. */
#define URING_SLEPT_NS 20000

/* A process that was woken for a connection and is then killed, stopped or not scheduled takes the
 * wake-up with it, and no other process is woken for that connection. All processes search for such
 * connections at this interval, and at twice the interval after each search of a sleep: a search
 * costs 50 us, most of it for leaving an idle state of the processor. */
#define URING_SEARCH_NS 50000000

/* The longest sleep in epoll_wait(2). After it the loop notices what does not write to the eventfd:
 * the completion of a ring's request that reads an eventfd, and the end of the other processes. */
#define URING_SLEEP_MAX_NS 1000000000

/* Closes the accept epoll: from now on the loop sleeps in the ring. */
static inline void uring_close_accept_epoll(uring *u) {
    /* In a forked child the fork handler has closed the descriptors. */
    if (u->life == URING_INHERITED)
        return;
    uring_leave_epoll(u, u->accept_epoll_fd);
    uring_free_accept_epoll(u);
}

/* Makes the epoll instance; the calling thread owns the ring. Returns 0 or -errno. */
static inline int uring_open_accept_epoll(uring *u) {
    int res;

    u->accept_epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (u->accept_epoll_fd < 0)
        return -errno;
    res = uring_join_epoll(u, u->accept_epoll_fd, URING_EVENTFD);
    if (res < 0)
        uring_free_accept_epoll(u);
    return res;
}

/* Moves the accept epoll of *old* to its successor *fresh*, or closes it if that fails. */
static inline void uring_move_accept_epoll(uring *fresh, uring *old) {
    int res = 0;

    fresh->accept_epoll_fd = old->accept_epoll_fd;
    fresh->eventfd = old->eventfd;
    fresh->ready_fd = old->ready_fd;
    fresh->reserve_fd = old->reserve_fd;
    fresh->listeners = old->listeners;
    fresh->listeners_count = old->listeners_count;
    old->accept_epoll_fd = old->eventfd = old->ready_fd = old->reserve_fd = -1;
    old->listeners = NULL;
    old->listeners_count = 0;
    old->sleeps_in_ring = false;
    if (fresh->accept_epoll_fd >= 0 && fresh->soft != NULL)
        res = softring_add_to_epoll(fresh->soft, fresh->accept_epoll_fd, URING_EVENTFD);
    else if (fresh->accept_epoll_fd >= 0)
        res = io_uring_register_eventfd(&fresh->ring, fresh->eventfd);
    if (res < 0)
        uring_free_accept_epoll(fresh);
}

/* Makes *fd* end a sleep, once for each of its events. */
static inline int uring_add_waker(uring *u, int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = URING_WAKE};

    if (u->soft != NULL || u->accept_epoll_fd < 0)
        return 0;
    if (epoll_ctl(u->accept_epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 && errno != EEXIST)
        return -errno;
    return 0;
}

/* Shows other processes that this one accepts from the socket: by a shared lock on it, which the
 * kernel releases when the process ends. */
static inline void uring_mark_shared(int fd) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};

    fcntl(fd, F_SETLK, &lock);
}

static inline int uring_join_queue(uring *u, int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.u64 = (unsigned)fd};

    return epoll_ctl(u->accept_epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static inline void uring_leave_queue(uring *u, int fd) {
    struct epoll_event event = {0};

    if (u->ready_fd == fd)
        u->ready_fd = -1;
    if (u->accept_epoll_fd >= 0 && u->life != URING_INHERITED)
        epoll_ctl(u->accept_epoll_fd, EPOLL_CTL_DEL, fd, &event);
}

/* Moves this process to the end of the socket's wait queue. */
static inline int uring_requeue(uring *u, int fd) {
    uring_leave_queue(u, fd);
    return uring_join_queue(u, fd);
}

/* Adds a listening socket to the accept epoll. Returns 0 or -errno. */
static inline int uring_add_listener(uring *u, int fd) {
    struct pollfd *listeners = realloc(u->listeners, (u->listeners_count + 1) * sizeof(*listeners));

    if (listeners == NULL)
        return -ENOMEM;
    u->listeners = listeners;
    listeners[u->listeners_count++] = (struct pollfd){.fd = fd, .events = POLLIN};
    return uring_join_queue(u, fd);
}

static inline void uring_remove_listener(uring *u, int fd) {
    unsigned i;

    uring_leave_queue(u, fd);
    for (i = 0; i < u->listeners_count; i++)
        if (u->listeners[i].fd == fd) {
            u->listeners[i] = u->listeners[--u->listeners_count];
            break;
        }
}

/* Makes the next epoll_wait(2) report connections whose wake-up another process got and did not
 * use. */
static inline void uring_recover_wakeups(uring *u) {
    unsigned i;

    if (poll(u->listeners, u->listeners_count, 0) <= 0)
        return;
    for (i = 0; i < u->listeners_count; i++)
        /* epoll reports what already waits when a socket is added. */
        if (u->listeners[i].revents)
            uring_requeue(u, u->listeners[i].fd);
}

/* Keeps a spare descriptor for a connection that comes when this process has no other descriptor:
 * no other process was woken for that connection. Returns 0, or -errno if none is free. */
static inline int uring_reserve(uring *u) {
    if (u->accept_epoll_fd < 0 || u->reserve_fd >= 0)
        return 0;
    u->reserve_fd = eventfd(0, EFD_CLOEXEC);
    return u->reserve_fd < 0 ? -errno : 0;
}

/* Closes the spare descriptor; returns whether there was one. */
static inline bool uring_use_reserve(uring *u) {
    if (u->reserve_fd < 0)
        return false;
    close(u->reserve_fd);
    u->reserve_fd = -1;
    return true;
}

/* Returns whether waiting connections fill half of the backlog: the socket may soon refuse more. */
static inline bool uring_is_crowded(int fd) {
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);

    /* For a listening socket, unacked is the number of waiting connections, sacked the backlog. */
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
           2 * info.tcpi_unacked >= info.tcpi_sacked && info.tcpi_unacked > 0;
}

/* Returns whether another process has marked the socket (uring_mark_shared). Takes 0.3 us. */
static inline bool uring_is_shared(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};

    return fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Sleeps *timeout_ns* at most, and notes the first listening socket that has a connection: the one
 * that epoll reported the longest ago. The next call reports the others again. Returns the number
 * of events, or -errno. */
static inline int uring_poll_accept_epoll(uring *u, int64_t timeout_ns) {
    struct epoll_event events[URING_EVENTS_MAX];
    int i, count = uring_epoll_wait(u->accept_epoll_fd, events, URING_EVENTS_MAX, timeout_ns);

    uring_count(&u->enters, 1);
    if (count < 0)
        return -errno;
    for (i = 0; i < count; i++) {
        if (events[i].data.u64 == URING_WAKE)
            u->woken = true;
        else if (events[i].data.u64 != URING_EVENTFD && u->ready_fd < 0)
            u->ready_fd = (int)events[i].data.u64;
    }
    return count;
}

/* Returns whether a waker, a connection or a completion ends the sleep. */
static inline bool uring_has_event(const uring *u) {
    return u->woken || u->ready_fd >= 0 || uring_head(u) != uring_tail(u);
}

/* Lets the loop sleep in the ring, or in epoll_wait(2) again. While it sleeps in the ring the
 * kernel does not write to the eventfd. */
static inline void uring_sleep_in_ring(uring *u, bool sleeps_in_ring) {
    u->sleeps_in_ring = sleeps_in_ring;
    u->short_sleeps = 0;
    if (u->soft != NULL || u->ring.cq.kflags == NULL)
        return;
    __atomic_store_n(
        u->ring.cq.kflags, sleeps_in_ring ? IORING_CQ_EVENTFD_DISABLED : 0, __ATOMIC_SEQ_CST);
    /* The kernel queues work and then reads the flag; this process writes the flag and then looks
     * for work. */
    atomic_thread_fence(memory_order_seq_cst);
}

/* Notes how long the newest sleep was, and counts short sleeps in a row. */
static inline void uring_note_sleep(uring *u, int64_t slept_ns) {
    u->slept = slept_ns >= URING_SLEPT_NS;
    u->short_sleeps = u->ready_fd < 0 && slept_ns < URING_SHORT_SLEEP_NS ? u->short_sleeps + 1 : 0;
}

/* Submits, and sleeps until something completes, a connection waits or *timeout_ns* has passed. */
static inline int uring_wait_at_epoll(uring *u, int64_t timeout_ns) {
    int submitted = uring_needs_enter(u) ? uring_submit(u) : 0, res = submitted;
    int64_t began = uring_clock_ns(), end, search_ns = URING_SEARCH_NS;

    u->woken = false;
    if (timeout_ns == URING_FOREVER || timeout_ns > URING_SLEEP_MAX_NS)
        timeout_ns = URING_SLEEP_MAX_NS;
    end = began + timeout_ns;
    while (res >= 0 && !uring_has_event(u)) {
        int64_t left = end - uring_clock_ns();

        if (left <= 0)
            break;
        if (left > search_ns)
            left = search_ns;
        if (u->soft != NULL && !softring_fall_asleep(u->soft))
            left = 0;
        res = uring_poll_accept_epoll(u, left);
        if (u->soft != NULL)
            softring_wake_up(u->soft);
        if (res == 0 && left > 0) {
            uring_recover_wakeups(u);
            search_ns *= 2;
        }
        /* The eventfd also reports deferred completions, which only an enter posts. */
        if (res >= 0 && (u->soft != NULL || !uring_has_event(u)))
            res = uring_submit(u);
    }
    uring_note_sleep(u, uring_clock_ns() - began);
    return submitted > 0 ? submitted : res;
}

/* Submits, and sleeps when the loop has nothing to do: in epoll_wait(2) if the loop has an accept
 * epoll and does not sleep in the ring, otherwise in the ring (uring_wait_batch). */
static inline int uring_sleep(uring *u, unsigned wanted, int64_t least_ns, int64_t timeout_ns) {
    int res;

    if (u->accept_epoll_fd < 0 || u->sleeps_in_ring)
        return uring_wait_batch(u, wanted, least_ns, timeout_ns);
    res = uring_wait_at_epoll(u, timeout_ns);
    if (least_ns && wanted > 1 && uring_has_event(u) && u->ready_fd < 0)
        /* Let the other completions gather for *least_ns*. */
        uring_wait_for(u, wanted, 0, least_ns);
    return res;
}

#endif
