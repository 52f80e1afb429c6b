/* A ring whose submissions a thread of the kernel takes (SQPOLL), and its completions. The thread
 * falls asleep when it finds no submission; the loop wakes it if it sees that.
 *
 * No submission may be left while the thread sleeps; what the thread reads of a submission, and the
 * loop of a completion, is what was written; and neither writes to an entry that is still read. */
#include "checker.h"

#include "_ring/uring.h"

/* All submissions have room, but only one completion: the kernel's thread waits for the loop. */
enum { SUBMISSIONS = 2, COMPLETIONS = 1 };

static struct {
    uring u;
    unsigned sq_head, sq_tail, sq_flags, cq_head, cq_tail, sq_mask, cq_mask, entries;
    struct io_uring_sqe sqes[SUBMISSIONS];
    struct io_uring_cqe cqes[COMPLETIONS];
    event wake;   /* of the kernel's thread */
    event posted; /* a completion */
    unsigned completed;
} model;

/* ── the kernel, as io_sq_thread() and io_sqring_entries() order their accesses ─────────────── */

static void complete(uint64_t user_data) {
    unsigned tail = model.cq_tail;

    /* The kernel posts to a queue that has room. */
    while (tail - __atomic_load_n(&model.cq_head, __ATOMIC_ACQUIRE) == COMPLETIONS)
        checker_yield();
    model.cqes[tail & model.cq_mask].user_data = user_data;
    __atomic_store_n(&model.cq_tail, tail + 1, __ATOMIC_RELEASE);
    event_write(&model.posted);
}

static bool take(unsigned *head) {
    uint64_t user_data;

    if (*head == __atomic_load_n(&model.sq_tail, __ATOMIC_ACQUIRE))
        return false;
    user_data = model.sqes[*head & model.sq_mask].user_data;
    __atomic_store_n(&model.sq_head, ++*head, __ATOMIC_RELEASE);
    complete(user_data);
    return true;
}

static void *kernel(void *with) {
    unsigned head = 0;

    (void)with;
    while (head != SUBMISSIONS) {
        if (take(&head))
            continue;
        __atomic_fetch_or(&model.sq_flags, IORING_SQ_NEED_WAKEUP, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (head == __atomic_load_n(&model.sq_tail, __ATOMIC_RELAXED))
            event_wait(&model.wake);
        __atomic_fetch_and(&model.sq_flags, ~IORING_SQ_NEED_WAKEUP, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* ── the loop ───────────────────────────────────────────────────────────────────────────────── */

static void submit(uint64_t user_data) {
    struct io_uring_sqe *sqe = uring_get_submission(&model.u);
    must(sqe != NULL, "there is no room");
    sqe->user_data = user_data;
    if (uring_thread_flags(&model.u, uring_publish(&model.u)) & IORING_ENTER_SQ_WAKEUP)
        event_write(&model.wake);
}

static void reap(uint64_t user_data) {
    unsigned head = uring_head(&model.u);

    while (head == uring_tail(&model.u))
        event_wait(&model.posted);
    must(uring_completion(&model.u, head)->user_data == user_data, "a completion is of another");
    uring_consume(&model.u, head + 1);
    model.completed++;
}

MODEL_RESET {
    struct io_uring_sq *sq = &model.u.ring.sq;
    struct io_uring_cq *cq = &model.u.ring.cq;

    memset(&model, 0, sizeof(model));
    model.entries = SUBMISSIONS;
    model.sq_mask = SUBMISSIONS - 1;
    model.u.ring.flags = IORING_SETUP_SQPOLL;
    model.u.threaded = true;
    sq->khead = &model.sq_head;
    sq->ktail = &model.sq_tail;
    sq->kflags = &model.sq_flags;
    sq->kring_entries = &model.entries;
    sq->kring_mask = &model.sq_mask;
    cq->kring_mask = &model.cq_mask;
    sq->ring_entries = SUBMISSIONS;
    sq->ring_mask = SUBMISSIONS - 1;
    sq->sqes = model.sqes;
    cq->khead = &model.cq_head;
    cq->ktail = &model.cq_tail;
    cq->cqes = model.cqes;
}

void model_begin(void) {
    checker_start(kernel, NULL);
    for (uint64_t user_data = 1; user_data <= SUBMISSIONS; user_data++)
        submit(user_data);
    for (uint64_t user_data = 1; user_data <= SUBMISSIONS; user_data++)
        reap(user_data);
}

void model_end(void) { must(model.completed == SUBMISSIONS, "a completion was lost"); }
