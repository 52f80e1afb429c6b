/* The threads of a software ring, which execute operations of files, as these may wait for a disk.
 *
 * A thread executes one chain of linked requests at a time. It appends its results to a list, and
 * writes to an eventfd if the ring's thread sleeps. The threads block signals, do not use Python,
 * and end after some time without work. After a ring has been closed, the threads finish the
 * requests that they execute: the memory that these read or write must stay valid, as with the
 * kernel's threads.
 *
 * The states of a chain, `work` of its first request; all transitions happen under the pool's lock,
 * except that to LINKED, which precedes them:
 *
 *     NONE ──soft_enqueue()──> QUEUED ──soft_begin_work()──> RUNNING ──soft_end_work()──> DONE
 *     │ ^──────soft_withdraw()────┘                             │                          ^
 *     │                                                  soft_interrupt()                  │
 *     │                                                         v                          │
 *     │                                                    INTERRUPTED ──soft_end_work()───┘
 *     │                                                         │
 *     └─soft_add_to_chain()─> LINKED                      soft_discard()
 *                                                               v
 *                                                           DISCARDED ──soft_end_work()──> freed
 *
 * A thread begins and ends the work; the ring's thread does the rest. soft_take_done() (files.c)
 * posts the completions of chains that are DONE. If the ring is closed first, soft_close_pool()
 * frees these chains, and soft_end_work() frees all others.
 */
#include "_softring/threads.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "_kernel/files.h"
#include "_kernel/wakeup.h"
#include "_softring/queue.h"
#include "_softring/waits.h"

/* Older C libraries have only the member, not the name. */
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

/* The default limit of threads, like that of asyncio's executor. */
#define SOFT_WORKERS_MAX 32
/* The stack of a thread, beside what the C library needs. */
#define SOFT_WORKER_STACK (128 * 1024)
/* A thread ends after this time without work. */
#define SOFT_WORKER_IDLE_S 5
/* The interval at which a thread that must not wait any longer is interrupted. */
#define SOFT_ALARM_NS (10 * 1000000)

/* ── chains ─────────────────────────────────────────────────────────────────────────────────── */

/* Returns how many bytes a transfer must transfer for its chain to go on. */
size_t soft_bytes_asked(const soft_request *request) {
    const struct io_uring_sqe *sqe = &request->sqe;
    const struct iovec *vectors = (const struct iovec *)(uintptr_t)sqe->addr;
    size_t size = 0;
    unsigned i;

    switch (sqe->opcode) {
    case IORING_OP_READ:
    case IORING_OP_WRITE:
        return sqe->len;
    case IORING_OP_READV:
    case IORING_OP_WRITEV:
        for (i = 0; i < sqe->len; i++)
            size += vectors[i].iov_len;
        return size;
    default:
        return 0;
    }
}

/* Executes a chain, in a thread or *here* in the loop's. The requests after a failure, or after a
 * short count, are not started. */
void soft_perform_chain(soft_request *request, bool here) {
    bool broken = false;

    for (; request != NULL; request = request->linked) {
        request->res = broken ? -ECANCELED
                       : here ? uring_perform_here(&request->sqe)
                              : uring_perform(&request->sqe);
        /* Do not compare sizes after the last request: its vectors may have been freed by now. */
        broken = request->linked != NULL &&
                 (request->res < 0 || (size_t)request->res < soft_bytes_asked(request));
    }
}

/* Frees a chain whose results nobody wants, and closes descriptors that it has opened. */
static void soft_free_chain(soft_request *request) {
    soft_request *linked;

    for (; request != NULL; request = linked) {
        linked = request->linked;
        if (request->sqe.opcode == IORING_OP_OPENAT && request->res >= 0)
            close(request->res);
        free(request->held);
        free(request);
    }
}

/* Drops one hold on the pool, with the lock held, and unlocks; the last holder frees the pool. */
static void soft_release_pool(soft_pool *pool) {
    bool last = --pool->holders == 0;

    pthread_mutex_unlock(&pool->lock);
    if (last) {
        pthread_cond_destroy(&pool->work);
        pthread_mutex_destroy(&pool->lock);
        free(pool);
    }
}

/* Hands a chain to the ring, with the lock held. */
static void soft_hand_over(soft_pool *pool, soft_request *chain) {
    chain->next = NULL;
    if (pool->done == NULL)
        pool->done = chain;
    else
        pool->done_last->next = chain;
    pool->done_last = chain;
    /* Set the flag first: the ring's thread sets `sleeping` and then reads the flag. */
    __atomic_fetch_or(pool->flags, IORING_SQ_TASKRUN, __ATOMIC_SEQ_CST);
    if (atomic_load(&pool->sleeping))
        uring_wake(pool->wake_fd);
}

/* Ends the execution of a chain by a thread, with the lock held. */
static void soft_end_work(soft_pool *pool, soft_request *chain) {
    bool discarded = chain->work == SOFT_WORK_DISCARDED;
    bool interrupted = chain->work == SOFT_WORK_INTERRUPTED || discarded;

    assert(interrupted || chain->work == SOFT_WORK_RUNNING);
    if (interrupted)
        syscall(SYS_timer_delete, chain->alarm);
    if (interrupted && chain->res == -EINTR)
        chain->res = -ECANCELED;
    if (pool->closed || discarded) {
        soft_free_chain(chain);
    } else {
        chain->work = SOFT_WORK_DONE;
        soft_hand_over(pool, chain);
    }
}

/* ── the queue, with the lock held ──────────────────────────────────────────────────────────── */

/* Appends a chain. */
static void soft_enqueue(soft_pool *pool, soft_request *chain) {
    soft_request *request;

    assert(chain->work == SOFT_WORK_NONE);
    chain->work = SOFT_WORK_QUEUED;
    for (request = chain; request != NULL; request = request->linked) {
        assert(request->state == SOFT_NEW);
        assert(request == chain || request->work == SOFT_WORK_LINKED);
        request->state = SOFT_GIVEN;
    }
    chain->next = NULL;
    chain->previous = pool->last;
    if (pool->last != NULL)
        pool->last->next = chain;
    else
        pool->first = chain;
    pool->last = chain;
    pool->queued++;
}

static void soft_unlink(soft_pool *pool, soft_request *chain) {
    if (chain->previous != NULL)
        chain->previous->next = chain->next;
    else
        pool->first = chain->next;
    if (chain->next != NULL)
        chain->next->previous = chain->previous;
    else
        pool->last = chain->previous;
    pool->queued--;
}

/* Removes a chain that no thread has begun: it belongs to the ring's thread again. */
static void soft_withdraw(soft_pool *pool, soft_request *chain) {
    soft_request *request;

    assert(chain->work == SOFT_WORK_QUEUED);
    chain->work = SOFT_WORK_NONE;
    soft_unlink(pool, chain);
    for (request = chain; request != NULL; request = request->linked) {
        assert(request->state == SOFT_GIVEN);
        request->state = SOFT_NEW;
    }
}

/* Removes the first chain; the calling thread will execute it. */
static soft_request *soft_begin_work(soft_pool *pool) {
    soft_request *chain = pool->first;

    if (chain != NULL) {
        assert(chain->work == SOFT_WORK_QUEUED);
        chain->work = SOFT_WORK_RUNNING;
        soft_unlink(pool, chain);
        chain->worker = (pid_t)syscall(SYS_gettid);
    }
    return chain;
}

/* ── the life of a thread ───────────────────────────────────────────────────────────────────── */

/* Waits for work, with the lock held. Returns NULL after SOFT_WORKER_IDLE_S, or if the ring is
 * closed. */
static soft_request *soft_wait_for_work(soft_pool *pool) {
    soft_request *request;
    struct timespec end;
    int res = 0;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += SOFT_WORKER_IDLE_S;
    while ((request = soft_begin_work(pool)) == NULL && !pool->closed && res == 0) {
        pool->idle++;
        res = pthread_cond_timedwait(&pool->work, &pool->lock, &end);
        pool->idle--;
    }
    return request;
}

bool soft_waits_for_peer(const soft_request *request) {
    const char *path = (const char *)(uintptr_t)request->sqe.addr;
    struct stat found;

    if (request->sqe.opcode == IORING_OP_OPENAT)
        return fstatat(request->sqe.fd, path, &found, 0) == 0 && S_ISFIFO(found.st_mode);
    return request->blocks_on_peer;
}

static void *soft_work(void *argument) {
    soft_pool *pool = argument;
    soft_request *chain;

    /* Shown by tools that list threads. */
    prctl(PR_SET_NAME, "uringloop-files");
    pthread_mutex_lock(&pool->lock);
    while ((chain = soft_wait_for_work(pool)) != NULL) {
        pthread_mutex_unlock(&pool->lock);
        soft_perform_chain(chain, false);
        pthread_mutex_lock(&pool->lock);
        soft_end_work(pool, chain);
    }
    pool->threads--;
    soft_release_pool(pool);
    return NULL;
}

/* ── cancelling ─────────────────────────────────────────────────────────────────────────────── */

/* The signal that ends a thread's wait for a peer, such as the other end of a FIFO: one that the
 * program does not use. Its handler is installed before it is sent for the first time. */
static pthread_once_t soft_signal_chosen = PTHREAD_ONCE_INIT;
static int soft_signal;

/* Does nothing: a handler without SA_RESTART makes a blocked system call fail with EINTR. */
static void soft_on_signal(int number) {
    (void)number;
}

static void soft_choose_signal(void) {
    struct sigaction action;
    int number;

    for (number = SIGRTMAX; number >= SIGRTMIN && !soft_signal; number--)
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_DFL)
            soft_signal = number;
}

static bool soft_may_signal(void) {
    struct sigaction action;

    if (!soft_signal || sigaction(soft_signal, NULL, &action) != 0)
        return false;
    if (action.sa_handler == SIG_DFL) {
        memset(&action, 0, sizeof(action));
        action.sa_handler = soft_on_signal;
        return sigaction(soft_signal, &action, NULL) == 0;
    }
    /* With any other handler, the program uses the signal by now. */
    return action.sa_handler == soft_on_signal;
}

/* Interrupts the thread that executes a request, with the lock held. A timer sends the signal
 * repeatedly, since a single one may arrive before the thread blocks; the thread deletes the timer.
 * If no timer can be made, the thread gets one signal. */
static void soft_interrupt(soft_request *request) {
    struct itimerspec when = {.it_value.tv_nsec = 1, .it_interval.tv_nsec = SOFT_ALARM_NS};
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = soft_signal};

    assert(request->work == SOFT_WORK_RUNNING);
    request->work = SOFT_WORK_INTERRUPTED;
    event.sigev_notify_thread_id = request->worker;
    request->alarm = -1;
    if (!soft_may_signal())
        return;
    if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &request->alarm) == 0)
        syscall(SYS_timer_settime, request->alarm, 0, &when, NULL);
    else
        syscall(SYS_tgkill, getpid(), request->worker, soft_signal);
}

/* Leaves an interrupted request to its thread, which frees it. The caller holds the lock. */
static void soft_discard(softring *s, soft_request *request) {
    assert(request->work == SOFT_WORK_INTERRUPTED);
    request->work = SOFT_WORK_DISCARDED;
    soft_forget(s, request);
}

/* Ends the work of a GIVEN request, as far as that is possible, and returns the state of the work
 * after that:
 *
 * NONE         no thread had begun the chain
 * DISCARDED    a thread executes an open, and frees the request
 * INTERRUPTED  a thread executes a transfer that may block on a peer, because another process has
 *              taken the data or the room before it; the request completes with what it has
 *              transferred by then
 * otherwise    the request cannot be cancelled
 */
soft_work_states soft_stop_work(softring *s, soft_request *request) {
    soft_pool *pool = s->pool;
    soft_work_states work;

    pthread_mutex_lock(&pool->lock);
    if (request->work == SOFT_WORK_QUEUED) {
        soft_withdraw(pool, request);
    } else if (request->work == SOFT_WORK_RUNNING && request->blocks_on_peer) {
        soft_interrupt(request);
    } else if (request->work == SOFT_WORK_RUNNING && request->sqe.opcode == IORING_OP_OPENAT &&
               request->linked == NULL) {
        soft_interrupt(request);
        soft_discard(s, request);
    }
    work = request->work;
    pthread_mutex_unlock(&pool->lock);
    return work;
}

/* ── the pool ───────────────────────────────────────────────────────────────────────────────── */

/* Starts a thread, with the lock held; returns false if that fails. */
static bool soft_start_worker(soft_pool *pool) {
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    int res;

    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    /* The minimum is not a constant: thread-local variables of libraries add to it. */
    pthread_attr_setstacksize(&attributes,
                              SOFT_WORKER_STACK + (size_t)sysconf(_SC_THREAD_STACK_MIN));
    /* Python's threads handle signals, except the one that interrupts these threads. */
    pthread_once(&soft_signal_chosen, soft_choose_signal);
    sigfillset(&all);
    if (soft_signal)
        sigdelset(&all, soft_signal);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    res = pthread_create(&thread, &attributes, soft_work, pool);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (res != 0)
        return false;
    pool->threads++;
    pool->holders++;
    return true;
}

int soft_open_pool(softring *s) {
    soft_pool *pool = calloc(1, sizeof(*pool));
    pthread_condattr_t attributes;
    int res;

    if (pool == NULL)
        return -ENOMEM;
    pool->wake_fd = uring_new_wake_fd();
    res = pool->wake_fd < 0 ? pool->wake_fd : soft_watch_pool(s, pool->wake_fd);
    if (res < 0) {
        if (pool->wake_fd >= 0)
            close(pool->wake_fd);
        free(pool);
        return res;
    }
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->work, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&pool->lock, NULL);
    pool->most = SOFT_WORKERS_MAX;
    pool->holders = 1;
    pool->flags = s->queues.sq.kflags;
    s->pool = pool;
    return 0;
}

/* Closes the pool of a ring. The queued requests have been withdrawn, except closes, which the
 * threads still execute; results are freed here. */
void soft_close_pool(softring *s) {
    soft_pool *pool = s->pool;
    soft_request *chain, *next;

    pthread_mutex_lock(&pool->lock);
    for (chain = pool->done; chain != NULL; chain = next) {
        next = chain->next;
        assert(chain->work == SOFT_WORK_DONE);
        soft_free_chain(chain);
    }
    pool->done = NULL;
    pool->closed = true;
    close(pool->wake_fd);
    pthread_cond_broadcast(&pool->work);
    s->pool = NULL;
    soft_release_pool(pool);
}

/* Queues a chain for the threads; returns false if there is no thread and none can be started. */
bool soft_give(soft_pool *pool, soft_request *chain) {
    bool served;

    pthread_mutex_lock(&pool->lock);
    /* Each chain gets a thread: two may wait for each other, as opens of both ends of a FIFO do. */
    served = pool->idle > pool->queued ||
             (pool->threads < pool->most && soft_start_worker(pool)) || pool->threads > 0;
    if (served) {
        soft_enqueue(pool, chain);
        pthread_cond_signal(&pool->work);
    }
    pthread_mutex_unlock(&pool->lock);
    return served;
}

/* Takes the chains that are DONE, oldest first, linked by `next`. */
soft_request *soft_done_chains(soft_pool *pool) {
    soft_request *first;

    pthread_mutex_lock(&pool->lock);
    first = pool->done;
    pool->done = pool->done_last = NULL;
    pthread_mutex_unlock(&pool->lock);
    return first;
}
