/* A software ring: opening and closing it, entering it, submitting, cancelling. */
#include "_softring/softring.h"

#include "_kernel/clock.h"
#include "_softring/files.h"
#include "_softring/queue.h"
#include "_softring/sockets.h"
#include "_softring/threads.h"
#include "_softring/waits.h"

/* A look is one call of epoll_wait(2) with a timeout of zero. After SOFT_QUIET_LOOKS looks in a row
 * that found no event, turns that need no system call look only every SOFT_LOOK_EVERY_NS, because a
 * look takes 0.2 us and such a turn 0.5 us. Until then every turn looks, so that a program that
 * causes its own events, as tests do, finds them in the next turn. */
#define SOFT_QUIET_LOOKS 64
#define SOFT_LOOK_EVERY_NS 10000
/* Initial size of the hash table of requests; it grows with their number. */
#define SOFT_TABLE_MIN 64

/* ── lifetime ───────────────────────────────────────────────────────────────────────────────── */

/* Sets the pointers to the queues, where liburing looks for them. */
static void soft_lay_out(softring *s, unsigned sq_entries, unsigned cq_entries) {
    struct io_uring_sq *sq = &s->queues.sq;
    struct io_uring_cq *cq = &s->queues.cq;
    unsigned *index = s->indexes;

    s->queues.ring_fd = s->queues.enter_ring_fd = -1;
    sq->khead = index++;
    sq->ktail = index++;
    sq->kflags = index++;
    sq->kdropped = index++;
    sq->kring_mask = index++;
    sq->kring_entries = index++;
    *sq->kring_mask = sq->ring_mask = sq_entries - 1;
    *sq->kring_entries = sq->ring_entries = sq_entries;
    cq->khead = index++;
    cq->ktail = index++;
    cq->kflags = index++;
    cq->koverflow = index++;
    cq->kring_mask = index++;
    cq->kring_entries = index++;
    *cq->kring_mask = cq->ring_mask = cq_entries - 1;
    *cq->kring_entries = cq->ring_entries = cq_entries;
    sq->sqes = (struct io_uring_sqe *)s->memory;
    cq->cqes = (struct io_uring_cqe *)(s->memory + sq_entries * sizeof(struct io_uring_sqe));
}

softring *softring_open(struct io_uring *queues, unsigned sq_entries, unsigned cq_entries,
                        const char **call, int *error) {
    softring *s = calloc(1, sizeof(*s));

    *call = "calloc";
    *error = -ENOMEM;
    if (s == NULL)
        return NULL;
    s->epoll_fd = s->sleep_epoll_fd = -1;
    s->table_size = SOFT_TABLE_MIN;
    s->table = calloc(s->table_size, sizeof(*s->table));
    s->memory = calloc(1, sq_entries * sizeof(struct io_uring_sqe) +
                              cq_entries * sizeof(struct io_uring_cqe));
    if (s->table != NULL && s->memory != NULL) {
        soft_lay_out(s, sq_entries, cq_entries);
        *queues = s->queues;
        *error = soft_open_waits(s, call);
    }
    if (*error < 0) {
        softring_close(s);
        return NULL;
    }
    return s;
}

/* Withdraws a request that no thread has begun, except a close, whose descriptor would leak. Ends
 * the wait of a thread for a peer. */
static void soft_abandon(softring *s, soft_request *request) {
    if (request->state == SOFT_GIVEN && request->sqe.opcode != IORING_OP_CLOSE)
        soft_stop_work(s, request);
}

/* Closes the descriptor that a request has opened, if the completion is still to come. */
static void soft_close_opened(softring *s, soft_request *request) {
    (void)s;
    if (request->state == SOFT_KEPT && request->sqe.opcode == IORING_OP_OPENAT && request->res >= 0)
        close(request->res);
}

/* Frees a request, unless the threads have it: then the pool frees it. */
static void soft_free_own(softring *s, soft_request *request) {
    if (request->state != SOFT_GIVEN)
        soft_free_request(s, request);
}

void softring_close(softring *s) {
    soft_request *request;
    soft_overflow *overflow;

    if (s->table != NULL) {
        soft_walk(s, soft_close_opened);
        soft_walk(s, soft_abandon);
        soft_walk(s, soft_free_own);
    }
    if (s->pool != NULL)
        soft_close_pool(s);
    while ((request = s->spare) != NULL) {
        s->spare = request->next;
        free(request);
    }
    while ((overflow = s->overflow) != NULL) {
        s->overflow = overflow->next;
        free(overflow);
    }
    soft_close_waits(s);
    free(s->table);
    free(s->memory);
    free(s);
}

void softring_leave_to_parent(softring *s) {
    /* Do not free the copied memory: threads that do not exist in the child may hold its locks. */
    close(s->epoll_fd);
    if (s->pool != NULL)
        close(s->pool->wake_fd);
}

void softring_enable(softring *s) {
    s->owner = pthread_self();
    s->enabled = true;
}

/* ── cancelling ─────────────────────────────────────────────────────────────────────────────── */

/* Cancels a request if possible. As in the kernel, a send in progress completes with the number of
 * bytes that it has sent. */
static int soft_cancel(softring *s, uint64_t user_data) {
    soft_request *request = soft_find(s, user_data);
    int failure;

    if (request == NULL)
        return -ENOENT;
    if (s->world != NULL && request->state == SOFT_WAITING) {
        failure = s->world->overtakes(s->world->owner, s, request);
        /* The world may have let the request go on, and the request may have ended. */
        request = soft_find(s, user_data);
        if (request == NULL)
            return -ENOENT;
        /* A thread may have the request by now; then it is interrupted below. */
        if (failure < 0 && request->state == SOFT_WAITING)
            return failure;
    }
    if (request->state == SOFT_WAITING) {
        soft_end(s, request);
        return 0;
    }
    if (request->state != SOFT_GIVEN)
        return -EALREADY;
    switch (soft_stop_work(s, request)) {
    case SOFT_WORK_NONE:
        soft_cancel_chain(s, request);
        return 0;
    case SOFT_WORK_DISCARDED:
        soft_post(s, user_data, -ECANCELED, 0);
        return 0;
    case SOFT_WORK_INTERRUPTED:
        return 0;
    default:
        assert(request->state == SOFT_GIVEN);
        return -EALREADY;
    }
}

/* ── entering ───────────────────────────────────────────────────────────────────────────────── */

static void soft_submit_one(softring *s, const struct io_uring_sqe *sqe, soft_chain *chain) {
    if (sqe->opcode == IORING_OP_ASYNC_CANCEL)
        soft_answer(s, sqe, soft_cancel(s, sqe->addr));
    else if (sqe->opcode == IORING_OP_NOP)
        soft_answer(s, sqe, 0);
    else if (!soft_submit_socket(s, sqe))
        soft_submit_file(s, sqe, chain);
}

static int soft_submit(softring *s) {
    struct io_uring_sq *sq = &s->queues.sq;
    unsigned head = *sq->khead, tail = *sq->ktail, count = tail - head;
    soft_chain chain = {0};

    if (count)
        s->quiet_looks = 0;
    while (head != tail) {
        soft_submit_one(s, &sq->sqes[head & sq->ring_mask], &chain);
        io_uring_smp_store_release(sq->khead, ++head);
    }
    soft_end_chain(s, &chain);
    return (int)count;
}

static bool soft_has_task_work(const softring *s) {
    return __atomic_load_n(s->queues.sq.kflags, __ATOMIC_SEQ_CST) & IORING_SQ_TASKRUN;
}

/* Clears the flag, and then takes what a thread finished before it set the flag. */
static void soft_take_results(softring *s) {
    if (!soft_has_task_work(s))
        return;
    __atomic_fetch_and(s->queues.sq.kflags, ~IORING_SQ_TASKRUN, __ATOMIC_SEQ_CST);
    if (s->pool != NULL)
        soft_take_done(s);
}

static int soft_get_events(softring *s, unsigned wanted, int64_t timeout_ns) {
    int64_t end = timeout_ns > 0 && wanted ? uring_clock_ns() + timeout_ns : 0, left = timeout_ns;
    bool enough;
    int res;

    s->starved = false;
    for (;;) {
        /* Post what is kept first: the loop must not sleep while there is a completion. */
        soft_take_results(s);
        if (s->world != NULL)
            s->world->complete(s->world->owner, s);
        soft_flush_overflow(s);
        enough = soft_ready(s) >= wanted;
        res = soft_look(s, enough ? 0 : left);
        /* Keep the flag: it may be set for another reason. */
        if (s->pool != NULL && soft_has_task_work(s))
            soft_take_done(s);
        if (res < 0)
            return res;
        /* A starved receive needs buffers, which the owner gives back when it has run. */
        if (enough || soft_ready(s) >= wanted || s->starved)
            return 0;
        if (end) {
            left = end - uring_clock_ns();
            if (left <= 0)
                return -ETIME;
        } else if (timeout_ns == 0) {
            return -ETIME;
        }
    }
}

int softring_enter(softring *s, unsigned wanted, unsigned flags, int64_t timeout_ns) {
    bool get_events = flags & IORING_ENTER_GETEVENTS;
    int submitted, res = 0;

    if (!s->enabled)
        return -EBADFD;
    if (!pthread_equal(s->owner, pthread_self()))
        return -EEXIST;
    if (s->world != NULL && (res = s->world->enter(s->world->owner, s)) < 0)
        return res;
    submitted = soft_submit(s);
    if (s->lost) {
        s->lost = false;
        return -EBADR;
    }
    if (get_events && wanted && soft_chooses(s, SOFT_WAIT_INTERRUPTED))
        res = -EINTR;
    else if (get_events)
        res = soft_get_events(s, wanted, timeout_ns);
    return submitted ? submitted : res;
}

void softring_post(softring *s, uint64_t user_data, int res, unsigned flags) {
    soft_post(s, user_data, res, flags);
}

bool softring_is_due(softring *s) {
    /* How often a ring with a world looks must not depend on the real time. */
    if (s->quiet_looks < SOFT_QUIET_LOOKS || s->world != NULL)
        return true;
    return uring_clock_ns() - s->last_look_ns >= SOFT_LOOK_EVERY_NS;
}

int softring_register_buffers(softring *s, struct io_uring_buf_ring *buffers, unsigned entries,
                              int group) {
    if (group < 0 || group >= SOFT_GROUPS_MAX)
        return -EINVAL;
    s->groups[group] = (soft_group){.buffers = buffers, .mask = entries - 1};
    return 0;
}

void softring_limit_workers(softring *s, unsigned most) {
    if (s->pool != NULL || soft_open_pool(s) == 0) {
        pthread_mutex_lock(&s->pool->lock);
        s->pool->most = most;
        pthread_mutex_unlock(&s->pool->lock);
    }
}

/* ── accepting ──────────────────────────────────────────────────────────────────────────────── */

int softring_accept(softring *s, int fd, struct sockaddr *name, socklen_t *size) {
    int res;

    if (soft_chooses(s, SOFT_NO_DESCRIPTOR))
        return -EMFILE;
    res = accept4(fd, name, size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return res < 0 ? -errno : res;
}

/* ── a sleep at the caller's epoll instance ─────────────────────────────────────────────────── */

bool softring_fall_asleep(softring *s) {
    return soft_fall_asleep(s);
}

void softring_wake_up(softring *s) {
    soft_wake_up(s);
}

int softring_add_to_epoll(softring *s, int sleep_epoll_fd, uint64_t data) {
    return soft_join_sleep_epoll(s, sleep_epoll_fd, data);
}

/* ── the world ──────────────────────────────────────────────────────────────────────────────── */

void softring_set_world(softring *s, const soft_world *world) {
    s->world = world;
}

void softring_succeed(softring *s, const softring *old) {
    s->world = old->world;
}

bool softring_misses_ends(const softring *s) {
    return s->world != NULL && s->world->misses_ends(s->world->owner);
}

int softring_ended_by(const softring *s, int fd, int res) {
    return s->world == NULL ? res : s->world->ended_by(s->world->owner, fd, res);
}
