/* The threads for files of a software ring, with the ring itself: the ring's thread submits a
 * request, a thread executes it, and the ring's thread, which may be about to sleep, takes the
 * result. The code is that of the package, on the checker's locks.
 *
 * No sleep may last although there is a result, and nothing of a request may be used by two threads
 * at once, up to the end of the ring. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "checker.h"

/* ── in place of the C library ──────────────────────────────────────────────────────────────── */

enum { MEMORY = 64 * 1024 };

static struct {
    event wake;
    size_t used;
    _Alignas(16) char memory[MEMORY];
} model;

static void *allocate(size_t size) {
    void *found = model.memory + model.used;

    model.used += (size + 15) & ~(size_t)15;
    if (model.used > MEMORY)
        checker_lacks("memory");
    return found;
}

/* Memory is zero at first, and is not used twice. */
#define calloc(count, size) allocate((count) * (size))
#define malloc(size) allocate(size)
#define realloc(old, size) ((void)(old), (void)(size), checker_lacks("realloc"), NULL)
#define free(memory) ((void)(memory))

#define pthread_mutex_init(lock, attributes) ((void)(lock), 0)
#define pthread_mutex_destroy(lock) ((void)(lock), 0)
#define pthread_mutex_lock(lock) checker_lock(lock)
#define pthread_mutex_unlock(lock) checker_unlock(lock)
#define pthread_cond_init(condition, attributes) ((void)(condition), 0)
#define pthread_cond_destroy(condition) ((void)(condition), 0)
#define pthread_cond_signal(condition) checker_wake(condition)
#define pthread_cond_broadcast(condition) checker_wake(condition)
/* The time never comes: a thread without work waits until the ring is closed. */
#define pthread_cond_timedwait(condition, lock, end) (checker_wait(condition, lock), 0)
#define pthread_create(thread, attributes, run, with) ((void)(thread), checker_start(run, with), 0)
#define pthread_sigmask(how, set, before) ((void)(before), 0)

/* ── in place of _kernel/wakeup.h ───────────────────────────────────────────────────────────── */

#define URINGLOOP_KERNEL_WAKEUP_H

static inline int uring_new_wake_fd(void) { return eventfd(0, EFD_CLOEXEC); }
static inline void uring_wake(int fd) {
    (void)fd;
    event_write(&model.wake);
}

#include "_softring/queue.c"
#include "_softring/waits.c"
#include "_softring/sockets.c"
#include "_softring/threads.c"
#include "_softring/files.c"
#include "_softring/softring.c"

/* ── in place of epoll ──────────────────────────────────────────────────────────────────────── */

static bool choose(void *owner, soft_choices outcome) {
    (void)owner, (void)outcome;
    return false;
}

static int enter(void *owner, softring *s) {
    (void)owner, (void)s;
    return 0;
}

static int wait(void *owner, int epoll_fd, struct epoll_event *events, int size,
                int64_t timeout_ns) {
    (void)owner, (void)epoll_fd, (void)size;
    if (timeout_ns == 0)
        return 0;
    event_wait(&model.wake);
    events[0].data.u64 = SOFT_POOL_DATA;
    return 1;
}

static void begin(void *owner, soft_request *request) { (void)owner, (void)request; }

static bool perform(void *owner, softring *s, soft_request *chain) {
    (void)owner, (void)s, (void)chain;
    return false;
}

static void complete(void *owner, softring *s) { (void)owner, (void)s; }

static const soft_world world = {
    .chooses = choose,
    .enter = enter,
    .wait = wait,
    .begin = begin,
    .perform = perform,
    .complete = complete,
};

/* ── the ring's thread ──────────────────────────────────────────────────────────────────────── */

MODEL_RESET { memset(&model, 0, sizeof(model)); }

void model_begin(void) {
    struct io_uring queues;
    const char *call;
    int error;
    softring *s = softring_open(&queues, 2, 4, &call, &error);

    if (s == NULL)
        checker_lacks(call);
    softring_set_world(s, &world);
    softring_enable(s);
    /* A descriptor that does not exist: the request needs a thread, and fails there. */
    queues.sq.sqes[0] = (struct io_uring_sqe){.opcode = IORING_OP_FSYNC, .fd = -1, .user_data = 7};
    io_uring_smp_store_release(queues.sq.ktail, 1);
    softring_enter(s, 1, IORING_ENTER_GETEVENTS, -1);
    must(io_uring_smp_load_acquire(queues.cq.ktail) == 1, "a completion was lost");
    must(queues.cq.cqes[0].user_data == 7, "a completion is of another request");
    must(queues.cq.cqes[0].res == -EBADF, "the result was lost");
    softring_close(s);
}

void model_end(void) {}
