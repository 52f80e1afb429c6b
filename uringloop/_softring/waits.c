/* The descriptors that a software ring waits for, by epoll.
 *
 * A multishot receive keeps its descriptor registered, level-triggered: if it leaves bytes, or
 * finds no buffer, it gets another event. A one-shot request registers its descriptor for one
 * event. A multishot poll is edge-triggered and gets one event for each arrival, like the kernel's.
 * If other requests on the same descriptor leave something in it, the descriptor is registered
 * again, so that epoll checks it again.
 *
 * epoll identifies a descriptor by its file. A closed file leaves epoll, unless a duplicate of the
 * descriptor is still open. So the first request that waits for a number registers it again, under
 * a new generation, and the cancel of the last request deletes the entry.
 */
#include "_softring/waits.h"

#include <fcntl.h>

#include "_kernel/clock.h"
#include "_kernel/compat.h"
#include "_softring/queue.h"

/* When the table of watches grows, it gets room for so many more than are needed. */
#define SOFT_WATCHES_ROOM 64
/* The data of the events of the threads for files. */
#define SOFT_POOL_DATA UINT64_MAX

int soft_open_waits(softring *s, const char **call) {
    struct epoll_event event = {0};

    *call = "epoll_create1";
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll_fd < 0)
        return -errno;
    /* Find out at once whether a filter forbids epoll_ctl(2), because a later EPERM means a file
     * that epoll cannot watch. The kernel answers EINVAL: an instance is never in itself. */
    *call = "epoll_ctl";
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, s->epoll_fd, &event) < 0 &&
        uring_is_forbidden(-errno))
        return -errno;
    return 0;
}

void soft_close_waits(softring *s) {
    if (s->epoll_fd >= 0)
        close(s->epoll_fd);
    free(s->watches);
}

static int soft_grow_watches(softring *s, int fd) {
    int size = 2 * s->watches_size > fd + SOFT_WATCHES_ROOM ? 2 * s->watches_size
                                                            : fd + SOFT_WATCHES_ROOM;
    soft_watch *grown = realloc(s->watches, (size_t)size * sizeof(*grown));

    if (grown == NULL)
        return -ENOMEM;
    memset(grown + s->watches_size, 0, (size_t)(size - s->watches_size) * sizeof(*grown));
    s->watches = grown;
    s->watches_size = size;
    return 0;
}

/* Returns the events and the mode that the waiting requests need. */
static uint32_t soft_wanted(const soft_watch *watch) {
    static const uint32_t flags[] = {
        [SOFT_ONCE] = EPOLLONESHOT, [SOFT_BY_LEVEL] = 0, [SOFT_BY_EDGE] = EPOLLET};
    soft_modes mode = watch->has_lasting_error ? SOFT_BY_EDGE : SOFT_ONCE;
    const soft_request *request;
    uint32_t events = 0;

    for (request = watch->first; request != NULL; request = request->next) {
        events |= request->events;
        if (request->mode > mode)
            mode = request->mode;
    }
    return events | flags[mode];
}

/* Registers *wanted* with epoll, which then also reports what is there already. Returns 1 if the
 * number belongs to another file than the one that earlier requests wait for, 0 if not, or
 * -errno. */
static int soft_register(softring *s, int fd, uint32_t wanted) {
    soft_watch *watch = &s->watches[fd];
    struct epoll_event event = {.events = wanted};
    int first = watch->known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    bool other = false;
    int res;

    event.data.u64 = (uint64_t)watch->generation << 32 | (unsigned)fd;
    res = epoll_ctl(s->epoll_fd, first, fd, &event);
    if (res < 0 && errno == ENOENT) {
        other = watch->registered != 0;
        res = epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event);
    } else if (res < 0 && errno == EEXIST) {
        res = epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, fd, &event);
    }
    if (res < 0) {
        watch->known = false;
        watch->registered = 0;
        /* ENOSPC says that the user has too many epoll entries. Owners handle that like ENOMEM. */
        return errno == ENOSPC ? -ENOMEM : -errno;
    }
    watch->known = true;
    watch->registered = wanted;
    return other;
}

/* Ends a request and posts its last completion. */
void soft_finish(softring *s, soft_request *request, int res, unsigned flags) {
    uint64_t user_data = request->sqe.user_data;
    bool quiet = res >= 0 && request->sqe.flags & IOSQE_CQE_SKIP_SUCCESS;

    if (request->state == SOFT_WAITING)
        soft_leave_watch(s, request);
    soft_free_request(s, request);
    if (!quiet)
        soft_post(s, user_data, res, flags);
}

/* Makes *request* wait for *events* on its descriptor. Returns 0, or -errno if that is
 * impossible. */
int soft_await(softring *s, soft_request *request, uint32_t events, soft_try *attempt) {
    int fd = request->sqe.fd, res;
    soft_watch *watch;

    assert(request->state == SOFT_NEW);
    if (fd < 0)
        return -EBADF;
    if (fd >= s->watches_size && (res = soft_grow_watches(s, fd)) < 0)
        return res;
    watch = &s->watches[fd];
    if (watch->first == NULL) {
        watch->generation++;
        watch->registered = 0;
        watch->has_lasting_error = false;
    }
    request->events = events;
    request->attempt = attempt;
    request->state = SOFT_WAITING;
    request->previous = NULL;
    request->next = watch->first;
    if (request->next != NULL)
        request->next->previous = request;
    watch->first = request;
    res = soft_register(s, fd, soft_wanted(watch));
    if (res < 0) {
        soft_leave_watch(s, request);
        return res;
    }
    /* The file of the earlier requests was closed; they must not get events of the new one. */
    while (res > 0 && request->next != NULL)
        soft_finish(s, request->next, -EBADF, 0);
    return 0;
}

/* Removes a request from the list of its watch; the registration changes later, if at all. */
void soft_leave_watch(softring *s, soft_request *request) {
    soft_watch *watch = &s->watches[request->sqe.fd];

    assert(request->state == SOFT_WAITING);
    if (request->previous != NULL)
        request->previous->next = request->next;
    else if (watch->first == request)
        watch->first = request->next;
    if (request->next != NULL)
        request->next->previous = request->previous;
    request->previous = request->next = NULL;
    request->state = SOFT_NEW;
}

/* Removes from epoll a descriptor that no request waits for. The descriptor may be about to be
 * closed, and if it has a duplicate, perhaps in another process, epoll would go on to report its
 * events. Returns whether the entry was removed or is still needed. */
bool soft_drop_watch(softring *s, int fd) {
    soft_watch *watch = &s->watches[fd];
    struct epoll_event event = {0};

    if (watch->first != NULL || !watch->known)
        return watch->first != NULL;
    watch->known = false;
    watch->registered = 0;
    return epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, fd, &event) == 0;
}

/* Ends a request that waits for a descriptor, because it is cancelled. */
void soft_end(softring *s, soft_request *request) {
    int fd = request->sqe.fd;

    soft_finish(s, request, request->sent ? (int)request->sent : -ECANCELED, 0);
    soft_drop_watch(s, fd);
}

/* Registers what the requests of a descriptor need; ends them if their file has gone. */
static void soft_register_all(softring *s, int fd) {
    soft_watch *watch = &s->watches[fd];
    soft_request *request;
    int res = soft_register(s, fd, soft_wanted(watch));

    if (res == 0)
        return;
    while ((request = watch->first) != NULL)
        soft_finish(s, request, res < 0 ? res : -EBADF, 0);
    soft_drop_watch(s, fd);
}

/* Returns whether the registration must change. A surplus event costs something only when epoll
 * reports it. */
static bool soft_is_stale(uint32_t registered, uint32_t wanted, uint32_t events) {
    return (registered ^ wanted) & (EPOLLET | EPOLLONESHOT) || wanted & ~registered ||
           events & registered & ~wanted;
}

/* Updates the registration after an event. *left*: an attempt has left something in the
 * descriptor. */
static void soft_renew(softring *s, int fd, uint32_t events, bool left) {
    soft_watch *watch = &s->watches[fd];
    uint32_t wanted;

    if (watch->first == NULL) {
        /* After EPOLLONESHOT the entry is silent; in other modes it would report again and
         * again. */
        if (watch->registered & EPOLLONESHOT)
            watch->registered = 0;
        else if (!soft_drop_watch(s, fd))
            s->has_stale_file = true;
        return;
    }
    if (events & (EPOLLERR | EPOLLHUP))
        /* The error may last, as in the error queue of IP_RECVERR, which no receive empties. */
        watch->has_lasting_error = true;
    wanted = soft_wanted(watch);
    if (wanted & EPOLLONESHOT || (left && wanted & EPOLLET) ||
        soft_is_stale(watch->registered, wanted, events))
        soft_register_all(s, fd);
}

static void soft_on_event(softring *s, const struct epoll_event *event) {
    int fd = (int)(uint32_t)event->data.u64;
    soft_watch *watch = &s->watches[fd];
    soft_request *request, *next;
    bool left = false;

    if (watch->generation != event->data.u64 >> 32) {
        s->has_stale_file = true;
        return;
    }
    for (request = watch->first; request != NULL; request = next) {
        next = request->next;
        if (!(event->events & (request->events | EPOLLERR | EPOLLHUP)))
            continue;
        left |= soft_chooses(s, SOFT_EVENT_LATE) || request->attempt(s, request, event->events);
    }
    soft_renew(s, fd, event->events, left);
}

static int soft_register_at_sleep_epoll(softring *s) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = s->sleep_epoll_data};

    if (s->sleep_epoll_fd < 0)
        return 0;
    return epoll_ctl(s->sleep_epoll_fd, EPOLL_CTL_ADD, s->epoll_fd, &event) < 0 ? -errno : 0;
}

/* Replaces the epoll instance by one that has only the descriptors with requests. A file whose
 * descriptor was closed here, while a duplicate is open elsewhere, cannot be removed from epoll any
 * more and would be reported for ever. */
static void soft_replace_epoll(softring *s) {
    int fresh = epoll_create1(EPOLL_CLOEXEC), fd;

    s->has_stale_file = false;
    if (fresh < 0)
        return;
    /* Keep the old number: *fresh* may have got the number of the closed file, and the program may
     * close that number once more. */
    fd = dup3(fresh, s->epoll_fd, O_CLOEXEC);
    close(fresh);
    if (fd < 0)
        return;
    if (s->pool != NULL)
        soft_watch_pool(s, s->pool->wake_fd);
    soft_register_at_sleep_epoll(s);
    for (fd = 0; fd < s->watches_size; fd++) {
        s->watches[fd].known = false;
        s->watches[fd].registered = 0;
        if (s->watches[fd].first != NULL)
            soft_register_all(s, fd);
    }
}

static int soft_wait(softring *s, struct epoll_event *events, int64_t timeout_ns) {
    int count;

    if (s->world != NULL)
        return s->world->wait(s->world->owner, s->epoll_fd, events, SOFT_EVENTS_MAX, timeout_ns);
    count = uring_epoll_wait(s->epoll_fd, events, SOFT_EVENTS_MAX, timeout_ns);
    return count < 0 ? -errno : count;
}

/* Makes the threads for files wake the calling thread, which is about to sleep. Returns false if
 * they already have a result. */
bool soft_fall_asleep(softring *s) {
    if (s->pool == NULL)
        return true;
    atomic_store(&s->pool->sleeping, true);
    /* A thread that finished before it could see `sleeping` has only set the flag. */
    return !(__atomic_load_n(s->queues.sq.kflags, __ATOMIC_SEQ_CST) & IORING_SQ_TASKRUN);
}

void soft_wake_up(softring *s) {
    if (s->pool != NULL)
        atomic_store(&s->pool->sleeping, false);
}

int soft_join_sleep_epoll(softring *s, int sleep_epoll_fd, uint64_t data) {
    struct epoll_event event = {0};

    if (s->sleep_epoll_fd >= 0)
        epoll_ctl(s->sleep_epoll_fd, EPOLL_CTL_DEL, s->epoll_fd, &event);
    if (sleep_epoll_fd >= 0 && sleep_epoll_fd < s->watches_size)
        /* A request may have waited for this instance (EPOLL_WAIT). The ring's own instance, which
         * is added to it below, must not contain it. */
        soft_drop_watch(s, sleep_epoll_fd);
    s->sleep_epoll_fd = sleep_epoll_fd;
    s->sleep_epoll_data = data;
    return soft_register_at_sleep_epoll(s);
}

/* Waits *timeout_ns* (-1: no limit) for events, and retries the requests that wait for them.
 * Returns the number of events, or -errno. */
int soft_look(softring *s, int64_t timeout_ns) {
    struct epoll_event events[SOFT_EVENTS_MAX];
    int count, i;

    if (timeout_ns != 0 && !soft_fall_asleep(s))
        timeout_ns = 0;
    count = soft_wait(s, events, timeout_ns);
    soft_wake_up(s);
    if (count == 0 && timeout_ns == 0) {
        s->quiet_looks++;
        s->last_look_ns = uring_clock_ns();
        return 0;
    }
    s->quiet_looks = 0;
    for (i = 0; i < count; i++)
        if (events[i].data.u64 != SOFT_POOL_DATA)
            soft_on_event(s, &events[i]);
    if (s->has_stale_file)
        soft_replace_epoll(s);
    if (count == SOFT_EVENTS_MAX)
        soft_call_again(s);
    return count;
}

/* Registers the eventfd by which the threads for files end a sleep. Nothing reads it, so it is
 * edge-triggered. */
int soft_watch_pool(softring *s, int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};

    event.data.u64 = SOFT_POOL_DATA;
    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}
