/* The completions of a software ring, and its requests in flight. */
#include "_softring/queue.h"

/* ── completions ────────────────────────────────────────────────────────────────────────────── */

unsigned soft_ready(const softring *s) {
    return *s->queues.cq.ktail - *s->queues.cq.khead;
}

/* Returns whether the queue has room for a completion. If not, operations that can wait, such as
 * receives, wait. */
bool soft_has_room(const softring *s) {
    return s->overflow == NULL && soft_ready(s) < s->queues.cq.ring_entries &&
           !soft_chooses(s, SOFT_NO_ROOM);
}

/* Makes the owner enter again before it sleeps. */
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
        /* Like the kernel: the next enter returns EBADR, and the owner replaces the ring. */
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

void soft_flush_overflow(softring *s) {
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

void soft_answer(softring *s, const struct io_uring_sqe *sqe, int res) {
    if (res < 0 || !(sqe->flags & IOSQE_CQE_SKIP_SUCCESS))
        soft_post(s, sqe->user_data, res, 0);
}

/* ── requests ───────────────────────────────────────────────────────────────────────────────── */

static soft_request **soft_bucket(const softring *s, uint64_t user_data) {
    /* Mix the bits: user_data is an address, whose lowest bits vary little. */
    uint64_t mixed = user_data * UINT64_C(0x9E3779B97F4A7C15);

    return &s->table[(mixed >> 32) & (s->table_size - 1)];
}

static void soft_grow_table(softring *s) {
    unsigned old_size = s->table_size, bucket;
    soft_request **old = s->table, **grown = calloc(2 * (size_t)old_size, sizeof(*grown));
    soft_request *request, *next, **place;

    /* Without memory the lists of the buckets just get longer. */
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

/* Makes a request for a submission, which soft_find() finds by its user_data from now on. Returns
 * NULL without memory. */
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

/* Removes a request from the table. */
void soft_forget(softring *s, soft_request *request) {
    soft_request **place = soft_bucket(s, request->sqe.user_data);

    while (*place != NULL && *place != request)
        place = &(*place)->hashed;
    /* A request is forgotten once. */
    assert(*place == request);
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

soft_request *soft_find(const softring *s, uint64_t user_data) {
    soft_request *request = *soft_bucket(s, user_data);

    while (request != NULL && request->sqe.user_data != user_data)
        request = request->hashed;
    return request;
}

/* Calls *visit* for every request; it may free that request. */
void soft_walk(softring *s, void (*visit)(softring *s, soft_request *request)) {
    soft_request *request, *next;
    unsigned bucket;

    for (bucket = 0; bucket < s->table_size; bucket++)
        for (request = s->table[bucket]; request != NULL; request = next) {
            next = request->hashed;
            visit(s, request);
        }
}
