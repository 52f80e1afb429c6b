/* Opens two FIFOs on a software ring that has one thread, and cancels the second open, which is
 * queued. During the cancel the thread ends the first open and begins the second one. Prints the
 * result of the second open. Arguments: the paths of the FIFOs.
 * The linker passes the ring's calls of pthread_mutex_unlock() to __wrap_pthread_mutex_unlock(), and
 * those of pthread_cond_timedwait(), which unlocks, too. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "_kernel/files.h"
#include "_softring/softring.h"

enum { FIRST = 1, SECOND, CANCEL };

static pthread_t main_thread;
static const char *first_path;
static bool cancelling;
static atomic_uint thread_unlocks;

int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __real_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                  const struct timespec *end);

/* Opens the other end of the first FIFO as soon as the thread is blocked in its open. */
static void end_first_open(void) {
    int fd;

    while ((fd = open(first_path, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) < 0)
        usleep(1000);
    close(fd);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock) {
    unsigned before = atomic_load(&thread_unlocks);
    int res = __real_pthread_mutex_unlock(lock);

    if (!pthread_equal(pthread_self(), main_thread)) {
        atomic_fetch_add(&thread_unlocks, 1);
    } else if (cancelling) {
        cancelling = false;
        end_first_open();
        /* The thread keeps the lock from the end of the first open until it has the second one, or
         * waits for work. */
        while (atomic_load(&thread_unlocks) == before)
            usleep(1000);
    }
    return res;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                  const struct timespec *end) {
    atomic_fetch_add(&thread_unlocks, 1);
    return __real_pthread_cond_timedwait(condition, lock, end);
}

static void submit_open(struct io_uring *queues, const char *path, uint64_t user_data) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(queues);

    io_uring_prep_openat(sqe, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    sqe->user_data = user_data;
}

static void submit_cancel(struct io_uring *queues, uint64_t of) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(queues);

    io_uring_prep_cancel64(sqe, of, 0);
    sqe->user_data = CANCEL;
}

static void enter(softring *ring, struct io_uring *queues, unsigned wanted) {
    io_uring_smp_store_release(queues->sq.ktail, queues->sq.sqe_tail);
    softring_enter(ring, wanted, IORING_ENTER_GETEVENTS, wanted ? 2000000000 : 0);
}

int main(int argc, char **argv) {
    struct io_uring queues;
    struct io_uring_cqe *cqe;
    bool ended = false;
    int error = 0;
    const char *call;
    softring *ring = softring_open(&queues, 8, 16, &call, &error);

    if (ring == NULL || argc != 3)
        return 1;
    main_thread = pthread_self();
    first_path = argv[1];
    softring_enable(ring);
    softring_limit_workers(ring, 1);
    submit_open(&queues, argv[1], FIRST);
    enter(ring, &queues, 0);
    /* The thread unlocks when it has taken the first open. */
    while (atomic_load(&thread_unlocks) == 0)
        usleep(1000);
    submit_open(&queues, argv[2], SECOND);
    enter(ring, &queues, 0);
    submit_cancel(&queues, SECOND);
    cancelling = true;
    while (!ended) {
        unsigned before = *queues.cq.ktail;

        enter(ring, &queues, 1);
        if (*queues.cq.ktail == before)
            break;
        while (io_uring_peek_cqe(&queues, &cqe) == 0) {
            if (cqe->user_data == SECOND) {
                printf("%d\n", cqe->res);
                ended = true;
            }
            io_uring_cqe_seen(&queues, cqe);
        }
    }
    if (!ended)
        printf("does not end\n");
    softring_close(ring);
    return 0;
}
