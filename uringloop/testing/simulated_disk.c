/* Operations of files of a simulated kernel: the loop's thread executes them, in the order of their
 * submission, and a slow disk completes them later.
 */
#include "testing/simulation.h"

#include <errno.h>
#include <fcntl.h>

#include "_kernel/files.h"
#include "_softring/files.h"
#include "_softring/state.h"
#include "_softring/threads.h"

/* An operation of a slow disk takes SLOW_MIN_NS, doubled fewer than SLOW_DOUBLINGS times: at most
 * 2 s. */
#define SLOW_MIN_NS 1000000
#define SLOW_DOUBLINGS 12

/* Returns whether an operation needs space on the disk. */
static bool makes_file(const struct io_uring_sqe *sqe) {
    const char *path = (const char *)(uintptr_t)sqe->addr;

    switch (sqe->opcode) {
    case IORING_OP_OPENAT:
        return sqe->open_flags & O_CREAT && faccessat(sqe->fd, path, F_OK, 0) != 0;
    case IORING_OP_WRITE:
    case IORING_OP_WRITEV:
    case IORING_OP_MKDIRAT:
    case IORING_OP_SYMLINKAT:
    case IORING_OP_LINKAT:
        return true;
    default:
        return false;
    }
}

static bool uses_disk(const struct io_uring_sqe *sqe) {
    switch (sqe->opcode) {
    case IORING_OP_READ:
    case IORING_OP_READV:
    case IORING_OP_WRITE:
    case IORING_OP_WRITEV:
    case IORING_OP_FSYNC:
        return true;
    default:
        return false;
    }
}

/* Returns -ENOSPC or -EIO if an operation is to fail, otherwise 0. */
static int failure_of(simulation *kernel, const struct io_uring_sqe *sqe) {
    if (makes_file(sqe) && simulation_decide(kernel, FAULT_NO_SPACE))
        return -ENOSPC;
    return uses_disk(sqe) && simulation_decide(kernel, FAULT_BAD_DISK) ? -EIO : 0;
}

void simulated_disturb(simulation *kernel, soft_request *request) {
    struct io_uring_sqe *sqe = &request->sqe;
    simulation_note *note = simulation_note_of(request);
    unsigned size = sqe->len;

    if (sqe->opcode == IORING_OP_READ || sqe->opcode == IORING_OP_WRITE) {
        sqe->len = (unsigned)simulation_shorten(kernel, size);
        note->left_out = size - sqe->len;
    }
    if (!soft_may_wait(sqe))
        note->failure = (short)failure_of(kernel, sqe);
}

/* Executes a chain, as the ring's threads do. */
static void perform_all(soft_request *request) {
    const simulation_note *note;
    bool broken = false;

    for (; request != NULL; request = request->linked) {
        note = simulation_note_of(request);
        request->res = broken          ? -ECANCELED
                       : note->failure ? note->failure
                                       : uring_perform_here(&request->sqe);
        /* Look at linked requests only: the vectors of a single one may have been freed by now. */
        broken = request->linked != NULL &&
                 (request->res < 0 ||
                  (size_t)request->res < soft_bytes_asked(request) + note->left_out);
    }
}

/* Returns how many nanoseconds longer an operation takes, on the simulation's clock. */
static int64_t delay_of(simulation *kernel) {
    if (!simulation_decide(kernel, FAULT_SLOW_DISK))
        return 0;
    return (int64_t)SLOW_MIN_NS << simulation_random_below(kernel, SLOW_DOUBLINGS);
}

/* Keeps a chain until it is due, behind those that are due before it. */
static void keep(softring *s, soft_request *chain, int64_t due_ns) {
    soft_request *request, **place = &s->kept;

    for (request = chain; request != NULL; request = request->linked)
        request->state = SOFT_KEPT;
    simulation_note_of(chain)->due_ns = due_ns;
    while (*place != NULL && simulation_note_of(*place)->due_ns <= due_ns)
        place = &(*place)->next;
    chain->next = *place;
    *place = chain;
}

bool simulated_perform(void *owner, softring *s, soft_request *chain) {
    simulation *kernel = owner;
    soft_request *request;
    int64_t delay_ns;

    for (request = chain; request != NULL; request = request->linked) {
        assert(request == chain || request->work == SOFT_WORK_LINKED);
        if (soft_waits_for_peer(request))
            return false;
    }
    perform_all(chain);
    delay_ns = delay_of(kernel);
    if (delay_ns)
        keep(s, chain, kernel->clock_ns + delay_ns);
    else
        soft_finish_chain(s, chain);
    return true;
}

void simulated_complete(void *owner, softring *s) {
    const simulation *kernel = owner;
    soft_request *chain;

    while ((chain = s->kept) != NULL && simulation_note_of(chain)->due_ns <= kernel->clock_ns) {
        s->kept = chain->next;
        soft_finish_chain(s, chain);
    }
}
