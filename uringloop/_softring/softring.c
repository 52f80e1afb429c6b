/* The queues of a software ring: submissions in, completions out, cancelling, entering. */
#include "_softring/state.h"

/* Looks that find nothing before a turn may go without one, and for how long it then may: a look
 * takes 0.2 us, a turn that has nothing to do with the kernel 0.5. A program that is the cause of
 * its own events, as tests are, finds them in the next turn. */
#define SOFT_QUIET_LOOKS 64
#define SOFT_LOOK_EVERY_NS 10000
/* Lists of requests at first, one for each hash; they grow with their number. */
#define SOFT_TABLE_MIN 64

/* ── lifetime ───────────────────────────────────────────────────────────────────────────────── */

/* Has the queues be where liburing looks for them. */
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
                        int *error) {
    softring *s = calloc(1, sizeof(*s));

    *error = -ENOMEM;
    if (s == NULL)
        return NULL;
    s->epoll_fd = s->doors_fd = -1;
    s->table_size = SOFT_TABLE_MIN;
    s->table = calloc(s->table_size, sizeof(*s->table));
    s->memory = calloc(1, sq_entries * sizeof(struct io_uring_sqe) +
                              cq_entries * sizeof(struct io_uring_cqe));
    if (s->table != NULL && s->memory != NULL) {
        soft_lay_out(s, sq_entries, cq_entries);
        *queues = s->queues;
        *error = soft_open_waits(s);
    }
    if (*error < 0) {
        softring_close(s);
        return NULL;
    }
    return s;
}

/* Calls for every request, which it may free. */
static void soft_walk(softring *s, void (*visit)(softring *s, soft_request *request)) {
    soft_request *request, *next;
    unsigned bucket;

    for (bucket = 0; bucket < s->table_size; bucket++)
        for (request = s->table[bucket]; request != NULL; request = next) {
            next = request->hashed;
            visit(s, request);
        }
}

/* What no thread has begun is not begun any more, but for a close: the descriptor would be lost. And
 * no thread waits on for somebody. */
static void soft_take_back(softring *s, soft_request *request) {
    if (request->state != SOFT_GIVEN || request->sqe.opcode == IORING_OP_CLOSE)
        return;
    if (!soft_withdraw(s, request) && !soft_give_up(s, request))
        soft_stop(s, request);
}

/* What the threads have is the pool's to free. */
static void soft_free_own(softring *s, soft_request *request) {
    if (request->state != SOFT_GIVEN)
        soft_free_request(s, request);
}

void softring_close(softring *s) {
    soft_request *request;
    soft_overflow *overflow;

    if (s->table != NULL) {
        soft_walk(s, soft_take_back);
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
    /* The memory is this process's copy, but its locks may be held by threads that are not here. */
    close(s->epoll_fd);
    if (s->pool != NULL)
        close(s->pool->wake_fd);
}

void softring_enable(softring *s) {
    s->owner = pthread_self();
    s->enabled = true;
}

/* ── completions ────────────────────────────────────────────────────────────────────────────── */

unsigned soft_ready(const softring *s) {
    return *s->queues.cq.ktail - *s->queues.cq.khead;
}

/* Whether a completion fits the queue: what can wait, such as a receive, waits otherwise. */
bool soft_has_room(const softring *s) {
    return s->overflow == NULL && soft_ready(s) < s->queues.cq.ring_entries &&
           !soft_fault(SOFT_FAULT_OVERFLOW);
}

/* Has the owner enter again before it sleeps. */
void soft_call_again(softring *s) {
    __atomic_fetch_or(s->queues.sq.kflags, IORING_SQ_TASKRUN, __ATOMIC_SEQ_CST);
}

static void soft_put(softring *s, const struct io_uring_cqe *completion) {
    struct io_uring_cq *cq = &s->queues.cq;
    struct io_uring_cqe *place = &cq->cqes[*cq->ktail & cq->ring_mask];

    place->user_data = completion->user_data;
    place->res = completion->res;
    place->flags = completion->flags;
    io_uring_smp_store_release(cq->ktail, *cq->ktail + 1);
}

void soft_post(softring *s, uint64_t user_data, int res, unsigned flags) {
    struct io_uring_cqe completion = {.user_data = user_data, .res = res, .flags = flags};
    soft_overflow *kept;

    if (soft_has_room(s)) {
        soft_put(s, &completion);
        return;
    }
    kept = malloc(sizeof(*kept));
    if (kept == NULL) {
        /* As the kernel: the next enter tells by EBADR, and the owner begins anew. */
        s->lost = true;
        return;
    }
    kept->next = NULL;
    kept->completion = completion;
    if (s->overflow == NULL)
        s->overflow = kept;
    else
        s->overflow_last->next = kept;
    s->overflow_last = kept;
    __atomic_fetch_or(s->queues.sq.kflags, IORING_SQ_CQ_OVERFLOW, __ATOMIC_SEQ_CST);
}

static void soft_flush_overflow(softring *s) {
    soft_overflow *kept;

    if (s->overflow == NULL)
        return;
    while ((kept = s->overflow) != NULL && soft_ready(s) < s->queues.cq.ring_entries) {
        soft_put(s, &kept->completion);
        s->overflow = kept->next;
        free(kept);
    }
    if (s->overflow == NULL)
        __atomic_fetch_and(s->queues.sq.kflags, ~IORING_SQ_CQ_OVERFLOW, __ATOMIC_SEQ_CST);
}

/* The completion of what was done at once. */
void soft_answer(softring *s, const struct io_uring_sqe *sqe, int res) {
    if (res < 0 || !(sqe->flags & IOSQE_CQE_SKIP_SUCCESS))
        soft_post(s, sqe->user_data, res, 0);
}

/* ── requests ───────────────────────────────────────────────────────────────────────────────── */

static soft_request **soft_bucket(const softring *s, uint64_t user_data) {
    /* An address, of which the lowest bits tell little. */
    uint64_t mixed = user_data * UINT64_C(0x9E3779B97F4A7C15);

    return &s->table[(mixed >> 32) & (s->table_size - 1)];
}

static void soft_grow_table(softring *s) {
    unsigned old_size = s->table_size, bucket;
    soft_request **old = s->table, **grown = calloc(2 * (size_t)old_size, sizeof(*grown));
    soft_request *request, *next, **place;

    /* Without memory the chains get longer. */
    if (grown == NULL)
        return;
    s->table = grown;
    s->table_size = 2 * old_size;
    for (bucket = 0; bucket < old_size; bucket++)
        for (request = old[bucket]; request != NULL; request = next) {
            next = request->hashed;
            place = soft_bucket(s, request->sqe.user_data);
            request->hashed = *place;
            *place = request;
        }
    free(old);
}

/* Returns a request for a submission, known by its user_data from now on; NULL without memory. */
soft_request *soft_new_request(softring *s, const struct io_uring_sqe *sqe) {
    soft_request *request = s->spare, **place;

    if (request != NULL)
        s->spare = request->next;
    else if ((request = malloc(sizeof(*request))) == NULL)
        return NULL;
    memset(request, 0, sizeof(*request));
    request->sqe = *sqe;
    if (s->request_count >= s->table_size)
        soft_grow_table(s);
    place = soft_bucket(s, sqe->user_data);
    request->hashed = *place;
    *place = request;
    s->request_count++;
    return request;
}

/* Has a request be known no more. */
void soft_forget(softring *s, soft_request *request) {
    soft_request **place = soft_bucket(s, request->sqe.user_data);

    while (*place != NULL && *place != request)
        place = &(*place)->hashed;
    if (*place != NULL) {
        *place = request->hashed;
        s->request_count--;
    }
}

void soft_free_request(softring *s, soft_request *request) {
    soft_forget(s, request);
    free(request->vectors);
    free(request->held);
    request->next = s->spare;
    s->spare = request;
}

/* The last completion of a request, which waits no more. */
void soft_finish(softring *s, soft_request *request, int res, unsigned flags) {
    uint64_t user_data = request->sqe.user_data;
    bool quiet = res >= 0 && request->sqe.flags & IOSQE_CQE_SKIP_SUCCESS;

    if (request->state == SOFT_WAITING)
        soft_leave_watch(s, request);
    soft_free_request(s, request);
    if (!quiet)
        soft_post(s, user_data, res, flags);
}

static soft_request *soft_find(const softring *s, uint64_t user_data) {
    soft_request *request = *soft_bucket(s, user_data);

    while (request != NULL && request->sqe.user_data != user_data)
        request = request->hashed;
    return request;
}

/* Ends a wait. */
static void soft_end(softring *s, soft_request *request) {
    int fd = request->sqe.fd;

    soft_finish(s, request, request->sent ? (int)request->sent : -ECANCELED, 0);
    soft_drop_watch(s, fd);
}

/* As a simulated kernel may: goes on with what shall be cancelled, and ends it later, maybe. */
static bool soft_overtake(softring *s, soft_request *request) {
    bool happens = soft_fault(SOFT_FAULT_OVERTAKEN);

    if (happens) {
        request->doomed = soft_fault(SOFT_FAULT_OVERTAKEN);
        if (request->sqe.opcode != IORING_OP_POLL_ADD)
            soft_attempt(s, request, request->events);
    }
    return happens;
}

/* Ends what can be ended, as the kernel does: a send that has begun tells how much has gone. */
static int soft_cancel(softring *s, uint64_t user_data) {
    soft_request *request = soft_find(s, user_data), *linked;

    if (request == NULL)
        return -ENOENT;
    if (request->state == SOFT_WAITING && soft_overtake(s, request)) {
        request = soft_find(s, user_data);
        if (request == NULL)
            return -ENOENT;
        if (request->doomed)
            return -EALREADY;
    }
    if (request->state == SOFT_WAITING) {
        soft_end(s, request);
        return 0;
    }
    if (request->state == SOFT_GIVEN && soft_give_up(s, request)) {
        soft_post(s, user_data, -ECANCELED, 0);
        return 0;
    }
    if (request->state == SOFT_GIVEN && soft_stop(s, request))
        return 0;
    if (request->state != SOFT_GIVEN || !soft_withdraw(s, request))
        return -EALREADY;
    for (; request != NULL; request = linked) {
        linked = request->linked;
        soft_finish(s, request, -ECANCELED, 0);
    }
    return 0;
}

/* ── entering ───────────────────────────────────────────────────────────────────────────────── */

static void soft_submit_one(softring *s, const struct io_uring_sqe *sqe, soft_request **chain) {
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
    soft_request *chain = NULL;

    if (count)
        s->quiet_looks = 0;
    while (head != tail) {
        soft_submit_one(s, &sq->sqes[head & sq->ring_mask], &chain);
        io_uring_smp_store_release(sq->khead, ++head);
    }
    if (chain != NULL)
        soft_submit_file(s, NULL, &chain);
    return (int)count;
}

static bool soft_is_told(const softring *s) {
    return __atomic_load_n(s->queues.sq.kflags, __ATOMIC_SEQ_CST) & IORING_SQ_TASKRUN;
}

/* Takes back the flag, and then what a thread has done before it set that. */
static void soft_hear(softring *s) {
    if (!soft_is_told(s))
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
        /* First what may overflow: nobody sleeps beside a completion. */
        soft_hear(s);
        soft_flush_overflow(s);
        enough = soft_ready(s) >= wanted;
        res = soft_look(s, enough ? 0 : left);
        /* The flag stays, for it may be there for another reason. */
        if (s->pool != NULL && soft_is_told(s))
            soft_take_done(s);
        if (res < 0)
            return res;
        /* A lack of buffers ends when the owner has looked at what there is. */
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

/* Ends what was cancelled some time ago. */
static void soft_end_doomed(softring *s, soft_request *request) {
    if (request->doomed && request->state == SOFT_WAITING)
        soft_end(s, request);
}

int softring_enter(softring *s, unsigned wanted, bool get_events, int64_t timeout_ns) {
    int submitted, res = 0;

    if (!s->enabled)
        return -EBADFD;
    if (!pthread_equal(s->owner, pthread_self()))
        return -EEXIST;
    if (soft_fault(SOFT_FAULT_BUSY))
        return soft_fault(SOFT_FAULT_BUSY) ? -EBUSY : -EAGAIN;
    if (SOFT_SIMULATED)
        soft_walk(s, soft_end_doomed);
    submitted = soft_submit(s);
    if (s->lost) {
        s->lost = false;
        return -EBADR;
    }
    if (get_events && wanted && soft_fault(SOFT_FAULT_INTERRUPTED))
        res = -EINTR;
    else if (get_events)
        res = soft_get_events(s, wanted, timeout_ns);
    return submitted ? submitted : res;
}

void softring_post(softring *s, uint64_t user_data, int res, unsigned flags) {
    soft_post(s, user_data, res, flags);
}

bool softring_is_due(softring *s) {
    if (s->quiet_looks < SOFT_QUIET_LOOKS)
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
